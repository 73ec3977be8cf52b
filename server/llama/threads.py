"""The number of compute threads: llama.cpp's rule (common/common.cpp, common_cpu_get_num_math) within the CPUs this
process may use. Several instances share them: more threads than cores wait for each other in every operation.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from server.engine.instances import NICE, PRIORITIES_BY_THREAD, bind
from server.errors import ModelFailed
from server.pool.spec import LoadParams, ModelSpec

_CPUS = Path("/sys/devices/system/cpu")
_PERFORMANCE_CORES = Path("/sys/devices/cpu_core/cpus")  # exists on hybrid Intel CPUs only
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def bound(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with as many threads as each instance has CPUs, if the number is automatic. Raises `ModelFailed`
    for unavailable CPUs or priorities.
    """
    _check_priority(spec)
    spec = _placed(spec)
    cpus, n_instances = spec.engine.cpus, spec.native.instances
    if not cpus:
        return spec if n_instances == 1 else _with_threads(spec, n_threads(-1) // n_instances)
    if not hasattr(os, "sched_setaffinity"):
        raise ModelFailed(spec.id, "cpu_range, cpu_mask: this system can't bind threads to CPUs")
    allowed = os.sched_getaffinity(0)
    fewest = min(len(some & allowed) for some in cpus)
    if not fewest:
        here = ", ".join(map(str, sorted(allowed)))
        raise ModelFailed(spec.id, f"cpu_range, cpu_mask: an instance has no CPU, there are only {here}")
    return _with_threads(spec, fewest // n_instances if len(cpus) == 1 else fewest)


def _placed(spec: ModelSpec) -> ModelSpec:
    """Return the specification with placements on existing CPUs, and a thread for each CPU of batches."""

    def here(native: LoadParams, name: str) -> LoadParams:
        placement = native.placement
        if placement is None:
            return native
        if not hasattr(os, "sched_setaffinity"):
            raise ModelFailed(spec.id, f"{name}: this system can't bind threads to CPUs")
        allowed = os.sched_getaffinity(0)
        cpus, batch = placement.cpus & allowed, placement.cpus_batch & allowed
        for wanted, some, kind in ((placement.cpus, cpus, ""), (placement.cpus_batch, batch, "_batch")):
            if wanted and not some:
                there = ", ".join(map(str, sorted(allowed)))
                reason = f"{name}cpu_mask{kind}, {name}cpu_range{kind}: there are only CPUs {there}"
                raise ModelFailed(spec.id, reason)
        native = replace(native, placement=replace(placement, cpus=cpus, cpus_batch=batch))
        if batch and native.n_threads_batch < 0:
            native = replace(native, n_threads_batch=len(batch))
        return replace(native, n_threads=len(cpus)) if cpus and native.n_threads < 0 else native

    draft = spec.draft and replace(spec.draft, native=here(spec.draft.native, "draft_"))
    return replace(spec, native=here(spec.native, ""), draft=draft)


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


def _with_threads(spec: ModelSpec, n: int) -> ModelSpec:
    """Set `n` threads, at least one, if the number is automatic."""

    def counted(native: LoadParams) -> LoadParams:
        return replace(native, n_threads=max(n, 1)) if native.n_threads < 0 else native

    draft = spec.draft and replace(spec.draft, native=counted(spec.draft.native))
    return replace(spec, native=counted(spec.native), draft=draft)


def n_threads(wanted: int) -> int:
    """`wanted`, or for -1 the number of physical cores, and for 0 every logical one."""
    if wanted > 0:
        return min(wanted, 512)  # GGML_MAX_N_THREADS
    allowed = usable_cpus()
    if wanted == 0:
        return allowed
    return max(1, min(physical_cores(), allowed))


def usable_cpus() -> int:
    """Return the number of logical CPUs this process may use: affinity mask and control group quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_MAX.read_text().split()[:2]
    except (OSError, ValueError):
        return allowed
    if not quota.isdigit():
        return allowed
    return max(1, min(allowed, math.ceil(int(quota) / int(period))))


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
