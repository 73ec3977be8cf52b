"""What both engines need of the native side, and what it gives back. `server.llama` implements it; tests use
`harness/fakes.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from server.engine.lora import Adapter
from server.engine.media import MediaInput, Spans
from server.engine.request import Adapters, SamplingParams, TokenLogprob
from server.vocab import Vocab


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """Fixed facts of one instance. ``n_ctx_seq`` is the most tokens one sequence may hold; ``n_cells`` those of
    all together (equal to n_ctx_seq * n_seq when the KV is not unified)."""

    n_seq: int
    n_ctx_seq: int
    n_cells: int
    n_batch: int
    n_ubatch: int
    unified: bool
    can_shift: bool = False  # cells can get other positions
    can_cut: bool = True  # the end of a sequence can be forgotten
    n_guesses: int = 0  # most guessed tokens of a sequence in a batch
    n_more_outputs: int = 1  # that a batch has beside the next tokens of all sequences: of guesses and scored prompts
    free_bytes: int = 0  # memory left when the context was made; 0 = unknown
    piece_s: float = 0.0  # guess: what each contiguous piece of unified cells costs a state's copy beside its bytes
    turn_ends: frozenset[int] = frozenset()  # tokens that end a turn in a chat's prompt
    evaluation_s: float = 0.0  # that each further evaluation of a step's graph takes; 0 = not measured, or never needed
    evaluation_tokens: float = 0.0  # that take as long as one more evaluation of a few
    fills: bool = False  # shorter runs are filled up to save one
    deferred: bool = False  # the device computes on after a decode without outputs; the next one waits for it
    copy_s: float = 0.0  # that the copy of a sequence takes, however long it is: separate streams are copied whole


class BatchEntry(Protocol):
    """A run of tokens of one sequence in a batch: positions ``pos``..

    Entries with media are decoded by themselves, those that are not causal each alone.
    """

    @property
    def seq(self) -> int: ...
    @property
    def pos(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def n_outputs(self) -> int:
        """Logits are wanted for so many of its last tokens."""

    @property
    def media(self) -> MediaInput | None:
        """What the tokens stand for where they are no text; ``pos`` is that of the medium's first one then."""


class Sampler(Protocol):
    """One sequence's sampler chain: native memory, closed by its owner."""

    @property
    def seed(self) -> int: ...

    def close(self) -> None: ...


OwnSampler: TypeAlias = Any
"""A sampler that the same runner made; its type is the runner's own."""
OwnChunk: TypeAlias = Any
"""A medium that the same projector tokenized, as its `MediaSpan.chunk` holds it."""


class DraftRunner(Protocol):
    """The context of a small model that guesses: as many sequences as the runner that it guesses for."""

    @property
    def info(self) -> RunnerInfo: ...
    def decode(self, entries: Sequence[BatchEntry]) -> bool: ...
    def best(self, output: int) -> tuple[int, float]:
        """The most probable token behind the `output`-th wanted logits of the last decode, and its probability."""

    def seq_remove(self, seq: int, pos: int) -> bool:
        """Forget positions >= `pos` of `seq`; False when that can't be."""

    def seq_copy(self, source: int, target: int) -> None:
        """Make `target` a copy of the whole of `source`; the target must be empty."""


class MtpHeads(Protocol):
    """A model's own heads that guess (MTP). They follow what their runner decodes, forgets and copies."""

    @property
    def info(self) -> RunnerInfo: ...
    def ready(self, seq: int, pos: int) -> bool:
        """Whether what follows the first `pos` positions of `seq` can be guessed."""

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        """As `Runner.decode`, one token of each sequence: what follows those positions, then the guesses."""

    def best(self, output: int) -> tuple[int, float]: ...
    def end_guesses(self, seqs: Sequence[int]) -> None:
        """Forget what was guessed for `seqs`."""


class MediaEncoder(Protocol):
    """A loaded projector. Safe in any thread."""

    def encode(self, chunks: Sequence[OwnChunk]) -> list[bytes]:
        """Embeddings of as many of the first chunks as are computed together, of one at least.

        Raises `InternalError`.
        """


class Runner(Protocol):
    """One native context. Every method is called by the instance's step thread only."""

    @property
    def info(self) -> RunnerInfo: ...
    @property
    def vocab(self) -> Vocab: ...
    @property
    def draft(self) -> DraftRunner | None:
        """What guesses for this one; closed with it."""

    @property
    def heads(self) -> MtpHeads | None:
        """The model's own that guess; closed with it."""

    @property
    def encoder(self) -> MediaEncoder | None:
        """What makes embeddings of media for it, and for all runners of the same weights; closed with these."""

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        """Decode in one call. True: done. False: no KV room, and nothing was changed.

        Raises `server.errors.InternalError` when the library reports a fault of the batch.
        """

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> Sampler:
        """A new chain that has seen the prompt's tokens."""

    def sample_in_graph(self, seq: int, sampler: OwnSampler | None) -> None:
        """From the next decode on, what follows in `seq` is chosen by `sampler` where it is computed, as far as that
        can be, and only `sample` may be asked for it; None: its logits are there to be read."""

    def sample(self, output: int, sampler: OwnSampler) -> int:
        """Sample from the `output`-th wanted logits of the last decode and accept the token."""

    def sample_together(self, wanted: Sequence[tuple[int, OwnSampler]]) -> Mapping[int, int | Exception]:
        """`sample` for several outputs on several cores: the token of each, or why there is none.

        What is missing in the result is left to `sample`, which is as fast then.
        """

    def sample_constrained(self, output: int, sampler: OwnSampler, mask: "bytes | memoryview | bytearray") -> int:
        """Sample and accept, among the tokens whose bit is set; raises InternalError when none is left."""

    def propose(self, output: int, sampler: OwnSampler) -> int:
        """Sample without accepting."""

    def accept(self, sampler: OwnSampler, token: int) -> None: ...

    def propose_probs(
        self, output: int, sampler: OwnSampler, n_top: int, mask: "bytes | memoryview | bytearray | None" = None
    ) -> TokenLogprob:
        """Sample without accepting, with log probabilities of what the chain left over, the `n_top` best beside."""

    def logprobs(self, output: int, token: int, n_top: int) -> TokenLogprob:
        """From the raw logits of that output: the token's log probability and the `n_top` best."""

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The loaded LoRA adapters, by id, with the scales that they were loaded with."""

    def use_adapters(self, adapters: Adapters) -> None:
        """Compute the following batches under this set."""

    def seq_remove(self, seq: int, pos: int) -> bool:
        """Forget positions >= `pos` of `seq`; False when this model cannot forget a part."""

    def seq_copy(self, source: int, target: int) -> None:
        """Make `target` a copy of the whole of `source`; the target must be empty."""

    def seq_drop(self, seq: int, start: int, end: int) -> None:
        """Forget positions `start` up to `end` of `seq` and move what follows down to `start`.

        Only where ``info.can_shift``, and only cells that no other sequence shares.
        """

    def seq_size(self, seq: int, *, partial: bool = False) -> int:
        """Bytes that `seq_save`, or `seq_checkpoint` where `partial`, would give. Raises `InternalError` as they do."""

    def seq_save(self, seq: int) -> bytes:
        """The library's own state of one sequence, for `seq_load`. Raises `InternalError`, also without memory."""

    def seq_load(self, seq: int, state: bytes, n_pos: int) -> bool:
        """Replace what `seq` holds by a state whose last position is `n_pos` - 1; False when the library refuses it or
        it ends at another one, and `seq` is empty then."""

    def seq_floor(self, seq: int) -> int:
        """The least position that `seq_remove` can surely bring `seq` to, beside none."""

    def seq_checkpoint(self, seq: int) -> bytes:
        """What `seq_remove` can't bring back, as it is now; for `seq_rewind`."""

    def seq_rewind(self, seq: int, checkpoint: bytes, n_pos: int) -> bool:
        """Bring `seq`, which goes on from where `checkpoint` was made, back to there, where its last position was
        `n_pos` - 1; False: it is empty now."""

    def wipe(self) -> None:
        """Zero all cells, since a forgotten one still enters sums, with weight 0; no sequence may hold any."""

    def close(self) -> None: ...


# ---- of a model that gives vectors

Vectors: TypeAlias = npt.NDArray[np.float32]
"""The result of one input, rows of ``n_embd``: one row, or with `Pooling.NONE` one for each token. Not normalized."""


class Pooling(StrEnum):
    """How the vectors of an input's tokens become one (llama.h, enum llama_pooling_type)."""

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"  # the first token's
    LAST = "last"
    RANK = "rank"  # the scores of a classification head


@dataclass(frozen=True, slots=True)
class EmbedderInfo:
    """Fixed facts of one context that gives vectors. Counts are tokens unless they say otherwise.

    ``whole``: an input has to be computed at once, so it can't be longer than ``n_ubatch``; otherwise it may be
    spread over several computations, up to the context's length.
    """

    pooling: Pooling
    n_embd: int  # numbers in a vector; with `Pooling.RANK` the classes of the head
    n_seq: int  # inputs of one decode
    n_pack: int  # that one decode carries when it carries several inputs
    n_ubatch: int
    n_ctx_seq: int
    whole: bool

    @property
    def longest(self) -> int:
        """Tokens that an input may have."""
        return min(self.n_ubatch, self.n_ctx_seq) if self.whole else self.n_ctx_seq - 1


class EmbeddingRunner(Protocol):
    """One native context that gives vectors. `embed` is called by the instance's step thread only."""

    @property
    def info(self) -> EmbedderInfo: ...
    @property
    def vocab(self) -> Vocab: ...

    def embed(self, inputs: Sequence[Sequence[int]]) -> list[Vectors]:
        """The vectors of each input, computed together. Nothing is remembered between two calls.

        At most ``n_seq`` inputs of ``n_pack`` tokens in all, or a single one. Raises `server.errors.InternalError`
        when the library reports a fault.
        """

    def embed_media(self, tokens: Sequence[int], media: Spans) -> Vectors:
        """As `embed`, of one input with media, which are encoded for it. Raises `InternalError`."""

    @property
    def takes_media(self) -> bool:
        """Whether it can: there is a projector, and what comes later changes nothing of what came before."""

    def close(self) -> None: ...
