"""A draft model's context: decodes, and returns the most probable next token."""

import ctypes
import math
from collections.abc import Callable, Sequence

import numpy as np

from server.engine.runner_api import BatchEntry, RunnerInfo
from server.errors import InternalError
from server.llama.context.batch import Batch
from server.llama.context.sequences import Sequences
from server.llama.context.thread_pools import ThreadPools
from server.llama.library import C, collect_errors, fast, reason
from server.llama.sampling.candidates import Logits

_FAR = 16.0  # what lies so far below the highest logit does not change the sum


class LlamaDraftRunner:
    """`server.engine.runner_api.DraftRunner` over a native context, used by one thread.

    Tokens after the first `n_shared` of its `n_vocab` do not exist in the target model.
    """

    def __init__(
        self,
        context: int,
        info: RunnerInfo,
        n_vocab: int,
        n_shared: int,
        *,
        deferred: bool,
        pools: ThreadPools | None = None,
        on_close: Callable[[], None],
    ) -> None:
        self.info = info
        self._context: int | None = context
        self._batch = Batch(info.n_batch, info.n_seq, n_vocab)
        self._n_shared = min(n_shared, n_vocab)
        self._deferred = deferred
        self._pools = pools
        self._on_close = on_close
        self._outputs: list[int] = []
        self._sequences = Sequences(context, info, 0, self.decode)
        self._logits_type = ctypes.c_float * n_vocab

    def _open(self) -> int:
        if self._context is None:
            raise InternalError("a draft context was used after it was closed")
        return self._context

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        """Decode in one call. True: done. False: no KV room, and nothing was changed. Raises `InternalError`."""
        context = self._open()
        self._outputs = []
        outputs = self._batch.fill(entries)
        if self._pools is not None:
            self._pools.enter(context, self._batch.native.n_tokens)
        with collect_errors(quiet=True) as errors:
            status = C.llama_decode(context, self._batch.native)
            if self._deferred:
                C.llama_synchronize(context)
        if self._pools is not None:
            self._pools.leave()
        self._sequences.decoded(status)
        if status not in (0, 1):
            raise InternalError(f"llama_decode returned {status}: {reason(errors, 'no reason given')}")
        self._outputs = outputs if status == 0 else []
        return bool(status == 0)

    def best(self, output: int) -> tuple[int, float]:
        """Return the most probable token after the `output`-th wanted logits of the last decode, and its
        probability.
        """
        address = fast.get_logits_ith(self._open(), self._outputs[output])
        if not address:
            raise InternalError("the library has no logits for a token that asked for them")
        every: Logits = np.frombuffer(memoryview(self._logits_type.from_address(address)), np.float32)
        logits = every[: self._n_shared]
        token = int(logits.argmax())
        highest = float(logits[token])
        if not math.isfinite(highest):
            raise InternalError("the draft model computed logits that are not numbers")
        near = logits[logits > highest - _FAR]
        return token, 1.0 / float(np.exp(near - highest).sum())

    def seq_remove(self, seq: int, pos: int) -> bool:
        """Forget positions >= `pos` of `seq`; False when that can't be."""
        self._open()
        return self._sequences.remove(seq, pos)

    def seq_copy(self, source: int, target: int) -> None:
        """Make `target`, which must be empty, a copy of the whole of `source`."""
        self._open()
        self._sequences.copy(source, target)

    def close(self) -> None:
        """Free the context; every later call raises. Once is enough."""
        context, self._context = self._context, None
        if context is not None:
            C.llama_free(context)
            if self._pools is not None:
                self._pools.close()
            self._on_close()
