"""A preallocated `llama_batch`, filled by slices (30 ns per token and field, not 5 us), and the padding of runs."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.engine.media import MediaInput
from server.engine.runner_api import BatchEntry
from server.errors import InternalError
from server.llama.library import C


class Batch:
    """Space for `capacity` tokens, each in one sequence. The memory belongs to ctypes, so nothing must be freed.

    The arrays are ctypes', not numpy's: a slice of a few tokens, as in most steps, takes a third of the time.
    """

    def __init__(self, capacity: int, n_seq: int, n_vocab: int, n_extra_outputs: int = 0, n_pos: int = 1) -> None:
        """`n_extra_outputs`: outputs besides one for each sequence. `n_pos`: positions of each token."""
        self.capacity = capacity
        self._n_seq = n_seq
        self._max_outputs = n_seq + n_extra_outputs
        self._n_vocab = n_vocab
        # Any: typeshed wants c_int32 objects in slices, ctypes takes ints
        self._token: Any = (ctypes.c_int32 * capacity)()
        self._pos: Any = (ctypes.c_int32 * (capacity * n_pos))()
        self._seq: Any = (ctypes.c_int32 * capacity)()
        self._one = (ctypes.c_int32 * capacity)(*[1] * capacity)
        self._logits: Any = (ctypes.c_int8 * capacity)()
        int_pointer = ctypes.POINTER(ctypes.c_int32)
        # n_tokens pointers, each to that token's own element of _seq
        first = ctypes.addressof(self._seq)
        self._seq_pointers = (ctypes.c_void_p * capacity)(*range(first, first + 4 * capacity, 4))
        self.native: ctypes.Structure = C.llama_batch()
        self.native.token = self._token
        self.native.pos = self._pos
        self.native.n_seq_id = self._one
        self.native.seq_id = ctypes.cast(self._seq_pointers, ctypes.POINTER(int_pointer))
        self.native.logits = self._logits

    def fill(self, entries: Sequence[BatchEntry], lengths: Sequence[int] = ()) -> list[int]:
        """Put `entries` into the batch. Returns the indices of the tokens with outputs, in order.

        Each entry is padded to its number of tokens in `lengths` with its last token, without outputs. Raises
        `InternalError` for input on which the library would abort: an empty batch, too many tokens or outputs, ids out
        of range.
        """
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[int] = []
        outputs: list[int] = []
        for i, entry in enumerate(entries):
            n = len(entry.tokens)
            if not 0 < n >= entry.n_outputs or entry.pos < 0 or not 0 <= entry.seq < self._n_seq:
                raise InternalError(f"a batch entry of {n} tokens at {entry.pos} in sequence {entry.seq}")
            tokens += entry.tokens
            if entry.n_outputs == 1:
                outputs.append(len(tokens) - 1)
            elif entry.n_outputs:
                outputs += range(len(tokens) - entry.n_outputs, len(tokens))
            if lengths and lengths[i] > n:
                tokens += [tokens[-1]] * (lengths[i] - n)
                n = lengths[i]
            positions += range(entry.pos, entry.pos + n)
            sequences += [entry.seq] * n
        self._check(tokens, positions, outputs)
        self._token[: len(tokens)] = tokens
        self._write(positions, sequences, outputs)
        return outputs

    def _write(self, positions: Sequence[int], sequences: Sequence[int], outputs: Sequence[int]) -> None:
        """Write everything except tokens or embeddings."""
        n = len(sequences)
        self._pos[: len(positions)] = positions
        self._seq[:n] = sequences
        flags = bytearray(n)
        for output in outputs:
            flags[output] = 1
        # not ctypes.memset, which releases the GIL: the event loop would take it, and the decode would wait
        self._logits[:n] = flags
        self.native.n_tokens = n

    def want_all(self) -> None:
        """Request an output of every token of `fill`, as embedding contexts require."""
        n = self.native.n_tokens
        self._logits[:n] = b"\1" * n

    def _check(self, tokens: list[int], positions: list[int], outputs: list[int]) -> None:
        if not 0 < len(tokens) <= self.capacity:
            raise InternalError(f"a batch of {len(tokens)} tokens; 1 to {self.capacity} are possible")
        if len(outputs) > self._max_outputs:
            raise InternalError(f"a batch with {len(outputs)} outputs; at most {self._max_outputs} are possible")
        if min(tokens) < 0 or max(tokens) >= self._n_vocab:
            raise InternalError(f"a batch with a token id outside the vocabulary of {self._n_vocab}")
        if max(positions) >= 1 << 31:
            raise InternalError("a batch with a position past 32 bits")


class EmbeddingBatch(Batch):
    """Space for embeddings of `capacity` media tokens, each [n_embd]; with M-RoPE each token has four positions."""

    def __init__(self, capacity: int, n_seq: int, n_embd: int, *, mrope: bool) -> None:
        super().__init__(capacity, n_seq, 0, n_pos=4 if mrope else 1)
        self._n_embd, self._mrope = n_embd, mrope
        self.native.token = None
        self._embeddings = np.empty((0, n_embd), np.float32)  # referenced while the library reads it

    def fill(self, entries: Sequence[BatchEntry], lengths: Sequence[int] = ()) -> list[int]:
        """Put `entries` into the batch, like `Batch.fill` but without padding."""
        rows, columns, sequences, outputs = [], [], list[int](), list[int]()
        for entry in entries:
            media, n = entry.media, len(entry.tokens)
            if media is None or not n or entry.pos < 0 or not 0 <= entry.seq < self._n_seq:
                raise InternalError(f"a batch entry of {n} embeddings at {entry.pos} in sequence {entry.seq}")
            rows.append(self._rows(media, n))
            columns.append(self._positions(media, n, entry.pos))
            sequences += [entry.seq] * n
            if entry.n_outputs:
                outputs.append(len(sequences) - 1)
        if not 0 < len(sequences) <= self.capacity:
            raise InternalError(f"a batch of {len(sequences)} embeddings; 1 to {self.capacity} are possible")
        self._embeddings = np.ascontiguousarray(rows[0]) if len(rows) == 1 else np.concatenate(rows)
        self.native.embd = self._embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._write(np.concatenate(columns, axis=1).ravel().tolist(), sequences, outputs)
        return outputs

    def _rows(self, media: MediaInput, n: int) -> NDArray[np.float32]:
        values = np.frombuffer(media.embeddings, np.float32)
        if len(values) != media.span.n_tokens * self._n_embd or media.first + n > media.span.n_tokens:
            raise InternalError(f"{len(values)} numbers are no embeddings of {media.span.n_tokens} tokens")
        return values.reshape(-1, self._n_embd)[media.first : media.first + n]

    def _positions(self, media: MediaInput, n: int, first: int) -> NDArray[np.int32]:
        """Return the positions of `n` tokens, [n_pos, n], of a medium whose first token is at `first`."""
        if self._mrope:
            chunk: Any = media.span.chunk
            positions: NDArray[np.int32] = chunk.positions(first)
            return positions[:, media.first : media.first + n]
        start = first + media.first
        return np.arange(start, start + n, dtype=np.int32)[np.newaxis]


# ---- padding: with separate KV the library evaluates together only adjacent sequences with equal numbers of tokens
# (llama-batch.cpp, split_equal with ``sequential``). Each additional length in a group of adjacent sequences reads all
# weights once more. If it costs less, a shorter run is padded with tokens, which the runner removes afterwards.


def padded_lengths(entries: Sequence[BatchEntry], evaluation_tokens: float, n_ubatch: int) -> list[int]:
    """Return the number of tokens with which each of `entries` is decoded. Entries without outputs are not padded,
    because they continue in the next step. `evaluation_tokens`: tokens that take as long as an additional evaluation.
    """
    lengths = [len(entry.tokens) for entry in entries]
    start = 0
    for end in range(1, len(entries) + 1):
        if end == len(entries) or entries[end].seq != entries[end - 1].seq + 1:
            group = [i for i in range(start, end) if entries[i].n_outputs]
            for i, n in zip(group, _padded([lengths[i] for i in group], evaluation_tokens, n_ubatch), strict=True):
                lengths[i] = n
            start = end
    return lengths


def _padded(lengths: list[int], evaluation_tokens: float, n_ubatch: int) -> list[int]:
    """Return `lengths` of adjacent sequences, some of them raised to a longer one.

    From the longest length down, raises those shorter lengths to it that lower the cost most.
    """
    target = max(lengths, default=0)
    while target:
        best, best_floor, best_cost = lengths, target, sum(lengths) + evaluation_tokens * n_evaluations(lengths)
        for floor in sorted({n for n in lengths if n < target}, reverse=True):
            raised = [target if floor <= n < target else n for n in lengths]
            if raised.count(target) * target > n_ubatch:
                break
            cost = sum(raised) + evaluation_tokens * n_evaluations(raised)
            if cost < best_cost:
                best, best_floor, best_cost = raised, floor, cost
        lengths, target = best, max([n for n in lengths if n < best_floor], default=0)
    return lengths


def n_evaluations(lengths: Sequence[int]) -> int:
    """Return the number of evaluations of adjacent sequences with these numbers of tokens. The first evaluation takes
    the shortest number of all. Sequences with tokens left form smaller groups, which are evaluated in the same way.
    """
    n, levels = 0, list[int]()  # `levels`: numbers of tokens at which the groups around the current sequence begin
    for length in lengths:
        while levels and levels[-1] > length:
            levels.pop()
        if not levels or levels[-1] < length:
            levels.append(length)
            n += 1
    return n
