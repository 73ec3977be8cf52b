"""What a run of endurance counts, and what it takes for a leak."""

import math
import subprocess
import sys
from random import Random

import pytest

from benchmarks.endurance import Sample, Seen, of_processes, verdict
from benchmarks.resources import with_children

HOLDS = "held = b'x' * (64 << 20); files = [open('/dev/null') for _ in range(30)]; print('held', flush=True); input()"
STARTS = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {HOLDS!r}], stdin=subprocess.PIPE)
input()
child.communicate(b"\\n")
print("ended", flush=True)
input()
"""


def test_what_a_servers_processes_hold_counts() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == "held\n"
        assert len(with_children(server.pid)) == 2
        memory, n_descriptors, n_threads = of_processes(server.pid)
        assert n_threads == 2
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.stdout.readline() == "ended\n"
        assert with_children(server.pid) == [server.pid]
        alone, n_alone, _ = of_processes(server.pid)
        assert memory > alone + 64
        assert n_descriptors >= n_alone + 30
        server.communicate("\n")


def half_hour(leak_mib_per_h: float, seconds: float = 1800.0, seed: int = 1) -> Seen:
    """A run like that of docs/reliability.md: 30 MiB of warm-up that end late, requests of up to 25 MiB, a cache that
    fills, and 30 MiB less once the load has ended."""
    rng, seen = Random(seed), Seen(0.0, seconds)
    for at in range(round(seconds) + 5):
        steady = 150 + 28 * (1 - math.exp(-at / 60)) + 2 * at / seconds
        cached = min(at / 10, 100.0)
        requests = rng.choice([0.0, rng.uniform(0, 25)]) if at < seconds else -30.0
        rss = steady + cached + requests + rng.gauss(0, 1) + leak_mib_per_h * at / 3600
        seen.samples.append(Sample(at, rss, cached, 20, 7, 2.0))
    return seen


@pytest.mark.parametrize("seed", range(5))
def test_memory_that_warms_up_and_rises_with_requests_is_no_leak(seed: int) -> None:
    assert verdict(half_hour(0.0, seed=seed), 4, 4) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("leak_mib_per_h", "seconds"), [(20.0, 1800.0), (60.0, 600.0), (15.0, 7200.0)])
def test_a_leak_of_20_mib_an_hour_fails_half_an_hour(seed: int, leak_mib_per_h: float, seconds: float) -> None:
    (said,) = verdict(half_hour(leak_mib_per_h, seconds, seed), 4, 4)
    assert "grows by" in said
