"""The order of prefills (`in_prefill_order`), and the adaptive number of tokens per step (`StepSize`). Pure."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.scheduler import AGING_WEIGHT, StepSize, in_prefill_order
from server.engine.sequence import Sequence, Slot
from tests.unit.engine.builders import sequence

RATE = 1000.0


def prompt(n: int, *, at: float = 0.0, priority: int = 0, served: float = 0.0) -> Sequence:
    """Return a prompt of `n` tokens, placed at time `at`, whose client was `served` so many tokens."""
    client = str(served)  # read back by `ordered`
    made = sequence([1] * n, at=at, slot=Slot(), priority=priority, client=client)
    made.placed_at = at
    return made


def ordered(prompts: list[Sequence], rate: float = RATE) -> list[Sequence]:
    return in_prefill_order(prompts, rate, float)


def test_short_prompt_is_prefilled_before_an_older_long_one() -> None:
    long, short = prompt(100_000, at=1.0), prompt(50, at=2.0)
    assert ordered([long, short]) == [short, long]


def test_short_prompts_delay_a_long_one_for_at_most_four_times_its_prefill() -> None:
    long = prompt(10_000, at=0.0)
    longest_delay_s = 10_000 / RATE / AGING_WEIGHT
    assert ordered([long, prompt(50, at=longest_delay_s * 0.9)])[0] is not long
    assert ordered([long, prompt(50, at=longest_delay_s * 1.1)])[0] is long


@pytest.mark.parametrize("rate", [RATE, 0.0], ids=["measured rate", "unknown rate"])
def test_priority_outweighs_length(rate: float) -> None:
    long, short = prompt(5000, priority=-1, at=2.0), prompt(50, at=1.0)
    assert ordered([short, long], rate)[0] is long


def test_prompt_of_a_client_that_was_served_much_more_is_prefilled_later() -> None:
    short, long = prompt(50, served=10_000.0), prompt(5000, served=100.0)
    assert ordered([short, long])[0] is long


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
def test_prompt_better_in_every_respect_is_first(draws: list[tuple[int, float, int, float]], rate: float) -> None:
    prompts = [prompt(n, at=at, priority=priority, served=served) for n, at, priority, served in draws]
    order = ordered(prompts, rate)
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


def sizes_of(step: StepSize, seconds: Callable[[int], float], n_steps: int = 60) -> list[int]:
    """Return the sizes of full steps, each of which takes `seconds` for its number of tokens."""
    sizes = []
    for _ in range(n_steps):
        sizes.append(step.size)
        step.observe(step.size, seconds(step.size))
    return sizes


def test_step_size_grows_to_the_batch_on_a_fast_machine_and_is_small_on_a_slow_one() -> None:
    assert sizes_of(step_size(0.25), lambda n: n / 100_000)[-1] == 2048
    assert sizes_of(step_size(0.25), lambda n: n / 300)[-1] <= 128


def test_step_that_was_not_full_does_not_change_the_size() -> None:
    step = step_size(0.25)
    before = step.size
    step.observe(4, 10.0)
    assert step.size == before


def test_step_shortened_to_leave_a_whole_tile_can_only_enlarge_the_size() -> None:
    """With steps of 128 tokens, prompts of 150 are computed as 86 and 64."""
    step = step_size(0.25)
    step.observe(86, 0.2)
    assert step.size == 128
    step.observe(86, 0.05)
    assert step.size == 256


@pytest.mark.parametrize("largest", [1, 16, 64])
def test_step_size_never_exceeds_the_batch(largest: int) -> None:
    step = StepSize(0.25, min(32, largest), largest, 512)
    assert all(size <= largest for size in sizes_of(step, lambda n: n / 100_000))


def test_steps_without_a_target_have_the_largest_size() -> None:
    assert set(sizes_of(step_size(math.inf), lambda n: n / 10)) == {2048}


@pytest.mark.parametrize(("n_spent", "size"), [(0, 128), (32.5, 64), (77, 51), (128, 32), (5000, 32)])
def test_time_spent_before_the_decode_reduces_the_size_of_the_step(n_spent: float, size: int) -> None:
    assert step_size(0.1).left_after(n_spent) == size


def inter_token_gaps(target_s: float, seconds: Callable[[int], float], n_steps: int = 2000) -> list[float]:
    """Return the durations of full steps, sorted. They vary, and one in twenty takes half as long again, because of
    other processes.
    """
    step, draw, gaps = step_size(target_s), random.Random(5), []
    for _ in range(n_steps):
        step_s = seconds(step.size) * (1.5 if draw.random() < 0.05 else draw.uniform(0.97, 1.03))
        step.observe(step.size, step_s)
        gaps.append(step_s)
    return sorted(gaps)


MACHINES = {
    "gpu": lambda n: 0.0015 + max(0.0045, n * 2 * 8e9 / 495e12),
    "cpu": lambda n: 0.02 + n / 400,
    "cpu-with-a-knee": lambda n: max(n, 64) / 300,
}


@pytest.mark.parametrize(
    ("machine", "target_s"), [("gpu", 0.03), ("gpu", 0.25), ("cpu", 0.25), ("cpu-with-a-knee", 0.5)]
)
def test_inter_token_gaps_stay_near_the_target(machine: str, target_s: float) -> None:
    gaps = inter_token_gaps(target_s, MACHINES[machine])
    assert gaps[len(gaps) // 2] <= target_s
    assert gaps[int(len(gaps) * 0.94)] <= 1.1 * target_s
    assert gaps[int(len(gaps) * 0.99)] <= 1.6 * target_s


def test_size_is_reduced_after_two_slow_steps_in_a_row_and_not_after_one() -> None:
    step = step_size(0.3)
    sizes_of(step, lambda n: 0.02 + n / 600)
    before = step.size
    step.observe(before, 3.0)
    assert step.size == before
    step.observe(before, 3.0)
    assert step.size < before
