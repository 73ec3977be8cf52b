"""A small simulation of replicas with a router; `benchmarks.simulation.replicas` runs the full one."""

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


def test_prefix_router_has_the_highest_hit_rate(found: dict[str, dict[str, float]]) -> None:
    assert found["prefix"]["hit_rate"] > found["least"]["hit_rate"] + 0.05
    assert found["prefix"]["hit_rate"] > found["random"]["hit_rate"] + 0.05


def test_each_router_distributes_requests_over_replicas(found: dict[str, dict[str, float]]) -> None:
    for each in found.values():
        assert each["most_at_one"] < 0.6


def test_runs_with_the_same_seed_are_equal() -> None:
    assert figures("prefix", 100) == figures("prefix", 100)
