"""Fakes of the native library. The next token of a fake model is a function of its KV cells.

If the scheduler puts a wrong token, a wrong position or another client's cells into a sequence, the generated text
changes, and tests fail.
"""

import json
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from server.engine.lora import Adapter
from server.engine.media import MediaPrompt, media_tokens
from server.engine.request import Adapters, SamplingParams, TokenLogprob
from server.engine.runner_api import (
    BatchEntry,
    DraftRunner,
    EmbedderInfo,
    Mask,
    MediaEncoder,
    Pooling,
    RunnerInfo,
    Vectors,
)
from server.errors import InternalError, ModelFailed
from server.media.bitmap import Bitmap, BitmapKind
from server.pool.memory import HOST, Bytes, Fit, Footprint, Memory
from server.pool.protocols import MediaReader, ModelInfo
from server.pool.spec import ModelSpec
from server.vocab import PlainText

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
STATE_PREFIX = b"\xd8\x3c\x14\xaf\0\0\0\0"  # as in the library: its magic number and the sequence's number
SPECIALS = {BOS: b"<s>", EOS: b"</s>", IM_START: b"<|im_start|>", IM_END: b"<|im_end|>"}
IDS = {text: token for token, text in SPECIALS.items()}
SPLITTER = re.compile(b"(" + b"|".join(map(re.escape, IDS)) + b")")
PIECES = [*(bytes([t]) for t in range(256)), *SPECIALS.values()]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASSISTANT = "<|im_start|>assistant\n"


class FakeVocab:
    """A vocabulary of 256 bytes and four special tokens. FIM tokens are bytes that no test uses.

    ``fim``: "none", "file" (prefix, suffix and middle), or "repo" (also those for several files).
    """

    n_tokens = 260
    quick_bytes = 1 << 20
    max_token_bytes = max(map(len, PIECES))
    bos = BOS
    eos = EOS
    sep = -1
    add_bos = True
    add_eos = False
    add_sep = False
    eog = frozenset({EOS, IM_END})

    def __init__(self, fim: str = "file") -> None:
        self.fim_prefix, self.fim_suffix, self.fim_middle = (-1, -1, -1) if fim == "none" else (1, 2, 3)
        self.fim_repo, self.fim_sep = (4, 5) if fim == "repo" else (-1, -1)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = [BOS] if add_special else []
        raw = text.encode("utf-8", "surrogatepass")
        for n, part in enumerate(SPLITTER.split(raw) if parse_special else [raw]):
            tokens += [IDS[part]] if n % 2 else part  # every second part is a special token
        return tokens

    def piece(self, token: int, *, special: bool = True) -> bytes:
        if token < 256:
            return bytes([token])
        return SPECIALS[token] if special else b""

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> bytes:
        return b"".join(self.piece(t, special=special) for t in tokens)


@dataclass
class FakeSampler:
    params: SamplingParams
    seed: int
    accepted: list[int] = field(default_factory=list)
    closed: bool = False

    def close(self) -> None:
        assert not self.closed, "a sampler was closed twice"
        self.closed = True


@dataclass(eq=False, slots=True)
class FakeChunk:
    """A media chunk. If ``slow``, its encoding waits for `FakeEncoder.gate`."""

    name: str
    causal: bool = True
    slow: bool = False

    @property
    def key(self) -> bytes:
        return self.name.encode()


class FakeEncoder:
    """Returns embeddings that contain the chunk's name. Fails for a chunk named ``broken``."""

    def __init__(self, most: int = 2) -> None:
        self.gate = threading.Event()
        self.started = threading.Event()
        self.most = most
        self.batches: list[list[str]] = []

    @staticmethod
    def embeddings(chunk: object) -> bytes:
        assert isinstance(chunk, FakeChunk)
        return b"embeddings of " + chunk.key

    def encode(self, chunks: Sequence[FakeChunk]) -> list[bytes]:
        batch = list(chunks[: self.most])
        self.batches.append([chunk.name for chunk in batch])
        if any(chunk.name == "broken" for chunk in batch):
            raise InternalError("it can't be encoded")
        if any(chunk.slow for chunk in batch):
            self.started.set()
            assert self.gate.wait(100), "the gate was never opened"
        return [self.embeddings(chunk) for chunk in batch]


class FakeRunner:
    """A fake context. ``replies`` maps the end of a prompt to the reply, which EOS follows.

    ``steps``: a semaphore from which each decode takes a permit, so that a test can run single steps. ``on_decode``
    gets each batch before it runs and may raise. ``n_state_bytes``, ``n_checkpoint_bytes``: the minimum sizes of saved
    states and checkpoints. ``together``: implement `sample_together`.
    """

    def __init__(
        self,
        *,
        n_seq: int = 4,
        n_ctx_seq: int = 256,
        n_batch: int = 64,
        unified: bool = False,
        n_cells: int | None = None,
        replies: Mapping[str, str] | None = None,
        partial_removal: bool = True,
        n_rollback: int = 0,
        adapters: tuple[Adapter, ...] = (),
        draft: DraftRunner | None = None,
        steps: threading.Semaphore | None = None,
        on_decode: Callable[[Sequence[BatchEntry]], None] | None = None,
        together: bool = False,
        n_extra_outputs: int = 512,
        encoder: MediaEncoder | None = None,
        n_state_bytes: int = 0,
        n_checkpoint_bytes: int = 0,
    ) -> None:
        self.together = together
        self.n_state_bytes, self.n_checkpoint_bytes = n_state_bytes, n_checkpoint_bytes
        self.info = RunnerInfo(
            *(n_seq, n_ctx_seq, n_cells or n_seq * n_ctx_seq, n_batch, n_batch, unified, True, partial_removal, 64),
            turn_ends=FakeVocab.eog,
            n_extra_outputs=n_extra_outputs,
            n_rollback=n_rollback,
        )
        self._removable: dict[int, int] = {}  # cells by sequence of the last decode, see `RunnerInfo.n_rollback`
        self.adapters = adapters
        self.draft = draft
        self.heads = None
        self.encoder: MediaEncoder | None = encoder
        self.adapters_now: Adapters = ()
        self.computed_by: dict[int, list[Adapters]] = {s: [] for s in range(n_seq)}
        self.vocab = FakeVocab()
        self.replies = {k.encode(): v.encode() for k, v in (replies or {}).items()}
        self.partial_removal = partial_removal
        self.steps = steps
        self.on_decode = on_decode
        self.cells: dict[int, list[int]] = {s: [] for s in range(n_seq)}
        self.positions: dict[int, list[int]] = {s: [] for s in range(n_seq)}  # see `_at`
        self.following: dict[int, list[int]] = {s: [] for s in range(n_seq)}  # the position after each cell
        self._shared: dict[frozenset[int], int] = {}  # by pair of sequences: the most cells that both contain
        self.outputs: list[int] = []
        self.histories: list[bytes] = []
        self.samplers: list[FakeSampler] = []
        self.prepared: set[SamplingParams] = set()
        self._texts: dict[int, tuple[list[int], bytes]] = {}  # by sequence: cells and their text
        self.in_graph: dict[int, FakeSampler] = {}  # by sequence
        self.batches: list[list[tuple[int, int]]] = []
        self.closed = False
        self.n_wipes = 0

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        assert not self.closed
        if self.steps is not None:
            assert self.steps.acquire(timeout=100), "no permit for a step"
        if self.on_decode is not None:
            self.on_decode(entries)
        added = sum(len(e.tokens) for e in entries)
        assert 0 < added <= self.info.n_batch, f"a batch of {added} tokens"
        if self.info.unified and sum(map(len, self.cells.values())) + added > self.info.n_cells:
            return False
        if any(e.pos + len(e.tokens) > self.info.n_ctx_seq for e in entries):
            return False
        non_causal = [len(e.tokens) for e in entries if e.media is not None and not e.media.causal]
        assert len(set(non_causal)) < 2, f"one of {non_causal} tokens would be split into ubatches"
        assert sum(non_causal) <= self.info.n_ubatch
        assert len(non_causal) in (0, len(entries)), "text would attend to later tokens"
        self.outputs, self.histories = [], []
        for entry in entries:
            cells = self.cells[entry.seq]
            self._at(entry.seq)
            expected = (self.following[entry.seq] or [0])[-1]
            assert entry.pos == expected, f"position {entry.pos} of a sequence that continues at {expected}"
            self._place(entry)
            cells.extend(entry.tokens)
            self.computed_by[entry.seq].extend([self.adapters_now] * len(entry.tokens))
            for n in range(len(cells) - entry.n_outputs + 1, len(cells) + 1):
                history = self._history(entry.seq, n) + self._adapter_history(entry.seq, n)
                self.outputs.append(self._next(history))
                self.histories.append(history)
        self.batches.append([(e.seq, len(e.tokens)) for e in entries])
        self._removable = {e.seq: min(len(e.tokens) - 1, self.info.n_rollback) for e in entries}
        return True

    def _at(self, seq: int) -> list[int]:
        """Return the position of each cell. Cells that a test has set directly get those of text."""
        n = len(self.cells[seq])
        if len(self.positions[seq]) != n:
            self.positions[seq], self.following[seq] = list(range(n)), list(range(1, n + 1))
        return self.positions[seq]

    def _place(self, entry: BatchEntry) -> None:
        """Append the positions of `entry` as in the library. All tokens of non-linear media have one position."""
        media, pos, n = entry.media, entry.pos, len(entry.tokens)
        if media is None:
            assert min(entry.tokens) >= 0, "media tokens without embeddings"
            self.positions[entry.seq] += range(pos, pos + n)
            self.following[entry.seq] += range(pos + 1, pos + n + 1)
            return
        span, first = media.span, media.first
        assert media.embeddings == FakeEncoder.embeddings(span.chunk), "embeddings of another chunk"
        assert list(entry.tokens) == media_tokens(span.id, span.nth, span.n_tokens)[first : first + n]
        assert media.causal or (first == 0 and n == span.n_tokens), "a part of a non-causal chunk"
        self.positions[entry.seq] += range(pos + first, pos + first + n) if span.linear else [pos] * n
        following = [pos] * n
        if first + n == span.n_tokens:
            following[-1] = pos + span.n_pos
        self.following[entry.seq] += following

    def _text(self, tokens: Sequence[int]) -> bytes:
        return b"".join([PIECES[t] if t >= 0 else b"<%d>" % t for t in tokens])

    def _history(self, seq: int, n: int) -> bytes:
        """Return the text of the first `n` cells. For speed, extends the text of the last call."""
        cells = self.cells[seq]
        known, text = self._texts.get(seq, ([], b""))
        if len(known) > n or cells[: len(known)] != known:
            known, text = [], b""
        text += self._text(cells[len(known) : n])
        self._texts[seq] = cells[:n], text
        return text

    def _adapter_history(self, seq: int, n: int) -> bytes:
        """Return the adapters that computed the first `n` cells, so that the next token depends on them."""
        sets = self.computed_by[seq][:n]
        return b"" if sets.count(()) == len(sets) else repr(sets).encode()

    def sample_in_graph(self, seq: int, sampler: FakeSampler | None) -> None:
        if sampler is None:
            self.in_graph.pop(seq, None)
        else:
            self.in_graph[seq] = sampler

    def use_adapters(self, adapters: Adapters) -> None:
        assert all(scale for _, scale in adapters)
        assert {id_ for id_, _ in adapters} <= {adapter.id for adapter in self.adapters}, "the adapter is not loaded"
        self.adapters_now = adapters

    def load_adapter(self, wanted: Adapter) -> Adapter:
        if "broken" in wanted.path:
            raise ModelFailed("fake", f"{wanted.path}: is no LoRA adapter")
        found = replace(wanted, fingerprint=f"fake:{wanted.path}", n_bytes=10)
        self.adapters = (*self.adapters, found)
        return found

    def free_adapter(self, id_: int) -> None:
        if id_ in dict(self.adapters_now):
            self.adapters_now = ()
        self.adapters = tuple(adapter for adapter in self.adapters if adapter.id != id_)

    def _next(self, history: bytes) -> int:
        best = max(((history.rfind(k), k) for k in self.replies if k in history), default=None)
        if best is not None:
            generated = history[best[0] + len(best[1]) :]
            reply = self.replies[best[1]]
            if reply.startswith(generated):
                return reply[len(generated)] if len(generated) < len(reply) else EOS
        return ord("a") + zlib.crc32(history) % 26

    def _draw(self, output: int, sampler: FakeSampler) -> int:
        token = self.outputs[output]
        if sampler.params.temperature > 0 and ord("a") <= token <= ord("z") and not self.replies:
            return ord("a") + zlib.crc32(self.histories[output] + sampler.seed.to_bytes(4, "little")) % 26
        banned = {t for t, b in sampler.params.logit_bias if b == float("-inf")}
        if sampler.params.ignore_eos:
            banned |= self.vocab.eog
        return next(t for t in (token, ord("x"), ord("y"), ord("z")) if t not in banned)

    def needs_preparation(self, params: SamplingParams) -> bool:
        return params.uses_dry and not any(replace(params, seed=each.seed) == each for each in self.prepared)

    def prepare_sampler(self, params: SamplingParams) -> None:
        assert threading.current_thread() is not threading.main_thread(), "the event loop would wait"
        self.prepared.add(params)

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> FakeSampler:
        assert not self.needs_preparation(params), "the step thread would wait"
        sampler = FakeSampler(params, params.seed if params.seed != 0xFFFFFFFF else 7, list(prompt))
        self.samplers.append(sampler)
        return sampler

    def sample(self, output: int, sampler: FakeSampler) -> int:
        token = self._draw(output, sampler)
        self.accept(sampler, token)
        return token

    def sample_together(self, wanted: Sequence[tuple[int, FakeSampler]]) -> dict[int, int | Exception]:
        return {output: self.sample(output, sampler) for output, sampler in wanted} if self.together else {}

    def propose(self, output: int, sampler: FakeSampler, mask: Mask | None = None) -> int:
        token = self._draw(output, sampler)
        return token if mask is None else self._masked(token, mask)

    def accept(self, sampler: FakeSampler, token: int) -> None:
        assert not sampler.closed
        sampler.accepted.append(token)

    def propose_probs(self, output: int, sampler: FakeSampler, n_top: int, mask: Mask | None = None) -> TokenLogprob:
        token = self.propose(output, sampler, mask)
        return TokenLogprob(token, self.vocab.piece(token), 0.0, (TokenLogprob(token, self.vocab.piece(token), 0.0),))

    def _masked(self, token: int, mask: Mask) -> int:
        """Return `token` if `mask` allows it, otherwise the first allowed token."""
        bits = bytes(mask)
        allowed = [t for t in range(self.vocab.n_tokens) if bits[t // 8] >> (t % 8) & 1]
        if not allowed:
            raise InternalError("no token is allowed")
        return token if token in allowed else allowed[0]

    def prepare_logprobs(self, wanted: Sequence[tuple[int, int]]) -> None:
        pass

    def logprobs(self, output: int, token: int, n_top: int) -> TokenLogprob:
        best = self.outputs[output]
        order = [best, *(t for t in range(ord("a"), ord("z") + 1) if t != best)][:n_top]
        top = tuple(TokenLogprob(t, self.vocab.piece(t), -0.1 * (i + 1)) for i, t in enumerate(order))
        return TokenLogprob(token, self.vocab.piece(token), -0.1 if token == best else -2.0, top)

    def seq_remove(self, seq: int, pos: int) -> bool:
        n = sum(each < pos for each in self._at(seq))
        n_removed = len(self.cells[seq]) - n
        if n and n_removed and not self.partial_removal and n_removed > self._removable.pop(seq, 0):
            return False
        self._truncate(seq, n)
        self._unshare_from(seq, n)
        return True

    def _truncate(self, seq: int, n: int) -> None:
        """Keep the first `n` cells."""
        for each in (self.cells, self.computed_by, self.positions, self.following):
            del each[seq][n:]

    def _unshare_from(self, seq: int, pos: int) -> None:
        """Record that no other sequence has the cells of `seq` from `pos` on."""
        for pair, n in self._shared.items():
            if seq in pair:
                self._shared[pair] = min(n, max(pos, 0))

    def seq_drop(self, seq: int, start: int, end: int) -> None:
        assert start < end
        assert all(n <= end for pair, n in self._shared.items() if seq in pair), "cells of other sequences were moved"
        self._unshare_from(seq, start)
        self._at(seq)
        del self.cells[seq][start:end]
        del self.computed_by[seq][start:end]
        n = end - start
        for each in (self.positions, self.following):
            each[seq] = each[seq][:start] + [pos - n for pos in each[seq][end:]]

    def seq_copy(self, source: int, target: int) -> None:
        assert not self.cells[target], "the target of a copy must be empty"
        if self.info.unified:
            for other in self.cells.keys() - {source, target}:
                self._shared[frozenset({other, target})] = self._shared.get(frozenset({other, source}), 0)
            self._shared[frozenset({source, target})] = len(self.cells[source])
        self.cells[target] = list(self.cells[source])
        self._at(source)
        self.positions[target], self.following[target] = list(self.positions[source]), list(self.following[source])
        self.computed_by[target] = list(self.computed_by[source])

    def seq_size(self, seq: int, *, partial: bool = False) -> int:
        return len(FakeRunner.seq_checkpoint(self, seq) if partial else FakeRunner.seq_save(self, seq))

    def seq_save(self, seq: int) -> bytes:
        state = [self.cells[seq], self.computed_by[seq], self._at(seq), self.following[seq]]
        return (STATE_PREFIX + json.dumps(state).encode()).ljust(self.n_state_bytes)

    def seq_load(self, seq: int, state: bytes, n_pos: int) -> bool:
        try:
            tokens, sets, positions, following = json.loads(state.removeprefix(STATE_PREFIX))
        except ValueError:
            return False
        sets = [tuple((id_, scale) for id_, scale in adapters) for adapters in sets]
        if max(positions, default=-1) + 1 != n_pos:
            return False
        others = sum(len(c) for s, c in self.cells.items() if s != seq)
        if self.info.unified and others + len(tokens) > self.info.n_cells:
            return False
        self.cells[seq], self.computed_by[seq] = tokens, sets
        self.positions[seq], self.following[seq] = positions, following
        self._unshare_from(seq, 0)
        return True

    def seq_floor(self, seq: int) -> int:
        return 0 if self.partial_removal else max(self._at(seq), default=-1) + 1

    def seq_checkpoint(self, seq: int) -> bytes:
        return json.dumps(self.cells[seq]).encode().ljust(self.n_checkpoint_bytes)

    def seq_rewind(self, seq: int, checkpoint: bytes, n_pos: int) -> bool:
        tokens = json.loads(checkpoint)
        n = sum(pos < n_pos for pos in self._at(seq))
        assert tokens == self.cells[seq][:n], "a checkpoint of other tokens"
        self._truncate(seq, n)
        return True

    def wipe(self) -> None:
        assert not any(self.cells.values()), "a sequence still has cells"
        self.n_wipes += 1

    def close(self) -> None:
        assert not self.closed, "a runner was closed twice"
        assert all(s.closed for s in self.samplers), "a sampler was not closed before its runner"
        self.closed = True


class FakeEmbeddingRunner:
    """A fake context for embeddings. A vector depends on all tokens of its input and their order.

    ``on_embed`` gets each batch first and may raise. Each batch then takes one permit of ``steps``.
    """

    def __init__(
        self,
        *,
        pooling: Pooling = Pooling.MEAN,
        n_seq: int = 8,
        n_ubatch: int = 128,
        n_ctx_seq: int = 256,
        steps: threading.Semaphore | None = None,
        on_embed: Callable[[Sequence[Sequence[int]]], None] | None = None,
    ) -> None:
        n_embd = 2 if pooling is Pooling.RANK else 4
        whole = pooling in (Pooling.MEAN, Pooling.CLS)
        self.info = EmbedderInfo(pooling, n_embd, n_seq, 64, n_ubatch, n_ctx_seq, whole)
        self.vocab = FakeVocab()
        self.steps = steps
        self.on_embed = on_embed
        self.batches: list[list[int]] = []  # tokens of each input of each call
        self.closed = False

    takes_media = False

    def embed_media(self, prompt: MediaPrompt, on_part: object) -> Vectors:
        raise AssertionError("it does not support media")

    def embed(self, inputs: Sequence[Sequence[int]], on_part: Callable[[], None] = lambda: None) -> list[Vectors]:
        assert not self.closed
        if self.on_embed is not None:
            self.on_embed(inputs)
        if self.steps is not None:
            assert self.steps.acquire(timeout=100), "no permit for a step"
        sizes = [len(tokens) for tokens in inputs]
        assert 0 < len(inputs) <= self.info.n_seq
        assert len(inputs) == 1 or sum(sizes) <= self.info.n_pack, f"{sizes} tokens in one batch"
        self.batches.append(sizes)
        return [self.vectors(tokens) for tokens in inputs]

    def vectors(self, tokens: Sequence[int]) -> Vectors:
        """Return the vectors of one input."""
        n = self.info.n_embd
        if self.info.pooling is Pooling.NONE:
            return np.array([[token + i for i in range(n)] for token in tokens], np.float32)
        in_order = sum((i + 1) * token for i, token in enumerate(tokens)) % 1009
        return np.array([[in_order, sum(tokens), len(tokens), 1][:n]], np.float32)

    def close(self) -> None:
        assert not self.closed, "a runner was closed twice"
        self.closed = True


class FakeReader:
    """Turns media into text, such as ``(image 16x12)``. Prompts and replies then show which media a model received."""

    marker = "<__media__>"
    fingerprint = "fake projector"

    def __init__(self, vocab: FakeVocab, kinds: frozenset[BitmapKind]) -> None:
        self.vocab, self.kinds = vocab, kinds
        self.sample_rate = 16000 if "audio" in kinds else 0

    def tokenize(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> MediaPrompt:
        tokens = [BOS] if add_special else []
        for part in parts:
            text = part if isinstance(part, str) else f"({part.kind} {part.width}x{part.height})"
            special = parse_special and not isinstance(part, PlainText)
            tokens += self.vocab.tokenize(text, add_special=False, parse_special=special)
        return MediaPrompt(tokens)

    def count(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> int:
        return len(self.tokenize(parts, add_special=add_special, parse_special=parse_special).tokens)


class FakeWeights:
    """Weights that create `FakeRunner`s and store them in `runners` for tests.

    A model that is configured for embeddings gets a `FakeEmbeddingRunner`. It generates text only without a pooling.
    """

    def __init__(
        self,
        spec: ModelSpec,
        runner: Callable[[], FakeRunner],
        fim: str = "file",
        embedder: Callable[[], FakeEmbeddingRunner] | None = None,
        media: frozenset[BitmapKind] = frozenset(),
    ) -> None:
        self.spec = spec
        self.info = ModelInfo(
            description="fake 1B F32",
            ftype="all F32",
            vocab_type=2,
            n_vocab=260,
            n_ctx_train=4096,
            n_embd=8,
            n_params=1000,
            size=4000,
            bos_token="<s>",
            eos_token="</s>",
            chat_template=CHATML,
            metadata={"general.architecture": "fake", "general.name": "fake"},
            fingerprint=f"fake:{spec.path}",
            generates=not spec.native.pooling,
            embeds=spec.native.embedding is True or spec.native.pooling != "",
            media=media,
            media_marker=FakeReader.marker if media else "",
        )
        self.make_embedder = embedder or (lambda: FakeEmbeddingRunner(pooling=Pooling(spec.native.pooling or "mean")))
        self.embedders: list[FakeEmbeddingRunner] = []
        self.vocab = FakeVocab(fim)
        self.media: MediaReader | None = None
        if media:
            self.media = FakeReader(self.vocab, media)
        self.make = runner
        self.runners: list[FakeRunner] = []
        self.closed = False

    def runner(self) -> FakeRunner:
        self.runners.append(self.make())
        files = self.spec.native.lora
        if files:
            self.runners[-1].adapters = tuple(
                Adapter(
                    i if f.id is None else f.id,
                    *(str(f.path), f.scale),
                    fingerprint=f"fake:{f.path}",
                    name=f.name,
                    n_bytes=10,
                )
                for i, f in enumerate(files)
            )
        return self.runners[-1]

    def embedding_runner(self) -> FakeEmbeddingRunner:
        self.embedders.append(self.make_embedder())
        return self.embedders[-1]

    def footprint(self) -> Footprint:
        return {HOST: Bytes(weights=self.info.size)}

    def close(self) -> None:
        assert all(runner.closed for runner in self.runners), "weights were freed before a runner"
        assert all(embedder.closed for embedder in self.embedders), "weights were freed before a runner"
        self.closed = True


class FakeVocabulary:
    def __init__(self, fim: str) -> None:
        self.vocab = FakeVocab(fim)

    def close(self) -> None:
        pass


class Measures:
    """The memory methods of a loader: 8 GiB are free, models use no memory, and there are no devices."""

    def uses_devices(self, spec: ModelSpec) -> bool:
        return False

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        return Fit(spec)

    def least(self, spec: ModelSpec) -> Footprint:
        return {}

    def memory(self) -> Mapping[str, Memory]:
        return {HOST: Memory(16 << 30, 8 << 30)}


class FakeLoader(Measures):
    """Loads without delay. ``failing`` maps model ids to the errors of their loads.

    ``gate``: an event that each load waits for after it has reported a progress of 0.5. Without ``runner``, other
    arguments are passed to `FakeRunner`.
    """

    def __init__(
        self,
        *,
        failing: Mapping[str, str] | None = None,
        gate: threading.Event | None = None,
        runner: Callable[[], FakeRunner] | None = None,
        fim: str = "file",
        embedder: Callable[[], FakeEmbeddingRunner] | None = None,
        media: frozenset[BitmapKind] = frozenset(),
        **options: Any,
    ) -> None:
        self.fim = fim
        self.kinds = media
        self.make_embedder = embedder
        self.failing = dict(failing or {})
        self.gate = gate
        self.make = runner or (lambda: FakeRunner(**options))
        self.loaded: list[FakeWeights] = []

    def vocabulary(self, spec: ModelSpec) -> "FakeVocabulary":
        return FakeVocabulary(self.fim)

    def describe(self, spec: ModelSpec) -> ModelInfo:
        if spec.id in self.failing:
            raise ModelFailed(spec.id, self.failing[spec.id])
        return FakeWeights(spec, self.make, media=self.kinds).info

    def media_kinds(self, spec: ModelSpec) -> frozenset[BitmapKind]:
        return self.kinds

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        if not progress(0.5):
            raise ModelFailed(spec.id, "cancelled")
        if self.gate is not None:
            assert self.gate.wait(100), "the gate was never opened"
        if spec.id in self.failing:
            raise ModelFailed(spec.id, self.failing[spec.id])
        if not progress(1.0):
            raise ModelFailed(spec.id, "cancelled")
        self.loaded.append(FakeWeights(spec, self.make, self.fim, self.make_embedder, self.kinds))
        return self.loaded[-1]


def evaluations(runs: Iterable[tuple[int, int]], n_ubatch: int) -> int:
    """Return the number of ubatches of a batch with `runs` of (sequence id, number of tokens), without unified KV.

    Follows llama-batch.cpp, split_equal with ``sequential``.
    """
    remaining = [(seq, n) for seq, n in runs if n]
    n_evaluations = 0
    while remaining:
        last, members = remaining[0][0], [0]
        for i in range(1, len(remaining)):
            if len(members) == n_ubatch:
                break
            if remaining[i][0] == last + 1:
                members.append(i)
                last += 1
        shortest = min(remaining[i][1] for i in members)
        n_each = min(shortest, max(n_ubatch // len(members), 1))
        for i in members:
            remaining[i] = remaining[i][0], remaining[i][1] - n_each
        remaining = [(seq, n) for seq, n in remaining if n]
        n_evaluations += 1
    return n_evaluations
