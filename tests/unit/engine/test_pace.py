"""The size of a step, against machines that are given as functions of the batch."""

from collections.abc import Callable

import pytest

from server.engine.pace import Pace


def settle(pace: Pace, seconds: Callable[[int], float], steps: int = 60) -> list[int]:
    sizes = []
    for _ in range(steps):
        sizes.append(pace.size)
        pace.observe(pace.size, seconds(pace.size))
    return sizes


def test_a_fast_machine_gets_the_whole_batch() -> None:
    assert settle(Pace(0.25, 32, 2048), lambda n: n / 100_000)[-1] == 2048


def test_a_slow_machine_gets_small_steps() -> None:
    assert settle(Pace(0.25, 32, 2048), lambda n: n / 300)[-1] <= 128


def test_the_knee_is_found_and_kept() -> None:
    """A batch below 128 costs as much as one of 128: shrinking would only lose throughput."""
    sizes = settle(Pace(0.25, 32, 2048), lambda n: max(n, 128) / 200)
    assert sizes[10:].count(128) > 40


def test_a_step_that_was_not_filled_teaches_nothing() -> None:
    pace = Pace(0.25, 32, 2048)
    before = pace.size
    pace.observe(4, 10.0)
    assert pace.size == before


@pytest.mark.parametrize("largest", [1, 16, 64])
def test_the_size_stays_within_the_batch(largest: int) -> None:
    pace = Pace(0.25, min(32, largest), largest)
    assert all(size <= largest for size in settle(pace, lambda n: n / 100_000))


def test_without_a_target_every_step_may_be_as_large_as_it_can() -> None:
    assert set(settle(Pace(0.0, 32, 2048), lambda n: n / 10)) == {2048}
