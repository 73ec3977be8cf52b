"""Replicas behind a router, simulated small: what `benchmarks.simulation.replicas` shows at its full size."""

import pytest

from benchmarks.simulation.policy import with_ram
from benchmarks.simulation.replicas import Fleet, routers

N_SLOTS, N_REPLICAS = 8, 2


def figures(router: str, n_requests: int = 300) -> dict[str, float]:
    fleet = Fleet(with_ram(N_SLOTS), N_REPLICAS, N_SLOTS, routers(N_SLOTS, 1)[router])
    fleet.run(n_requests)
    for replica in fleet.replicas:
        replica.scheduler.check_integrity()
    return fleet.figures()


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, float]]:
    return {name: figures(name) for name in ("random", "least", "prefix")}


def test_prompts_beginnings_are_found_where_they_are(found: dict[str, dict[str, float]]) -> None:
    assert found["prefix"]["hit_rate"] > found["least"]["hit_rate"] + 0.05
    assert found["prefix"]["hit_rate"] > found["random"]["hit_rate"] + 0.05


def test_no_replica_gets_all(found: dict[str, dict[str, float]]) -> None:
    for each in found.values():
        assert each["most_at_one"] < 0.6


def test_the_same_seed_gives_the_same_run() -> None:
    assert figures("prefix", 100) == figures("prefix", 100)
