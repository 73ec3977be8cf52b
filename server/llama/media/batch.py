"""A `llama_batch` of embeddings in the place of tokens."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.engine.media import MediaInput
from server.engine.runner_api import BatchEntry
from server.errors import InternalError
from server.llama.library import C

_M_ROPE_POSITIONS = 4
_FLOATS = ctypes.POINTER(ctypes.c_float)
_INTS = ctypes.POINTER(ctypes.c_int32)


class EmbeddingBatch:
    """Space for media of `capacity` tokens, each [n_embd]; with M-RoPE each token has four positions."""

    def __init__(self, capacity: int, n_seq: int, n_embd: int, *, mrope: bool) -> None:
        self._capacity, self._n_seq, self._n_embd, self._mrope = capacity, n_seq, n_embd, mrope
        self.native: Any = C.llama_batch()
        self._kept: list[object] = []  # what the library reads

    def fill(self, entries: Sequence[BatchEntry]) -> list[int]:
        """Put `entries` into the batch; return the index of each token whose logits are wanted, in order. Raises
        `InternalError` for input on which the library would abort.
        """
        rows, columns, sequences, outputs = [], [], [], []
        n = 0
        for entry in entries:
            media, n_own = entry.media, len(entry.tokens)
            if media is None or not n_own or entry.pos < 0 or not 0 <= entry.seq < self._n_seq:
                raise InternalError(f"a batch entry of {n_own} embeddings at {entry.pos} in sequence {entry.seq}")
            rows.append(self._rows(media, n_own))
            columns.append(self._positions(media, n_own, entry.pos))
            sequences.append(np.full(n_own, entry.seq, np.int32))
            n += n_own
            if entry.n_outputs:
                outputs.append(n - 1)
        if not 0 < n <= self._capacity:
            raise InternalError(f"a batch of {n} embeddings; 1 to {self._capacity} are possible")
        self._point(n, rows, np.concatenate(columns, axis=1), np.concatenate(sequences), outputs)
        return outputs

    def want_all(self) -> None:
        """Request an output of every token of `fill`."""
        ctypes.memset(self.native.logits, 1, self.native.n_tokens)

    def _rows(self, media: MediaInput, n: int) -> NDArray[np.float32]:
        whole = np.frombuffer(media.embeddings, np.float32)
        if len(whole) != media.span.n_tokens * self._n_embd or media.first + n > media.span.n_tokens:
            raise InternalError(f"{len(whole)} numbers are no embeddings of {media.span.n_tokens} tokens")
        return whole.reshape(-1, self._n_embd)[media.first : media.first + n]

    def _positions(self, media: MediaInput, n: int, first: int) -> NDArray[np.int32]:
        if self._mrope:
            chunk: Any = media.span.chunk
            of_all: NDArray[np.int32] = chunk.positions(first)
            return of_all[:, media.first : media.first + n]
        start = first + media.first
        return np.arange(start, start + n, dtype=np.int32)[np.newaxis]

    def _point(
        self,
        n: int,
        rows: list[NDArray[np.float32]],
        positions: NDArray[np.int32],
        sequences: NDArray[np.int32],
        outputs: list[int],
    ) -> None:
        embeddings = np.ascontiguousarray(rows[0]) if len(rows) == 1 else np.concatenate(rows)
        positions = np.ascontiguousarray(positions)
        logits = np.zeros(n, np.int8)
        logits[outputs] = 1
        ones = np.ones(n, np.int32)
        pointers = sequences.ctypes.data + 4 * np.arange(n, dtype=np.uint64)
        native = self.native
        native.n_tokens, native.token = n, None
        native.embd = embeddings.ctypes.data_as(_FLOATS)
        native.pos = positions.ctypes.data_as(_INTS)
        native.n_seq_id = ones.ctypes.data_as(_INTS)
        native.seq_id = ctypes.cast(pointers.ctypes.data, ctypes.POINTER(_INTS))
        native.logits = logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._kept = [embeddings, positions, sequences, logits, ones, pointers]
