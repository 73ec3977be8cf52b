"""The number of compute threads while other processes keep CPUs busy.

All threads of a step meet at some hundred barriers, so each waits for the slowest. A thread that shares its CPU is
the slowest: while it does not run, the others spin (OpenMP threads spin for some milliseconds, which is best on a
quiet machine). Fewer threads with a CPU each are faster and leave CPUs to other processes. Measurements:
benchmarks/experiments.md.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.1  # between two looks: ten of the kernel's ticks, or more
MOST_SHARE = 0.005  # of the time, for looks: with hundreds of CPUs one takes milliseconds
BUSY = 0.2  # of a CPU that this process used since the last look, or we waited, and what others use meanwhile is free
GIVE_UP, TAKE_BACK = 0.5, 0.3
"""Of a CPU: what others may use of one of ours until a thread less computes, and until it is back."""
_STAT = Path("/proc/stat")
_USER, _NICE, _SYSTEM, _IRQ, _SOFT_IRQ = 0, 1, 2, 5, 6
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class Use:
    """CPU use of the CPUs this thread may run on: their number, and the seconds used by others and by us until
    ``at``.
    """

    at: float
    others_s: float
    own_s: float
    n_cpus: int


def measured() -> Use:
    """Read CPU use from the kernel. Niced processes give way to us and do not count, unless this thread is niced.
    Raises OSError if the kernel does not report it.
    """
    counted = [_USER, _SYSTEM, _IRQ, _SOFT_IRQ]
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        counted.append(_NICE)  # what we compute is in it
    mine = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    ticks = 0
    for line in _STAT.read_text().splitlines():
        name, *fields = line.split()
        if name in mine:
            ticks += sum(int(fields[i]) for i in counted)
    own_s = time.process_time()
    return Use(time.monotonic(), ticks / _TICKS_PER_S - own_s, own_s, len(mine))


class ComputeThreads:
    """The number of compute threads of one context, updated by its step thread before each decode.

    Between half of the configured number and all of it: processes that take all they get would otherwise drive us
    out. All of it if the step thread has a negative nice value.
    """

    def __init__(self, n: int, n_batch: int, look: Callable[[], Use] = measured) -> None:
        self._wanted = (n, n_batch)
        self._now = self._most = max(n, n_batch)
        self._look = look if self._most > 1 and _STAT.exists() else None
        self._next_look = 0.0
        self._seen: Use | None = None

    def change(self) -> tuple[int, int] | None:
        """The numbers for generating and for prompts, when it is time to look and they are others than before."""
        began = time.monotonic()
        if self._look is None or began < self._next_look:
            return None
        before, use = self._seen, self._look()
        self._seen, self._next_look = use, use.at + max(INTERVAL_S, (use.at - began) / MOST_SHARE)
        if before is None or use.own_s - before.own_s < BUSY * (use.at - before.at):
            return None
        others = max(0.0, (use.others_s - before.others_s) / (use.at - before.at))
        now = self._most if os.getpriority(os.PRIO_PROCESS, 0) < 0 else self._fitting(use.n_cpus - others)
        if now == self._now:
            return None
        self._now = now
        n, n_batch = self._wanted
        return min(n, now), min(n_batch, now)

    def _fitting(self, free: float) -> int:
        fewer, more = int(free + 1 - GIVE_UP), int(free + TAKE_BACK)
        if fewer < self._now:
            return max(fewer, (self._most + 1) // 2)
        return min(more, self._most) if more > self._now else self._now
