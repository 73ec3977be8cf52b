"""Where the step threads run, and how urgently."""

import os
import sys

NICE = {-1: 5, 0: 0, 1: -5, 2: -10, 3: -20}  # by ``prio`` (llama.cpp common/common.cpp, set_process_priority)
PRIORITIES_BY_THREAD = sys.platform == "linux"  # elsewhere a process has one for all


def bind(cpus: frozenset[int], prio: int = 0) -> None:
    """Keep the calling thread, and those that it starts from now on, on `cpus`, as far as they may be used here, and
    give them this priority; a process that is nicer already stays so at -1.

    The library's compute threads are started by the first decode of a step thread (libgomp keeps a team for each
    thread that computes), so that they inherit this. Nothing happens without `cpus`, and with priority 0. Raises
    OSError for a priority that this process may not take.
    """
    if cpus:
        os.sched_setaffinity(0, cpus & os.sched_getaffinity(0))
    if prio:
        nice = NICE[prio]
        os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)) if prio < 0 else nice)


ENCODER_NICE = 10
"""A thread that is so much nicer gets a tenth of a processor that others want, too, and all of one that they leave."""


def yield_to_steps() -> None:
    """The calling thread, and those that it starts from now on, compute when step threads don't."""
    if PRIORITIES_BY_THREAD:
        nice = os.getpriority(os.PRIO_PROCESS, 0) + ENCODER_NICE
        os.setpriority(os.PRIO_PROCESS, 0, min(nice, 19))


def cpus_of(instance: int, cpus: tuple[frozenset[int], ...]) -> frozenset[int]:
    """Of the instance with this number, out of sets for each or one for all."""
    return cpus[instance % len(cpus)] if cpus else frozenset()
