"""Where the step threads run."""

import os


def bind(cpus: frozenset[int]) -> None:
    """Keep the calling thread, and those that it starts from now on, on `cpus`, as far as they may be used here.

    The library's compute threads are started by the first decode of a step thread (libgomp keeps a team for each
    thread that computes), so that they inherit this. Nothing happens without `cpus`.
    """
    if cpus:
        os.sched_setaffinity(0, cpus & os.sched_getaffinity(0))


def cpus_of(instance: int, cpus: tuple[frozenset[int], ...]) -> frozenset[int]:
    """Of the instance with this number, out of sets for each or one for all."""
    return cpus[instance % len(cpus)] if cpus else frozenset()
