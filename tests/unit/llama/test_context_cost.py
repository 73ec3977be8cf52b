"""How often a decode is repeated whose cost is measured at load."""

import pytest

from server.llama.context.cost import quickest


@pytest.mark.parametrize(
    ("seconds", "quickest_s", "n_runs"),
    [
        pytest.param([0.010, 0.0109, 0.001], 0.010, 2, id="two that agree are enough"),
        pytest.param([0.9, 0.010, 0.0101, 0.001], 0.010, 3, id="the first one builds the graph"),
        pytest.param([0.02, 0.015, 0.010, 0.0101, 0.001], 0.010, 4, id="a disturbed one is repeated"),
        pytest.param([0.06, 0.05, 0.04, 0.03, 0.02, 0.01, 0.001], 0.01, 6, id="at most six"),
        pytest.param([1.1, 0.6, 0.001], 0.6, 2, id="two slow ones are enough"),
        pytest.param([0.6, 0.3, 0.2, 0.001], 0.2, 3, id="no more than a second or two"),
    ],
)
def test_a_measurement_ends_as_soon_as_runs_agree(seconds: list[float], quickest_s: float, n_runs: int) -> None:
    numbers: list[int] = []

    def run(number: int) -> float:
        numbers.append(number)
        return seconds[number]

    assert quickest(run) == quickest_s
    assert numbers == list(range(n_runs))
