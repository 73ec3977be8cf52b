"""How many threads compute while other processes keep processors busy.

All threads of a step meet at some hundred barriers, so that each of them waits for the slowest. One that has to share
its processor is that one: while it does not run, the others wait, and spin (OpenMP's threads do, for some milliseconds,
which is the best of ways on a quiet machine). Fewer threads, each with a processor to itself, are faster than that, and
leave neighbours theirs. benchmarks/experiments.md has the measurements.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.1  # between two looks: ten of the kernel's ticks, or more
MOST_SHARE = 0.005  # of the time, for looks: with hundreds of processors one takes milliseconds
BUSY = 0.2  # of a processor that we used since the last look, or we waited, and what others use meanwhile is free
GIVE_UP, TAKE_BACK = 0.5, 0.3
"""Of a processor: what others may use of one of ours until a thread less computes, and until it is back."""
_STAT = Path("/proc/stat")
_USER, _NICE, _SYSTEM, _IRQ, _SOFT_IRQ = 0, 1, 2, 5, 6
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class Use:
    """Of the processors that this thread may run on: how many, and the seconds that others and we had until ``at``."""

    at: float
    others_s: float
    own_s: float
    n_cpus: int


def measured() -> Use:
    """From the kernel. Who is nice gives way to us, so he is left out, unless this thread is nice, too.

    Raises OSError where the kernel does not tell.
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
    """Of one context; asked by its step thread before each decode.

    Never more than asked for, nor less than half: neighbours that take all they can get would else drive us out. All of
    them where the step thread is more urgent than usual (a nice value below zero): then it is the neighbours who wait.
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
