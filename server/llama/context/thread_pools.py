"""CPU affinity of a context's steps, if batches use other CPUs than single tokens, or each thread its own.

llama.cpp common/common.cpp, common_threadpools: one pool for a single token, one for batches. Their compute threads
may be shared (OpenMP), so each evaluation moves them to its pool's CPUs, including the decoding thread.
"""

import ctypes
import os

from server.errors import InternalError
from server.llama.library import C, bind
from server.pool.spec import LoadParams, ThreadPlacement

_MOST_CPUS = 512  # GGML_MAX_N_THREADS
_PTR = ctypes.c_void_p


class _Params(ctypes.Structure):
    """ggml.h, ggml_threadpool_params."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * _MOST_CPUS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


_defaults = bind(C._lib, "ggml_threadpool_params_init", None, ctypes.POINTER(_Params), ctypes.c_int)
_registry = bind(C._lib, "ggml_backend_reg_by_name", _PTR, ctypes.c_char_p)
_procedure = bind(C._lib, "ggml_backend_reg_get_proc_address", _PTR, _PTR, ctypes.c_char_p)
_attach = bind(C._lib, "llama_attach_threadpool", None, _PTR, _PTR, _PTR)
_NEW = ctypes.CFUNCTYPE(_PTR, ctypes.POINTER(_Params))
_FREE = ctypes.CFUNCTYPE(None, _PTR)


class ThreadPools:
    """The thread pools of one context, for the decoding thread: call `enter` before each decode and `leave` after
    it.
    """

    def __init__(self, placement: ThreadPlacement, n_threads: int, n_threads_batch: int) -> None:
        self._placement = placement
        self._n = (n_threads, n_threads_batch)
        self._own: frozenset[int] = frozenset()
        self._cpus: tuple[frozenset[int], frozenset[int]] | None = None
        self._pools: list[int] = []

    def enter(self, context: int, n_tokens: int) -> None:
        """Be where a decode of so many tokens is computed."""
        if self._cpus is None:
            self._cpus = self._attached(context)
        os.sched_setaffinity(0, self._cpus[n_tokens > 1])  # a single thread is moved by nobody else

    def leave(self) -> None:
        """Be again where this thread was: it samples, too."""
        os.sched_setaffinity(0, self._own)

    def close(self) -> None:
        """Free the pools, after the context. Idempotent."""
        pools, self._pools = self._pools, []
        for pool in pools:
            _FREE(_cpu_procedure(b"ggml_threadpool_free"))(pool)

    def _attached(self, context: int) -> tuple[frozenset[int], frozenset[int]]:
        """Attach the pools. The step thread already runs on its instance's CPUs (`server.engine.instances.bind`)."""
        self._own = frozenset(os.sched_getaffinity(0))
        placement = self._placement
        alone = placement.cpus or self._own
        cpus = (alone, placement.cpus_batch or alone)
        strict = (placement.strict, placement.strict_batch)
        for n, some, one_each in zip(self._n, cpus, strict, strict=True):
            self._pools.append(_pool(n, some, strict=one_each))
        _attach(context, *self._pools)
        return cpus


def thread_pools(native: LoadParams, params: ctypes.Structure) -> ThreadPools | None:
    """Return the thread pools of a context; None if the library places its threads."""
    if native.placement is None:
        return None
    return ThreadPools(native.placement, params.n_threads, params.n_threads_batch)


def _pool(n_threads: int, cpus: frozenset[int], *, strict: bool) -> int:
    params = _Params()
    _defaults(params, n_threads)
    for cpu in cpus:
        if cpu < _MOST_CPUS:
            params.cpumask[cpu] = True
    params.strict_cpu = strict
    pool = _NEW(_cpu_procedure(b"ggml_threadpool_new"))(params)
    if not pool:
        raise InternalError(f"the library makes no pool of {n_threads} threads")
    return int(pool)


def _cpu_procedure(name: bytes) -> int:
    return int(_procedure(_registry(b"CPU"), name))
