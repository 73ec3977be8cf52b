"""A native context: decodes, and the sequences of its KV cache: truncating, copying, saving and loading them."""

import ctypes
import threading
from collections.abc import Callable, Sequence

import numpy as np

from server.engine.cache.prefix_cache import new_bytes
from server.engine.runner_api import BatchEntry, RunnerInfo
from server.errors import InternalError
from server.llama.context.batch import Batch
from server.llama.library import C, collect_errors, fast, reason
from server.llama.threads import ThreadPools

_NO_CELLS, _REJECTED = 1, -1  # statuses of llama_decode
_WHOLE, _PARTIAL = 0, 1  # LLAMA_STATE_SEQ_FLAGS_NONE, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_ROLLED_BACK, _FAILED = -1, -2
"""The next decode of the sequence executes its rollback; a decode failed, so the contents of its cells are unknown."""
_BYTE_POINTER = ctypes.POINTER(ctypes.c_uint8)


class NativeContext:
    """One context and its decodes. Every call after `close` raises `InternalError`."""

    pools: ThreadPools | None = None  # of the thread that will decode; freed with the context
    on_close: Callable[[], None] | None = None

    def __init__(self, context: int) -> None:
        self._context: int | None = context
        self._memory = C.llama_get_memory(context)
        self.lock = threading.Lock()  # held during a decode

    def _open(self) -> int:
        if self._context is None:
            raise InternalError("a context was used after it was closed")
        return self._context

    def _decode_native(self, batch: ctypes.Structure, *, wait: bool = False, causal: bool = True) -> tuple[int, str]:
        """Decode a filled batch. Returns the status and the library's reason. `wait`: for the device. `causal`: False
        for a medium whose tokens all attend to each other.
        """
        context, pools = self._open(), self.pools
        with self.lock, collect_errors(quiet=True) as errors:
            if pools is not None:
                pools.enter(context, batch.n_tokens)
            if not causal:
                C.llama_set_causal_attn(context, False)
            try:
                status: int = C.llama_decode(context, batch)
                if wait:
                    C.llama_synchronize(context)
            finally:
                if not causal:
                    C.llama_set_causal_attn(context, True)
            if pools is not None:
                pools.leave()
        return status, reason(errors, "no reason given") if status else ""

    def close(self) -> None:
        """Free the context. Idempotent."""
        context, self._context = self._context, None
        if context is not None:
            C.llama_free(context)
            if self.pools is not None:
                self.pools.close()
            if self.on_close is not None:
                self.on_close()


class NativeSequences(NativeContext):
    """The sequences of one context, as in `server.engine.runner_api.Runner`.

    With separate KV the library copies cells only in the *next* decode, but saves and loads them immediately.
    `_pending` contains the sequences of such copies; `_settle` executes them.
    """

    def __init__(self, context: int, info: RunnerInfo, n_vocab: int, n_swa: int = 0, *, stateful: bool = False) -> None:
        """`n_swa`: size of the sliding window, 0 = none. `stateful`: whether the model is recurrent or hybrid."""
        super().__init__(context)
        self.info = info
        self._batch = Batch(info.n_batch, info.n_seq, n_vocab, info.n_extra_outputs)
        self._n_swa = n_swa
        self._stateful = stateful
        self._pending: set[int] = set()
        self._n_removable: dict[int, int] = {}
        """With ``info.n_rollback``: tokens of the last decode that each sequence can remove; below 0: its state."""
        self._outputs: list[int] = []  # indices of the tokens with logits in the last decode

    def _decode_batch(
        self,
        batch: Batch,
        entries: Sequence[BatchEntry],
        lengths: Sequence[int] = (),
        *,
        wait: bool = False,
        causal: bool = True,
    ) -> bool:
        """Decode `entries`, padded to `lengths`, in `batch`. Returns False, with nothing changed, if too few cells are
        free. Raises `InternalError`. Waits for the device if there are outputs, or if `wait` is True.
        """
        self._outputs = []  # also if the batch is rejected
        outputs = batch.fill(entries, lengths)
        wait = self.info.deferred and (wait or bool(outputs))
        status, why = self._decode_native(batch.native, wait=wait, causal=causal)
        if status != _REJECTED:  # a rejected batch executes no pending copies
            self._pending.clear()
        if self.info.n_rollback and status not in (_NO_CELLS, _REJECTED):
            others = {seq: n for seq, n in self._n_removable.items() if n < 0}
            decoded = {entry.seq: _FAILED if status else self._n_saved_states(entry) for entry in entries}
            self._n_removable = others | decoded
        if status not in (0, _NO_CELLS):
            raise InternalError(f"llama_decode returned {status}: {why}")
        if status == 0:
            self._outputs = outputs
        return status == 0

    def _n_saved_states(self, entry: BatchEntry) -> int:
        """Return how many of the last tokens of a decoded entry can be rolled back, by saved recurrent states."""
        return min(len(entry.tokens) - 1, self.info.n_rollback) if entry.media is None else 0

    def seq_remove(self, seq: int, pos: int) -> bool:
        """Remove positions >= `pos`. Returns False, with nothing changed, if the rest could not be continued.

        A sliding-window cache keeps only the last positions, so the rest must still cover the window of `pos`
        (llama-server: server-context.cpp, pos_min_thold). Recurrent states cannot be truncated, except once after a
        decode by ``info.n_rollback`` of its tokens (llama-memory-recurrent.cpp, seq_rm).
        """
        self._check(seq)
        if pos <= 0:
            removed = fast.memory_seq_rm(self._memory, seq, -1, -1)
            self._n_removable.pop(seq, None)
        elif self.info.n_rollback:
            n = max(fast.memory_seq_pos_max(self._memory, seq) + 1 - pos, 0)
            n_removable = self._n_removable.get(seq, 0)
            removed = n <= max(n_removable, 0) and n_removable != _FAILED
            if removed and n:
                self._n_removable[seq] = _ROLLED_BACK
                removed = fast.memory_seq_rm(self._memory, seq, pos, -1)
        elif pos > fast.memory_seq_pos_max(self._memory, seq):
            removed = True
        elif self._n_swa and fast.memory_seq_pos_min(self._memory, seq) > max(0, pos - self._n_swa):
            removed = False
        else:
            removed = fast.memory_seq_rm(self._memory, seq, pos, -1)
        if removed:
            self._truncated(seq, pos)
        return bool(removed)

    def _truncated(self, seq: int, pos: int) -> None:
        """Called after positions >= `pos` were removed."""

    def seq_copy(self, source: int, target: int) -> None:
        """Copy all of `source` to the empty `target`."""
        self._check(source)
        self._check(target)
        if source == target or fast.memory_seq_pos_max(self._memory, target) >= 0:
            raise InternalError(f"sequence {source} cannot be copied into {target}, which is not empty")
        if self._n_removable.get(source) == _ROLLED_BACK:  # a copy would have the state from before the rollback
            rolled_back = self._set_state(source, self._state(source, _PARTIAL), _PARTIAL)
            self._n_removable[source] = 0 if rolled_back else _FAILED
        if self._n_removable.get(source) == _FAILED:
            raise InternalError(f"what sequence {source} holds is unknown")
        fast.memory_seq_cp(self._memory, source, target, -1, -1)
        if not self.info.unified:
            self._pending |= {source, target}

    def seq_drop(self, seq: int, start: int, end: int) -> None:
        """Remove positions `start` to `end` and shift later ones down. Requires cells that can be shifted and that no
        other sequence shares.
        """
        self._check(seq)
        if not self.info.can_shift:
            raise InternalError("this model's cells can't get other positions")
        if not 0 <= start < end:
            raise InternalError(f"positions {start} to {end} of sequence {seq} cannot be dropped")
        self._settle(seq)
        if not fast.memory_seq_rm(self._memory, seq, start, end):
            raise InternalError(f"sequence {seq} cannot forget positions {start} to {end}")
        fast.memory_seq_add(self._memory, seq, end, -1, start - end)
        self._truncated(seq, 0)

    def seq_save(self, seq: int) -> bytes:
        self._check(seq)
        self._settle(seq)
        return self._state(seq, _WHOLE)

    def seq_size(self, seq: int, *, partial: bool = False) -> int:
        self._check(seq)
        size: int = C.llama_state_seq_get_size_ext(self._open(), seq, _PARTIAL if partial else _WHOLE)
        if not size:  # the library caught an exception; even the state of an empty sequence has a header
            raise InternalError(f"the library does not know the size of the state of sequence {seq}")
        return size

    def _state(self, seq: int, flags: int) -> bytes:
        size = self.seq_size(seq, partial=flags == _PARTIAL)
        try:
            state, view = new_bytes(size)  # the library writes into it, because a copy would take as long as the save
        except MemoryError:
            raise InternalError(f"there is no memory for the state of sequence {seq}, {size} bytes") from None
        start = ctypes.cast(ctypes.addressof(ctypes.c_uint8.from_buffer(view)), _BYTE_POINTER)
        if C.llama_state_seq_get_data_ext(self._open(), start, size, seq, flags) != size:
            raise InternalError(f"the state of sequence {seq} could not be saved")
        return state

    def seq_load(self, seq: int, state: bytes, n_pos: int) -> bool:
        self._check(seq)
        self._settle(seq)
        fast.memory_seq_rm(self._memory, seq, -1, -1)
        self._n_removable.pop(seq, None)
        self._truncated(seq, 0)
        if not state:
            return False
        if self._set_state(seq, state, _WHOLE) and fast.memory_seq_pos_max(self._memory, seq) + 1 == n_pos:
            return True
        fast.memory_seq_rm(self._memory, seq, -1, -1)
        return False

    def _set_state(self, seq: int, state: bytes, flags: int) -> bool:
        start = ctypes.cast(np.frombuffer(state, np.uint8).ctypes.data, _BYTE_POINTER)
        size: int = C.llama_state_seq_set_data_ext(self._open(), start, len(state), seq, flags)
        return size == len(state)

    def seq_floor(self, seq: int) -> int:
        self._check(seq)
        if self.info.can_cut:
            return 0
        if self._n_swa and not self._stateful:
            oldest: int = fast.memory_seq_pos_min(self._memory, seq)
            return oldest + self._n_swa if oldest > 0 else 0
        return int(fast.memory_seq_pos_max(self._memory, seq)) + 1

    def seq_checkpoint(self, seq: int) -> bytes:
        """Return the part that `seq_remove` cannot restore (recurrent states, window cells), for `seq_rewind`."""
        self._check(seq)
        if self._n_swa:
            self._settle(seq)
        return self._state(seq, _PARTIAL)

    def seq_rewind(self, seq: int, state: bytes, n_pos: int) -> bool:
        self._check(seq)
        if self._n_swa:  # a copy with separate KV has a recurrent state immediately, but not the cells of a window
            self._settle(seq)
        restored = (
            self._set_state(seq, state, _PARTIAL)
            and fast.memory_seq_rm(self._memory, seq, n_pos, -1)
            and fast.memory_seq_pos_max(self._memory, seq) + 1 == n_pos
        )
        self._n_removable.pop(seq, None)
        if not restored:
            fast.memory_seq_rm(self._memory, seq, -1, -1)
        self._truncated(seq, n_pos if restored else 0)
        return bool(restored)

    def _settle(self, seq: int) -> None:
        """Execute pending copies from or to `seq`, by decoding a token that is removed afterwards."""
        if seq not in self._pending:
            return
        last = [fast.memory_seq_pos_max(self._memory, s) for s in range(self.info.n_seq)]
        candidate = min(range(self.info.n_seq), key=last.__getitem__)  # empty, or the shortest one
        pos = last[candidate] + 1
        if pos >= self.info.n_ctx_seq:
            raise InternalError("a pending copy could not be settled: every sequence is full")
        before = self._state(candidate, _PARTIAL) if pos and self._stateful else b""
        self._decode_batch(self._batch, [BatchEntry(candidate, pos, (0,))])
        if before and not self._set_state(candidate, before, _PARTIAL):
            raise InternalError("a recurrent state could not be put back")
        if not fast.memory_seq_rm(self._memory, candidate, pos if pos else -1, -1):
            raise InternalError("a pending copy could not be settled")
        self._n_removable.pop(candidate, None)

    def _check(self, seq: int) -> None:
        self._open()
        if not 0 <= seq < self.info.n_seq:
            raise InternalError(f"sequence {seq} of {self.info.n_seq}")
