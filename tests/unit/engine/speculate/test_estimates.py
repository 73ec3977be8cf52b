"""What is learned of costs and of guesses, and how many guesses follow from it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.speculate.cost import FORGET, DraftState, StepCost, draft_length
from server.engine.speculate.lookup import Lookup


def linear(base_s: float, token_s: float) -> StepCost:
    cost = StepCost()
    for n in (1, 2, 8, 64):
        cost.observe(n, base_s + token_s * n)
    return cost


def test_a_step_between_two_known_ones_lies_on_their_line() -> None:
    cost = linear(0.01, 0.003)
    assert cost.of(5) == pytest.approx(0.025)
    assert cost.of(100) == pytest.approx(0.31, rel=0.05)


def test_until_a_larger_step_was_seen_a_prompts_tokens_tell_what_one_more_costs() -> None:
    cost = StepCost()
    cost.observe(1, 0.012)
    assert cost.of(2) == pytest.approx(0.018)
    cost.observe_prompt(512, 0.512)
    assert cost.of(2) == pytest.approx(0.013)


def test_steps_that_are_disturbed_now_and_then_count_little() -> None:
    cost = linear(0.01, 0.001)
    for i in range(100):
        cost.observe(8, 0.1 if i % 4 == 0 else 0.018)
        cost.observe(1, 0.05 if i % 5 == 0 else 0.011)
    assert cost.of(8) == pytest.approx(0.018, rel=0.4)
    assert cost.of(1) == pytest.approx(0.011, rel=0.4)


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 1.0)), min_size=1, max_size=30), st.integers(1, 600))
def test_what_a_step_costs_is_never_negative(seen: list[tuple[int, float]], n: int) -> None:
    cost = StepCost()
    for size, seconds in seen:
        cost.observe(size, seconds)
    assert cost.of(n) > 0


def test_a_size_that_was_not_seen_for_long_is_forgotten() -> None:
    cost = StepCost()
    cost.observe(1, 0.01)
    cost.observe(8, 5.0)
    for _ in range(2 * FORGET):
        cost.observe(1, 0.01)
    assert cost.of(8) < 0.1


"""Steps of SmolLM2-135M in 4 bits by their tokens, on two cores of an AMD EPYC."""


def looking_up(tokens: list[int]) -> DraftState:
    state = DraftState(16, Lookup(2, 4096))
    assert state.lookup is not None
    state.lookup.extend(tokens)
    return state


def test_what_the_text_suggests_is_judged_for_nothing_by_what_is_sampled() -> None:
    state = looking_up([*range(10, 60), 1, 10, 11])
    before = state.acceptance
    for token in range(12, 20):
        state.look_up(16)
        state.add(token)
    assert before < 0.5 < state.acceptance
    state.look_up(16)
    state.add(999)
    assert state.acceptance < 0.8


def per_token(base_s: float, token_s: float) -> Callable[[int], float]:
    return lambda n: base_s + n * token_s


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    st.integers(0, 40),
    st.integers(0, 40),
    st.floats(1e-4, 1.0),
    st.floats(0.0, 0.1),
)
def test_no_more_is_drafted_than_there_is_room_for(
    chances: list[float], most: int, room: int, base_s: float, token_s: float
) -> None:
    chances.sort(reverse=True)
    chosen = draft_length(chances, len(chances), per_token(base_s, token_s), most, room)
    assert chosen.length <= most
    assert chosen.count * chosen.length <= room
    assert chosen.count <= len(chances)


def test_a_draft_is_longer_the_cheaper_and_the_better_it_is() -> None:
    def length(p: float, draft_s: float) -> int:
        return draft_length([p], 1, per_token(0.009, 0.001), 16, 99, lambda n: draft_s).length

    assert length(0.9, 0.0002) > length(0.9, 0.002) > 0
    assert length(0.9, 0.0002) > length(0.5, 0.0002)
    assert length(0.5, 0.02) == 0
