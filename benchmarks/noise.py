"""How quiet the machine is: the same loop of Python on each core, timed before each server is measured.

On a quiet machine it takes the same time everywhere and always; a core that is shared takes twice as long.
"""

import os
import time

_ROUNDS = 1_000_000


def loop_ms() -> list[float]:
    """The loop's time on each core that this process may use, the first of them first."""
    cores = sorted(os.sched_getaffinity(0))
    times = []
    try:
        for core in cores:
            os.sched_setaffinity(0, {core})
            times.append(_timed_ms())
    finally:
        os.sched_setaffinity(0, cores)
    return times


def _timed_ms() -> float:
    began = time.perf_counter()
    total = 0
    for number in range(_ROUNDS):
        total += number & 7
    return 1e3 * (time.perf_counter() - began)
