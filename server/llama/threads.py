"""Compute threads: their number, their CPUs, and a lower number while other processes use the CPUs.

The number follows llama.cpp's rule (common/common.cpp, common_cpu_get_num_math) within the CPUs that this process may
use. Instances divide the CPUs: more threads than cores would wait for each other in every operation.
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
    n_default = _n_threads_of_instance(spec)

    def placed(native: LoadParams, prefix: str) -> LoadParams:
        n, n_batch, placement = n_default, 0, native.placement
        if placement is not None:
            cpus = _usable(spec.id, f"{prefix}cpu_mask, {prefix}cpu_range", placement.cpus)
            batch = _usable(spec.id, f"{prefix}cpu_mask_batch, {prefix}cpu_range_batch", placement.cpus_batch)
            native = replace(native, placement=replace(placement, cpus=cpus, cpus_batch=batch))
            n, n_batch = len(cpus) or n_default, len(batch)
        return replace(
            native,
            n_threads=n if n and native.n_threads < 0 else native.n_threads,
            n_threads_batch=n_batch if n_batch and native.n_threads_batch < 0 else native.n_threads_batch,
        )

    draft = spec.draft and replace(spec.draft, native=placed(spec.draft.native, "draft_"))
    return replace(spec, native=placed(spec.native, ""), draft=draft)


def _n_threads_of_instance(spec: ModelSpec) -> int:
    """Return the number of threads of each instance; 0 if the library decides. Raises `ModelFailed`."""
    sets, n_instances = spec.engine.cpus, spec.native.instances
    if not sets:
        return 0 if n_instances == 1 else max(n_threads(-1) // n_instances, 1)
    allowed = _allowed(spec.id, "cpu_range, cpu_mask")
    n_fewest = min(len(cpus & allowed) for cpus in sets)
    if not n_fewest:
        listed = ", ".join(map(str, sorted(allowed)))
        raise ModelFailed(spec.id, f"cpu_range, cpu_mask: an instance has no CPU, there are only {listed}")
    return max(n_fewest // n_instances, 1) if len(sets) == 1 else n_fewest


def _usable(model: str, names: str, cpus: frozenset[int]) -> frozenset[int]:
    """Return those of `cpus` that this process may use. Raises `ModelFailed` if it may use none of them."""
    allowed = _allowed(model, names)
    if cpus and not cpus & allowed:
        listed = ", ".join(map(str, sorted(allowed)))
        raise ModelFailed(model, f"{names}: there are only CPUs {listed}; use some of them")
    return cpus & allowed


def _allowed(model: str, names: str) -> set[int]:
    """Return the CPUs that this process may use. Raises `ModelFailed` if threads cannot be bound; `names`: settings."""
    if not hasattr(os, "sched_setaffinity"):
        raise ModelFailed(model, f"{names}: this system can't bind threads to CPUs")
    return os.sched_getaffinity(0)


def _check_priority(spec: ModelSpec) -> None:
    """Set the priority in a temporary thread. Raises `ModelFailed` if the system refuses it."""
    prio = spec.engine.prio
    if not prio:
        return
    if not PRIORITIES_BY_THREAD:
        raise ModelFailed(spec.id, "prio: this system gives no priorities to threads")
    with ThreadPoolExecutor(1, "priority") as executor:
        try:
            executor.submit(bind, frozenset[int](), prio).result()
        except OSError as error:
            reason = f"the system refuses nice {NICE[prio]} ({error.strerror}): it takes the capability SYS_NICE"
            raise ModelFailed(spec.id, f"prio {prio}: {reason}") from None


_MAX_THREADS = 512  # GGML_MAX_N_THREADS, which also limits a CPU mask


def n_threads(setting: int) -> int:
    """Return the number of threads for a setting: -1 is the number of physical cores, 0 that of logical CPUs."""
    if setting > 0:
        return min(setting, _MAX_THREADS)
    n_usable = usable_cpus()
    return n_usable if setting == 0 else max(1, min(physical_cores(), n_usable))


def usable_cpus() -> int:
    """Return the number of logical CPUs that the affinity mask and control group quotas allow this process."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in control_groups():
        with contextlib.suppress(OSError, ValueError):  # "max" = no quota
            quota, period = map(int, (group / "cpu.max").read_text().split()[:2])
            allowed = min(allowed, math.ceil(quota / period))
    return max(1, allowed)


def physical_cores() -> int:
    """Return the number of cores, not hardware threads; on hybrid CPUs performance cores only."""
    siblings, performance_cpus = set(), _performance_cpus()
    for cpu in _CPUS.glob("cpu[0-9]*"):
        if performance_cpus and int(cpu.name[3:]) not in performance_cpus:
            continue
        try:
            siblings.add((cpu / "topology" / "thread_siblings").read_text())
        except OSError:
            continue
    if siblings:
        return len(siblings)
    logical = os.cpu_count() or 4
    return logical if logical <= 4 else logical // 2


def _performance_cpus() -> frozenset[int]:
    """Return the CPUs of performance cores; empty unless the CPU is hybrid."""
    try:
        text = _PERFORMANCE_CORES.read_text().strip()
    except OSError:
        return frozenset()
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


_PTR = ctypes.c_void_p


class _Params(ctypes.Structure):
    """ggml.h, ggml_threadpool_params."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * _MAX_THREADS),
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
    """The thread pools of one context. Its thread calls `enter` before each decode and `leave` after it."""

    def __init__(self, placement: ThreadPlacement, n_threads: int, n_threads_batch: int) -> None:
        self._placement = placement
        self._n = (n_threads, n_threads_batch)
        self._step_cpus: frozenset[int] = frozenset()
        self._cpus: tuple[frozenset[int], frozenset[int]] | None = None  # for decode and prefill
        self._pools: list[int] = []

    def enter(self, context: int, n_tokens: int) -> None:
        """Move this thread to the CPUs for a decode of `n_tokens`."""
        if self._cpus is None:
            self._cpus = self._attached(context)
        os.sched_setaffinity(0, self._cpus[n_tokens > 1])  # the library does not move a thread that computes alone

    def leave(self) -> None:
        """Move this thread back to its own CPUs, where it samples."""
        os.sched_setaffinity(0, self._step_cpus)

    def close(self) -> None:
        """Free the pools. Call it after the context was freed."""
        for pool in self._pools:
            _FREE(_cpu_procedure(b"ggml_threadpool_free"))(pool)

    def _attached(self, context: int) -> tuple[frozenset[int], frozenset[int]]:
        """Create and attach the pools. Returns their CPUs, by default those of the step thread, which
        `server.engine.instances.bind` has already moved to its instance's.
        """
        self._step_cpus = frozenset(os.sched_getaffinity(0))
        placement = self._placement
        decode_cpus = placement.cpus or self._step_cpus
        both = (decode_cpus, placement.cpus_batch or decode_cpus)
        for n, cpus, strict in zip(self._n, both, (placement.strict, placement.strict_batch), strict=True):
            self._pools.append(_pool(n, cpus, strict=strict))
        _attach(context, *self._pools)
        return both


def thread_pools(native: LoadParams, params: ctypes.Structure) -> ThreadPools | None:
    """Return the thread pools of a context; None if the library places its threads."""
    if native.placement is None:
        return None
    return ThreadPools(native.placement, params.n_threads, params.n_threads_batch)


def _pool(n_threads: int, cpus: frozenset[int], *, strict: bool) -> int:
    """Return a new native pool on `cpus`; `strict`: each thread has its own CPU. Raises `InternalError`."""
    params = _Params()
    _defaults(params, n_threads)
    for cpu in cpus:
        if cpu < _MAX_THREADS:
            params.cpumask[cpu] = True
    params.strict_cpu = strict
    pool = _NEW(_cpu_procedure(b"ggml_threadpool_new"))(params)
    if not pool:
        raise InternalError(f"the library makes no pool of {n_threads} threads")
    return int(pool)


def _cpu_procedure(name: bytes) -> int:
    return int(procedure_address(registry_by_name(b"CPU"), name))


INTERVAL_S = 0.1  # least time between two readings of CPU use: ten kernel ticks
MIN_IDLE_S = 0.01  # shorter pauses between two decodes are sampling, not idle time
MAX_READING_SHARE = 0.005  # of the time; with hundreds of CPUs a reading takes milliseconds
SHRINK_ABOVE, GROW_BELOW = 0.5, 0.3
"""Load of a CPU by other processes above which one thread fewer computes, and below which one more does."""
_STAT = Path("/proc/stat")
_USER, _NICE, _SYSTEM, _IRQ, _SOFT_IRQ = 0, 1, 2, 5, 6
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class CpuUse:
    """A reading at ``at`` of the `n_cpus` CPUs on which this thread may run.

    ``others_s``, ``own_s``: CPU seconds that other processes and this one have used. ``n_running``: runnable threads of
    the whole system, including this one.
    """

    at: float
    others_s: float
    own_s: float
    n_cpus: int
    n_running: int = 1


def read_cpu_use() -> CpuUse:
    """Read CPU use from the kernel. Niced processes yield to this thread, so they count only if it is niced, too."""
    counted = [_USER, _SYSTEM, _IRQ, _SOFT_IRQ]
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        counted.append(_NICE)  # it includes this process
    own_cpus = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    ticks, n_running = 0, 1
    for line in _STAT.read_text().splitlines():
        name, *fields = line.split()
        if name in own_cpus:
            ticks += sum(int(fields[i]) for i in counted)
        elif name == "procs_running":
            n_running = int(fields[0])
    own_s = time.process_time()
    return CpuUse(time.monotonic(), ticks / _TICKS_PER_S - own_s, own_s, len(own_cpus), n_running)


class ComputeThreads:
    """The number of compute threads of one context, updated by its step thread before each decode.

    The threads of a step meet at hundreds of barriers. Each waits for the slowest thread, which shares its CPU with
    another process. Fewer threads with a CPU each are faster (benchmarks/experiments.md).

    At least half of the configured threads compute; otherwise busy processes could take over all CPUs. All of them
    compute if the step thread has a negative nice value.
    """

    def __init__(self, n: int, n_batch: int, read: Callable[[], CpuUse] = read_cpu_use) -> None:
        """`n`, `n_batch`: configured numbers for decode and prefill."""
        self._configured = (n, n_batch)
        self._n = self._n_max = max(n, n_batch)
        self._read = read if self._n_max > 1 and _STAT.exists() else None
        self._next_reading_at = 0.0
        self._last: CpuUse | None = None
        self._decode_ended_at = time.monotonic()
        self._idle_s = 0.0  # since the last reading

    def change(self) -> tuple[int, int] | None:
        """Return new numbers of threads for decode and prefill; None if they stay the same.

        While this process is idle, others take no CPU from it: for that time, use of all CPUs is subtracted. After
        `INTERVAL_S` without a decode the number does not fall. It rises to the number of CPUs without another thread.
        """
        if self._read is None:
            return None
        began = time.monotonic()
        pause_s = began - self._decode_ended_at
        self._idle_s += pause_s if pause_s >= MIN_IDLE_S else 0.0
        if began < self._next_reading_at:
            return None
        last, use = self._last, self._read()
        idle_s, self._idle_s = self._idle_s, 0.0
        self._last, self._next_reading_at = use, use.at + max(INTERVAL_S, (use.at - began) / MAX_READING_SHARE)
        if last is None:
            return None
        computed_s = max(use.at - last.at - idle_s, INTERVAL_S)
        n_used_by_others = max(0.0, use.others_s - last.others_s - use.n_cpus * idle_s) / computed_s
        if os.getpriority(os.PRIO_PROCESS, 0) < 0:
            n = self._n_max
        elif pause_s >= INTERVAL_S:
            n = max(self._n, min(int(use.n_cpus - (use.n_running - 1) + GROW_BELOW), self._n_max))
        else:
            n = self._fitting(use.n_cpus - n_used_by_others)
        if n == self._n:
            return None
        self._n = n
        n_decode, n_batch = self._configured
        return min(n_decode, n), min(n_batch, n)

    def ended(self) -> None:
        """Record that a decode ended."""
        self._decode_ended_at = time.monotonic()

    def _fitting(self, n_free: float) -> int:
        """Return the number of threads for `n_free` CPUs."""
        fewer, more = int(n_free + 1 - SHRINK_ABOVE), int(n_free + GROW_BELOW)
        if fewer < self._n:
            return max(fewer, (self._n_max + 1) // 2)
        return min(more, self._n_max) if more > self._n else self._n
