"""How often a decode is repeated whose cost is measured at load."""

import pytest

from server.llama.context.cost import quickest


@pytest.mark.parametrize(
    ("seconds", "quickest_s", "n_runs"),
    [
        pytest.param([0.9, 0.010, 0.0101, 0.001], 0.010, 3, id="two that agree are enough"),
        pytest.param([0.02, 0.015, 0.010, 0.0101, 0.001], 0.010, 4, id="a disturbed one is repeated"),
        pytest.param([0.02, 0.05, 0.04, 0.03, 0.02, 0.01, 0.001], 0.01, 6, id="at most five"),
        pytest.param([1.1, 0.6, 0.59, 0.001], 0.59, 3, id="a graph that took long to build"),
        pytest.param([1.1, 1.2, 0.001], 1.2, 2, id="one slow run is enough after a slow first one"),
        pytest.param([0.9, 0.8, 0.7, 0.001], 0.7, 3, id="no more than a second or two"),
    ],
)
def test_a_measurement_ends_as_soon_as_runs_agree(seconds: list[float], quickest_s: float, n_runs: int) -> None:
    numbers: list[int] = []

    def run(number: int) -> float:
        numbers.append(number)
        return seconds[number]

    assert quickest(run) == quickest_s
    assert numbers == list(range(n_runs))
