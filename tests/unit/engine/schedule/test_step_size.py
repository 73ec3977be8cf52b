"""The size of a step, against machines that are given as functions of the batch."""

import math
import random
from collections.abc import Callable

import pytest

from server.engine.scheduler import StepSize, portion


def step_size(target_s: float, smallest: int = 32) -> StepSize:
    return StepSize(target_s, smallest, 2048, 512)


def settle(pace: StepSize, seconds: Callable[[int], float], steps: int = 60) -> list[int]:
    sizes = []
    for _ in range(steps):
        sizes.append(pace.size)
        pace.observe(pace.size, seconds(pace.size))
    return sizes


def test_a_fast_machine_gets_the_whole_batch() -> None:
    assert settle(step_size(0.25), lambda n: n / 100_000)[-1] == 2048


def test_a_slow_machine_gets_small_steps() -> None:
    assert settle(step_size(0.25), lambda n: n / 300)[-1] <= 128


def test_a_step_that_was_not_filled_teaches_nothing() -> None:
    pace = step_size(0.25)
    before = pace.size
    pace.observe(4, 10.0)
    assert pace.size == before


@pytest.mark.parametrize("largest", [1, 16, 64])
def test_the_size_stays_within_the_batch(largest: int) -> None:
    pace = StepSize(0.25, min(32, largest), largest, 512)
    assert all(size <= largest for size in settle(pace, lambda n: n / 100_000))


def test_without_a_target_every_step_may_be_as_large_as_it_can() -> None:
    assert set(settle(step_size(math.inf), lambda n: n / 10)) == {2048}


@pytest.mark.parametrize(("spent_s", "size"), [(0.0, 128), (0.025, 64), (0.06, 51), (0.1, 32), (5.0, 32)])
def test_what_a_step_has_spent_before_its_decode_is_taken_from_its_size(spent_s: float, size: int) -> None:
    assert step_size(0.1).after(spent_s) == size


def step_gaps(target_s: float, seconds: Callable[[int], float], steps: int = 2000) -> list[float]:
    """The time between two tokens of 8 streams while prompts without end are computed beside them; a twentieth of the
    steps is half as long again, as on a machine that has other things to do."""
    pace, draw, gaps = step_size(target_s), random.Random(5), []
    for _ in range(steps):
        took = seconds(pace.size) * (1.5 if draw.random() < 0.05 else draw.uniform(0.97, 1.03))
        pace.observe(pace.size, took)
        gaps.append(took)
    return sorted(gaps)


MACHINES = {
    "gpu": lambda n: 0.0015 + max(0.0045, n * 2 * 8e9 / 495e12),
    "cpu": lambda n: 0.02 + n / 400,
    "cpu-with-a-knee": lambda n: max(n, 64) / 300,
}


@pytest.mark.parametrize(
    ("machine", "target_s"), [("gpu", 0.03), ("gpu", 0.25), ("cpu", 0.25), ("cpu-with-a-knee", 0.5)]
)
def test_gaps_hold_near_the_target(machine: str, target_s: float) -> None:
    gaps = step_gaps(target_s, MACHINES[machine])
    assert gaps[len(gaps) // 2] <= target_s
    assert gaps[int(len(gaps) * 0.94)] <= 1.1 * target_s
    assert gaps[int(len(gaps) * 0.99)] <= 1.6 * target_s


def test_two_slow_steps_in_a_row_are_believed() -> None:
    pace = step_size(0.3)
    settle(pace, lambda n: 0.02 + n / 600)
    before = pace.size
    pace.observe(before, 3.0)
    assert pace.size == before
    pace.observe(before, 3.0)
    assert pace.size < before


@pytest.mark.parametrize(
    ("n_left", "size", "n"),
    [
        (100, 128, 100),
        (144, 128, 144),  # a little more comes along
        (145, 128, 81),  # a whole tile is left
        (191, 128, 127),
        (192, 128, 128),
        (1900, 128, 108),
        (1930, 128, 138),
        (90, 64, 26),
        (100, 50, 50),  # no tile anyway
        (12_000, 1024, 992),
        (962, 512, 450),  # not 514, which are two evaluations
    ],
)
def test_what_is_left_of_a_prompt_fills_tiles(n_left: int, size: int, n: int) -> None:
    assert portion(n_left, size, 512) == n


@pytest.mark.parametrize(("n_left", "size", "n"), [(128, 128, 128), (129, 128, 65), (100, 90, 90), (320, 128, 128)])
def test_where_a_step_costs_more_none_is_larger(n_left: int, size: int, n: int) -> None:
    assert portion(n_left, size, 512, exact=True) == n
