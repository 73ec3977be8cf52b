"""The size of a step, against machines that are given as functions of the batch."""

import random
from collections.abc import Callable

import pytest

from server.engine.schedule.step_size import ATTENTION_TILE, StepSize, piece


def settle(pace: StepSize, seconds: Callable[[int], float], steps: int = 60) -> list[int]:
    sizes = []
    for _ in range(steps):
        sizes.append(pace.size)
        pace.observe(pace.size, seconds(pace.size))
    return sizes


def test_a_fast_machine_gets_the_whole_batch() -> None:
    assert settle(StepSize(0.25, 32, 2048), lambda n: n / 100_000)[-1] == 2048


def test_a_slow_machine_gets_small_steps() -> None:
    assert settle(StepSize(0.25, 32, 2048), lambda n: n / 300)[-1] <= 128


def test_the_knee_is_found_and_kept() -> None:
    """A batch below 128 costs as much as one of 128: shrinking would only lose throughput."""
    sizes = settle(StepSize(0.25, 32, 2048), lambda n: max(n, 128) / 200)
    assert sizes[10:].count(128) > 40


def test_a_step_that_was_not_filled_teaches_nothing() -> None:
    pace = StepSize(0.25, 32, 2048)
    before = pace.size
    pace.observe(4, 10.0)
    assert pace.size == before


@pytest.mark.parametrize("largest", [1, 16, 64])
def test_the_size_stays_within_the_batch(largest: int) -> None:
    pace = StepSize(0.25, min(32, largest), largest)
    assert all(size <= largest for size in settle(pace, lambda n: n / 100_000))


def test_without_a_target_every_step_may_be_as_large_as_it_can() -> None:
    assert set(settle(StepSize(0.0, 32, 2048), lambda n: n / 10)) == {2048}


@pytest.mark.parametrize(("spent_s", "size"), [(0.0, 128), (0.025, 96), (0.1, 32), (5.0, 32)])
def test_what_a_step_has_spent_before_its_decode_is_taken_from_its_size(spent_s: float, size: int) -> None:
    assert StepSize(0.1, 32, 2048).after(spent_s) == size


def test_without_a_target_nothing_is_taken_from_a_step() -> None:
    assert StepSize(0.0, 32, 2048).after(5.0) == 2048


def step_gaps(target_s: float, seconds: Callable[[int], float], steps: int = 2000) -> list[float]:
    """The time between two tokens of 8 streams while prompts without end are computed beside them; a twentieth of the
    steps is half as long again, as on a machine that has other things to do."""
    pace, draw, gaps = StepSize(target_s, 32, 2048), random.Random(5), []
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


def test_steps_keep_near_the_target_as_a_prompt_gets_deep_and_when_the_next_one_begins() -> None:
    """As on two cores: attention costs as much as all else 1,300 tokens deep, and thrice as much below a tile."""
    pace = StepSize(0.3, 32, 2048)
    longest, sizes = [], []
    for _ in range(12):
        depth, taken = 0, []
        while depth < 1900:
            n = pace.size
            attention_s = n * depth * (7e-7 if n >= 64 else 21e-7)
            taken.append(0.03 + n * 0.00115 + attention_s)
            sizes.append(n)
            pace.observe(n, taken[-1])
            depth += n
        longest.append(max(taken))
    assert max(longest) < 1.15 * 0.3
    assert max(sizes) >= 160
    assert sizes.count(32) <= 12  # one in a prompt, and some do without


def test_what_a_neighbour_does_to_one_step_changes_no_size() -> None:
    pace = StepSize(0.3, 32, 2048)
    settle(pace, lambda n: 0.02 + n / 600)
    before = pace.size
    pace.observe(before, 3.0)
    assert pace.size == before


@pytest.mark.parametrize(
    ("n_left", "size", "n"),
    [
        (100, 128, 100),
        (144, 128, 144),  # a little more comes along
        (145, 128, 73),  # in place of 128 and 17
        (191, 128, 96),
        (192, 128, 128),  # the last one is half as large
        (1900, 128, 128),
        (90, 64, 64),  # two halves would both be below a tile
    ],
)
def test_a_prompt_s_last_step_is_no_small_one(n_left: int, size: int, n: int) -> None:
    assert piece(n_left, size) == n
    assert n >= min(n_left, size, ATTENTION_TILE)


@pytest.mark.parametrize(("n_left", "size", "n"), [(128, 128, 128), (129, 128, 65), (100, 90, 100), (300, 128, 128)])
def test_where_a_step_costs_more_its_last_one_is_no_larger_either(n_left: int, size: int, n: int) -> None:
    assert piece(n_left, size, exact=True) == n
