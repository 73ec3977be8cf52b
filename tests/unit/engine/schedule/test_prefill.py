"""Which prompt is prefilled first, and how many tokens a step takes."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.scheduler import AGING_WEIGHT, StepSize
from server.engine.scheduler import in_order as ordered
from server.engine.sequence import Sequence, Slot
from tests.unit.engine.builders import sequence

RATE = 1000.0


def prompt(n: int, *, at: float = 0.0, priority: int = 0, served: float = 0.0, done: int = 0) -> Sequence:
    """A prompt that has had its slot since `at`; its client, whose name says so, was `served` so much."""
    made = sequence([1] * n, at=at, slot=Slot(tokens=[1] * done), priority=priority, client=str(served))
    made.placed_at = at
    return made


def in_order(prompts: list[Sequence], rate: float) -> list[Sequence]:
    return ordered(prompts, rate, float, {})


def test_a_short_prompt_does_not_stand_behind_a_long_one() -> None:
    long, short = prompt(100_000, at=1.0), prompt(50, at=2.0)
    assert in_order([long, short], RATE) == [short, long]


def test_short_prompts_without_end_do_not_starve_a_long_one() -> None:
    """They pass it for four times as long as computing it takes, and no longer."""
    long = prompt(10_000, at=0.0)
    passes_s = 10_000 / RATE / AGING_WEIGHT
    assert in_order([long, prompt(50, at=passes_s * 0.9)], RATE)[0] is not long
    assert in_order([long, prompt(50, at=passes_s * 1.1)], RATE)[0] is long


def test_priority_comes_before_length() -> None:
    long, short = prompt(5000, priority=-1, at=2.0), prompt(50, at=1.0)
    assert in_order([short, long], RATE)[0] is long
    assert in_order([short, long], 0.0)[0] is long, "also before any prompt was computed"


def test_a_client_that_was_served_much_more_comes_later() -> None:
    short, long = prompt(50, served=10_000.0), prompt(5000, served=100.0)
    assert in_order([short, long], RATE)[0] is long


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5000),
            st.floats(0.0, 1e5),
            st.sampled_from([0, 0, 0, -1, 3]),
            st.floats(0.0, 1e6),
        ),
        max_size=7,
    ),
    st.floats(0.0, 1e5),
)
def test_nobody_passes_who_is_older_shorter_more_urgent_and_whose_client_was_served_less(
    wanted: list[tuple[int, float, int, float]], rate: float
) -> None:
    prompts = [prompt(n, at=at, priority=priority, served=served) for n, at, priority, served in wanted]
    order = in_order(prompts, rate)
    assert sorted(map(id, order)) == sorted(map(id, prompts))
    for i, first in enumerate(order):
        for later in order[i + 1 :]:
            assert not all(
                (
                    later.placed_at < first.placed_at,
                    len(later.target) < len(first.target),
                    later.request.priority < first.request.priority,
                    float(later.request.client) < float(first.request.client),
                )
            )


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


def test_a_step_that_leaves_a_tile_for_the_next_only_enlarges_the_size() -> None:
    """Prompts of 150 tokens are computed as 86 and 64 as long as a step takes 128."""
    pace = step_size(0.25)
    pace.observe(86, 0.2)
    assert pace.size == 128
    pace.observe(86, 0.05)
    assert pace.size == 256


@pytest.mark.parametrize("largest", [1, 16, 64])
def test_the_size_stays_within_the_batch(largest: int) -> None:
    pace = StepSize(0.25, min(32, largest), largest, 512)
    assert all(size <= largest for size in settle(pace, lambda n: n / 100_000))


def test_without_a_target_every_step_may_be_as_large_as_it_can() -> None:
    assert set(settle(step_size(math.inf), lambda n: n / 10)) == {2048}


@pytest.mark.parametrize(("n_spent", "size"), [(0, 128), (32.5, 64), (77, 51), (128, 32), (5000, 32)])
def test_what_a_step_has_spent_before_its_decode_is_taken_from_its_size(n_spent: float, size: int) -> None:
    assert step_size(0.1).left_after(n_spent) == size


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
