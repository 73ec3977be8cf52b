"""The protocols of the native side that both engines use. `server.llama` implements them; tests use
`tests/support/fakes.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from server.engine.lora import Adapter
from server.engine.media import MediaInput, MediaPrompt
from server.engine.request import Adapters, SamplingParams, TokenLogprob
from server.vocab import Vocab


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """Constant properties of an instance. ``n_ctx_seq`` is the largest number of tokens of a sequence; ``n_cells`` the
    total number of KV cells (n_ctx_seq * n_seq unless the KV cache is unified).
    """

    n_seq: int
    n_ctx_seq: int
    n_cells: int
    n_batch: int
    n_ubatch: int
    unified: bool
    can_shift: bool = False  # positions of cells can be shifted
    can_cut: bool = True  # sequences can be truncated
    n_draft_max: int = 0  # most draft tokens per sequence and batch
    n_extra_outputs: int = 1  # outputs of a batch besides one per sequence: for drafts and prompt log probabilities
    free_bytes: int = 0  # free memory when the context was created; 0 = unknown
    turn_ends: frozenset[int] = frozenset()  # tokens that end a chat turn
    evaluation_s: float = 0.0  # seconds per additional graph evaluation in a step; 0 = not measured or not applicable
    deferred: bool = False  # a decode without outputs returns before the device is done
    copy_s: float = 0.0  # seconds to copy a sequence between separate streams, which are copied whole
    n_rollback: int = 0  # last tokens of a decode that can be removed although the memory cannot be truncated


@dataclass(eq=False, slots=True)
class BatchEntry:
    """A run of tokens of one sequence in a batch, at positions from ``pos`` on. Not frozen, because one is created per
    sequence and step, and `Cells.prepare_rollback` may shorten it.

    Entries with media are decoded separately; non-causal ones are decoded together only if they are of equal size.
    """

    seq: int
    pos: int
    tokens: Sequence[int]
    n_outputs: int = 0  # number of its last tokens whose logits are wanted
    media: MediaInput | None = None  # the medium that the tokens represent, whose first token is at ``pos``


class Sampler(Protocol):
    """The sampler chain of a sequence, in native memory, closed by its owner."""

    @property
    def seed(self) -> int: ...

    def close(self) -> None: ...


OwnSampler: TypeAlias = Any
"""A sampler created by the same runner; its type is private to the runner."""
OwnChunk: TypeAlias = Any
"""A medium tokenized by the same projector, as in `MediaSpan.chunk`."""
Mask: TypeAlias = bytes | memoryview | bytearray
"""One bit per token of the vocabulary, the lowest bit of a byte first."""


class DraftRunner(Protocol):
    """The context of a draft model, with as many sequences as the target runner."""

    @property
    def info(self) -> RunnerInfo: ...
    def decode(self, entries: Sequence[BatchEntry]) -> bool: ...
    def best(self, output: int) -> tuple[int, float]:
        """Return the most probable token after the `output`-th wanted logits of the last decode, and its
        probability."""

    def seq_remove(self, seq: int, pos: int) -> bool:
        """Remove positions >= `pos` of `seq`; False if the model cannot."""

    def seq_copy(self, source: int, target: int) -> None:
        """Copy all of `source` to `target`, which must be empty."""


class MtpHeads(DraftRunner, Protocol):
    """A model's own draft heads (MTP). Their cells change with those of their runner. `decode` takes one token of each
    sequence: first the pending token, then one draft token after the other.
    """

    def ready(self, seq: int, pos: int) -> bool:
        """Return whether drafts can be made after the first `pos` positions of `seq`."""

    def end_draft(self, seqs: Sequence[int]) -> None:
        """Remove the draft tokens of `seqs`."""


class MediaEncoder(Protocol):
    """A loaded projector. Thread-safe."""

    def encode(self, chunks: Sequence[OwnChunk]) -> list[bytes]:
        """Return the embeddings of the first chunks, as many as are computed together but at least one.

        Raises `InternalError`.
        """


class Runner(Protocol):
    """One native context. Only the instance's step thread calls its methods."""

    @property
    def info(self) -> RunnerInfo: ...
    @property
    def vocab(self) -> Vocab: ...
    @property
    def draft(self) -> DraftRunner | None:
        """The draft model's context; closed together with this one."""

    @property
    def heads(self) -> MtpHeads | None:
        """The model's MTP heads; closed together with this one."""

    @property
    def encoder(self) -> MediaEncoder | None:
        """The media encoder of these weights, shared by all runners; closed with the weights."""

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        """Decode `entries` in one call. Return True if done, False if no KV cells were free (nothing changed).

        Raises `server.errors.InternalError` if the library rejects the batch.
        """

    def needs_preparation(self, params: SamplingParams) -> bool:
        """Return whether `sampler` would be slow with these parameters. For any thread."""

    def prepare_sampler(self, params: SamplingParams) -> None:
        """Compute and cache what would make `sampler` slow with these parameters. Blocks; may be called in any thread
        until the weights are closed. Raises `InvalidRequest`.
        """

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> Sampler:
        """Return a new sampler chain that has accepted the prompt's tokens."""

    def sample_in_graph(self, seq: int, sampler: OwnSampler | None) -> None:
        """Sample `seq` with `sampler` in the compute graph from the next decode on, if possible. Only `sample` may be
        used then. None: read logits.
        """

    def sample(self, output: int, sampler: OwnSampler) -> int:
        """Sample from the `output`-th wanted logits of the last decode and accept the token."""

    def sample_together(self, wanted: Sequence[tuple[int, OwnSampler]]) -> Mapping[int, int | Exception]:
        """Sample several outputs in parallel; return each output's token or error.

        Outputs that the result lacks are left to `sample`, which is as fast in that case.
        """

    def propose(self, output: int, sampler: OwnSampler, mask: Mask | None = None) -> int:
        """Sample without accepting, with a `mask` among the tokens whose bit is set. Raises `InternalError` if none
        is set.
        """

    def propose_probs(self, output: int, sampler: OwnSampler, n_top: int, mask: Mask | None = None) -> TokenLogprob:
        """Sample as `propose`; return log probabilities after the sampler chain with the `n_top` best tokens."""

    def accept(self, sampler: OwnSampler, token: int) -> None: ...

    def prepare_logprobs(self, wanted: Sequence[tuple[int, int]]) -> None:
        """Prepare the results of `logprobs` for these outputs with so many top tokens, in parallel if faster."""

    def logprobs(self, output: int, token: int, n_top: int) -> TokenLogprob:
        """Return the raw log probability of `token` at that output, with the `n_top` best tokens."""

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The loaded LoRA adapters by id, with the scales they were loaded with."""

    def use_adapters(self, adapters: Adapters) -> None:
        """Compute the following batches with this LoRA set."""

    def load_adapter(self, wanted: Adapter) -> Adapter:
        """Load an adapter with this id, path, scale and name, unless a context of the same weights has loaded it.
        Return it with all fields.

        Blocks. May be called in any thread, also while contexts decode. Raises `server.errors.ModelFailed` that names
        the file.
        """

    def free_adapter(self, id_: int) -> None:
        """Free an adapter that no sequence uses, in any thread. Does nothing if it is not loaded."""

    def seq_remove(self, seq: int, pos: int) -> bool:
        """Remove positions >= `pos` of `seq`; False if this model cannot truncate."""

    def seq_copy(self, source: int, target: int) -> None:
        """Copy all of `source` to `target`, which must be empty."""

    def seq_drop(self, seq: int, start: int, end: int) -> None:
        """Remove positions `start` to `end` of `seq` and shift later positions down to `start`.

        Requires ``info.can_shift`` and cells that no other sequence shares.
        """

    def seq_size(self, seq: int, *, partial: bool = False) -> int:
        """Return the number of bytes that `seq_save` would return, or `seq_checkpoint` if `partial`. Raises
        `InternalError`.
        """

    def seq_save(self, seq: int) -> bytes:
        """Return the library's state of one sequence, for `seq_load`. Raises `InternalError`, also if there is no
        memory.
        """

    def seq_load(self, seq: int, state: bytes, n_pos: int) -> bool:
        """Replace `seq` by a state whose last position is `n_pos` - 1. Return False, with `seq` empty, if the library
        rejects it or its last position differs.
        """

    def seq_floor(self, seq: int) -> int:
        """Return the smallest position, besides 0, to which `seq_remove` can certainly truncate `seq`."""

    def seq_checkpoint(self, seq: int) -> bytes:
        """Return the part of the current state that `seq_remove` cannot restore, for `seq_rewind`."""

    def seq_rewind(self, seq: int, checkpoint: bytes, n_pos: int) -> bool:
        """Restore `seq` to `checkpoint`, whose last position was `n_pos` - 1. Return False, with `seq` empty, on
        failure.
        """

    def wipe(self) -> None:
        """Zero all cells: removed cells still enter sums with weight 0. No sequence may hold any."""

    def close(self) -> None: ...


# ---- embedding models

Vectors: TypeAlias = npt.NDArray[np.float32]
"""The result of one input: one row of ``n_embd`` values, or one row per token with `Pooling.NONE`. Not normalized."""


class Pooling(StrEnum):
    """How token vectors are pooled (llama.h, enum llama_pooling_type)."""

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"  # the first token's
    LAST = "last"
    RANK = "rank"  # the scores of a classification head


@dataclass(frozen=True, slots=True)
class EmbedderInfo:
    """Constant properties of an embedding context. Counts are tokens unless stated otherwise.

    ``whole``: an input must be computed in one evaluation and cannot exceed ``n_ubatch``. Otherwise it may be split, up
    to the context size.
    """

    pooling: Pooling
    n_embd: int  # values of a vector; with `Pooling.RANK` the classes of the head
    n_seq: int  # inputs of one decode
    n_pack: int  # total tokens of a decode of several inputs
    n_ubatch: int
    n_ctx_seq: int
    whole: bool

    @property
    def longest(self) -> int:
        """The largest number of tokens of an input."""
        return min(self.n_ubatch, self.n_ctx_seq) if self.whole else self.n_ctx_seq - 1


class EmbeddingRunner(Protocol):
    """One native embedding context. Only the instance's step thread calls `embed`."""

    @property
    def info(self) -> EmbedderInfo: ...
    @property
    def vocab(self) -> Vocab: ...

    def embed(self, inputs: Sequence[Sequence[int]], on_part: Callable[[], None]) -> list[Vectors]:
        """Return the vectors of each input, computed in one batch; calls `on_part` after each part of a long one.

        Accepts at most ``n_seq`` inputs of ``n_pack`` tokens in total, or a single one. Raises
        `server.errors.InternalError` if the library fails or returns non-finite values.
        """

    def embed_media(self, prompt: MediaPrompt, on_part: Callable[[], None]) -> Vectors:
        """Embed one input with media, which are encoded first. Raises `InternalError`."""

    @property
    def takes_media(self) -> bool:
        """Whether `embed_media` is supported: a projector is loaded and attention is causal."""

    def close(self) -> None: ...
