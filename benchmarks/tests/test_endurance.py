"""The resources that `benchmarks.endurance` counts, and the growth that it reports as a leak."""

import math
import subprocess
import sys
from random import Random

import pytest

from benchmarks.endurance import Results, Sample, of_processes, verdict
from benchmarks.resources import with_children

CHILD = "block = b'x' * (64 << 20); files = [open('/dev/null') for _ in range(30)]; print('ready', flush=True); input()"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE)
input()
child.communicate(b"\\n")
print("exited", flush=True)
input()
"""


def test_memory_and_descriptors_of_child_processes_are_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        assert len(with_children(server.pid)) == 2
        memory, n_descriptors, n_threads = of_processes(server.pid)
        assert n_threads == 2
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.stdout.readline() == "exited\n"
        assert with_children(server.pid) == [server.pid]
        alone, n_alone, _ = of_processes(server.pid)
        assert memory > alone + 64
        assert n_descriptors >= n_alone + 30
        server.communicate("\n")


def half_hour(leak_mib_per_h: float, seconds: float = 1800.0, seed: int = 1) -> Results:
    """Return samples of a run like that of docs/reliability.md, with an optional leak.

    The server grows by 30 MiB during a long warm-up, by up to 25 MiB for requests, and by a cache that fills. After the
    load, it shrinks by 30 MiB.
    """
    rng, results = Random(seed), Results(0.0, seconds)
    for at in range(round(seconds) + 5):
        steady = 150 + 28 * (1 - math.exp(-at / 60)) + 2 * at / seconds
        cached = min(at / 10, 100.0)
        requests = rng.choice([0.0, rng.uniform(0, 25)]) if at < seconds else -30.0
        rss = steady + cached + requests + rng.gauss(0, 1) + leak_mib_per_h * at / 3600
        results.samples.append(Sample(at, rss, cached, 20, 7, 2.0))
    return results


@pytest.mark.parametrize("seed", range(5))
def test_memory_of_warm_up_cache_and_requests_is_no_leak(seed: int) -> None:
    assert verdict(half_hour(0.0, seed=seed), 4, 4) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("leak_mib_per_h", "seconds"), [(20.0, 1800.0), (60.0, 600.0), (15.0, 7200.0)])
def test_leaks_are_reported_if_the_run_is_long_enough(seed: int, leak_mib_per_h: float, seconds: float) -> None:
    (problem,) = verdict(half_hour(leak_mib_per_h, seconds, seed), 4, 4)
    assert "grows by" in problem
