"""Compute threads: their number, their CPUs, and fewer of them while other processes use the CPUs.

The number follows llama.cpp's rule (common/common.cpp, common_cpu_get_num_math) within the CPUs that this process may
use. Instances share them, because more threads than cores wait for each other in every operation.
"""

import contextlib
import ctypes
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from server.engine.instances import NICE, PRIORITIES_BY_THREAD, bind
from server.errors import InternalError, ModelFailed
from server.llama.devices import procedure_address, registry_by_name
from server.llama.library import C
from server.llama.library import bind as bind_function
from server.pool.spec import LoadParams, ModelSpec, ThreadPlacement
from server.sandbox.memory import control_groups

_CPUS = Path("/sys/devices/system/cpu")
_PERFORMANCE_CORES = Path("/sys/devices/cpu_core/cpus")  # exists on hybrid Intel CPUs only


def bound(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with placements on existing CPUs, and automatic numbers of threads. Raises `ModelFailed`."""
    _check_priority(spec)
    each = _n_threads_of_instance(spec)

    def placed(native: LoadParams, name: str) -> LoadParams:
        n, n_batch, placement = each, 0, native.placement
        if placement is not None:
            cpus = _existing(spec.id, f"{name}cpu_mask, {name}cpu_range", placement.cpus)
            batch = _existing(spec.id, f"{name}cpu_mask_batch, {name}cpu_range_batch", placement.cpus_batch)
            native = replace(native, placement=replace(placement, cpus=cpus, cpus_batch=batch))
            n, n_batch = len(cpus) or each, len(batch)
        return replace(
            native,
            n_threads=n if n and native.n_threads < 0 else native.n_threads,
            n_threads_batch=n_batch if n_batch and native.n_threads_batch < 0 else native.n_threads_batch,
        )

    draft = spec.draft and replace(spec.draft, native=placed(spec.draft.native, "draft_"))
    return replace(spec, native=placed(spec.native, ""), draft=draft)


def _n_threads_of_instance(spec: ModelSpec) -> int:
    """Return the threads of each instance, 0 if the library decides. Raises `ModelFailed`."""
    sets, n_instances = spec.engine.cpus, spec.native.instances
    if not sets:
        return 0 if n_instances == 1 else max(n_threads(-1) // n_instances, 1)
    allowed = _allowed(spec.id, "cpu_range, cpu_mask")
    fewest = min(len(some & allowed) for some in sets)
    if not fewest:
        here = ", ".join(map(str, sorted(allowed)))
        raise ModelFailed(spec.id, f"cpu_range, cpu_mask: an instance has no CPU, there are only {here}")
    return max(fewest // n_instances, 1) if len(sets) == 1 else fewest


def _existing(model: str, names: str, wanted: frozenset[int]) -> frozenset[int]:
    """Return those of the `wanted` CPUs that this process may use. Raises `ModelFailed` if it may use none."""
    allowed = _allowed(model, names)
    if wanted and not wanted & allowed:
        there = ", ".join(map(str, sorted(allowed)))
        raise ModelFailed(model, f"{names}: there are only CPUs {there}; use some of them")
    return wanted & allowed


def _allowed(model: str, names: str) -> set[int]:
    if not hasattr(os, "sched_setaffinity"):
        raise ModelFailed(model, f"{names}: this system can't bind threads to CPUs")
    return os.sched_getaffinity(0)


def _check_priority(spec: ModelSpec) -> None:
    """Check the priority by setting it in a temporary thread."""
    prio = spec.engine.prio
    if not prio:
        return
    if not PRIORITIES_BY_THREAD:
        raise ModelFailed(spec.id, "prio: this system gives no priorities to threads")
    with ThreadPoolExecutor(1, "priority") as once:
        try:
            once.submit(bind, frozenset[int](), prio).result()
        except OSError as error:
            reason = f"the system refuses nice {NICE[prio]} ({error.strerror}): it takes the capability SYS_NICE"
            raise ModelFailed(spec.id, f"prio {prio}: {reason}") from None


def n_threads(wanted: int) -> int:
    """`wanted`, or for -1 the number of physical cores, and for 0 every logical one."""
    if wanted > 0:
        return min(wanted, 512)  # GGML_MAX_N_THREADS
    allowed = usable_cpus()
    if wanted == 0:
        return allowed
    return max(1, min(physical_cores(), allowed))


def usable_cpus() -> int:
    """Return the number of logical CPUs this process may use: affinity mask and control group quotas."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in control_groups():
        with contextlib.suppress(OSError, ValueError):  # "max" = no quota
            quota, period = map(int, (group / "cpu.max").read_text().split()[:2])
            allowed = min(allowed, math.ceil(quota / period))
    return max(1, allowed)


def physical_cores() -> int:
    """Return the number of cores, not hardware threads; on hybrid CPUs performance cores only."""
    siblings, fast = set(), _fast_cpus()
    for cpu in _CPUS.glob("cpu[0-9]*"):
        if fast and int(cpu.name[3:]) not in fast:
            continue
        try:
            siblings.add((cpu / "topology" / "thread_siblings").read_text())
        except OSError:
            continue
    if siblings:
        return len(siblings)
    logical = os.cpu_count() or 4
    return logical if logical <= 4 else logical // 2


def _fast_cpus() -> frozenset[int]:
    try:
        text = _PERFORMANCE_CORES.read_text().strip()
    except OSError:
        return frozenset()
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


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


_defaults = bind_function(C._lib, "ggml_threadpool_params_init", None, ctypes.POINTER(_Params), ctypes.c_int)
_attach = bind_function(C._lib, "llama_attach_threadpool", None, _PTR, _PTR, _PTR)
_NEW = ctypes.CFUNCTYPE(_PTR, ctypes.POINTER(_Params))
_FREE = ctypes.CFUNCTYPE(None, _PTR)


class ThreadPools:
    """The thread pools of one context; its thread calls `enter` before each decode and `leave` after it."""

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
        """Free the pools, after the context."""
        for pool in self._pools:
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
    return int(procedure_address(registry_by_name(b"CPU"), name))


INTERVAL_S = 0.1  # between two looks: ten of the kernel's ticks, or more
LEAST_IDLE_S = 0.01  # shorter times between two decodes are spent on sampling
MOST_SHARE = 0.005  # of the time, for looks: with hundreds of CPUs one takes milliseconds
GIVE_UP, TAKE_BACK = 0.5, 0.3
"""Of a CPU: what others may use of one of ours until a thread less computes, and until it is back."""
_STAT = Path("/proc/stat")
_USER, _NICE, _SYSTEM, _IRQ, _SOFT_IRQ = 0, 1, 2, 5, 6
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class Use:
    """CPU use of the CPUs this thread may run on: their number, and the seconds used by others and by us until
    ``at``; and the threads of the whole system that run or could run now, with this one.
    """

    at: float
    others_s: float
    own_s: float
    n_cpus: int
    n_running: int = 1


def measured() -> Use:
    """Read CPU use from the kernel. Niced processes give way to us and do not count, unless this thread is niced."""
    counted = [_USER, _SYSTEM, _IRQ, _SOFT_IRQ]
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        counted.append(_NICE)  # what we compute is in it
    mine = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    ticks, n_running = 0, 1
    for line in _STAT.read_text().splitlines():
        name, *fields = line.split()
        if name in mine:
            ticks += sum(int(fields[i]) for i in counted)
        elif name == "procs_running":
            n_running = int(fields[0])
    own_s = time.process_time()
    return Use(time.monotonic(), ticks / _TICKS_PER_S - own_s, own_s, len(mine), n_running)


class ComputeThreads:
    """The number of compute threads of one context, updated by its step thread before each decode.

    The threads of a step meet at hundreds of barriers, where each waits for the slowest: one that shares its CPU with
    another process. Fewer threads with a CPU each are faster (benchmarks/experiments.md).

    Between half of the configured number and all of it: processes that take all they get would otherwise drive us
    out. All of it if the step thread has a negative nice value.
    """

    def __init__(self, n: int, n_batch: int, look: Callable[[], Use] = measured) -> None:
        self._wanted = (n, n_batch)
        self._now = self._most = max(n, n_batch)
        self._look = look if self._most > 1 and _STAT.exists() else None
        self._next_look = 0.0
        self._seen: Use | None = None
        self._ended = time.monotonic()
        self._idle_s = 0.0  # since the last look

    def change(self) -> tuple[int, int] | None:
        """Return the numbers of threads for decode and prefill if they are due and differ from the last ones.

        Others take no CPU from us while we are idle, so all that they may have used then does not count. After
        `INTERVAL_S` without a decode the number stays as it was, or is that of the CPUs on which no other thread runs,
        if there are more.
        """
        if self._look is None:
            return None
        began = time.monotonic()
        idle_s = began - self._ended
        self._idle_s += idle_s if idle_s >= LEAST_IDLE_S else 0.0
        if began < self._next_look:
            return None
        before, use = self._seen, self._look()
        idle_in_all_s, self._idle_s = self._idle_s, 0.0
        self._seen, self._next_look = use, use.at + max(INTERVAL_S, (use.at - began) / MOST_SHARE)
        if before is None:
            return None
        computed_s = max(use.at - before.at - idle_in_all_s, INTERVAL_S)
        others = max(0.0, use.others_s - before.others_s - use.n_cpus * idle_in_all_s) / computed_s
        if os.getpriority(os.PRIO_PROCESS, 0) < 0:
            now = self._most
        elif idle_s >= INTERVAL_S:
            now = max(self._now, min(int(use.n_cpus - (use.n_running - 1) + TAKE_BACK), self._most))
        else:
            now = self._fitting(use.n_cpus - others)
        if now == self._now:
            return None
        self._now = now
        n, n_batch = self._wanted
        return min(n, now), min(n_batch, now)

    def ended(self) -> None:
        """Record that a decode ended."""
        self._ended = time.monotonic()

    def _fitting(self, free: float) -> int:
        fewer, more = int(free + 1 - GIVE_UP), int(free + TAKE_BACK)
        if fewer < self._now:
            return max(fewer, (self._most + 1) // 2)
        return min(more, self._most) if more > self._now else self._now
