"""What is learned of costs and of guesses, and how many guesses follow from it."""

import random
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


def test_before_anything_was_seen_a_step_has_no_cost() -> None:
    assert StepCost().of(3) == 0.0


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


def test_a_step_that_has_become_longer_is_believed_after_a_while() -> None:
    cost = linear(0.01, 0.0)
    for _ in range(60):
        cost.observe(8, 0.03)
    assert cost.of(8) > 0.025


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


SMOLLM2_MS = {1: 6.84, 2: 12.21, 3: 14.83, 4: 17.41, 6: 24.45, 8: 27.63, 9: 32.04, 12: 37.57, 14: 44.75, 17: 51.41}
"""Steps of SmolLM2-135M in 4 bits by their tokens, on two cores of an AMD EPYC."""


def evaluations_of_a_copy(rng: random.Random, jitter: float) -> int:
    """Steps for five copies with an edit every 25 tokens; every other step takes longer, by `jitter` in the mean."""
    cost, known = StepCost(), StepCost()
    for n, ms in SMOLLM2_MS.items():
        known.observe(n, ms)

    def disturbed() -> float:
        return 1 + (rng.expovariate(1 / jitter) if jitter and rng.random() < 0.5 else 0.0)

    n_steps = 0
    for prompt in ([*range(base, base + 250)] for base in range(0, 5000, 1000)):
        reply = [-token if token % 25 == 0 else token for token in prompt]
        state = DraftState(16, lookups=(Lookup(3, 500),))
        state.lookups[0].extend([*prompt, 0, *reply[:3]])
        cost.observe_prompt(len(prompt), 2.0 * len(prompt) * disturbed())
        at = 3
        while at < len(reply):
            guess = state.look_up(min(16, len(reply) - at - 1))
            guess = guess[: draft_length([state.acceptance], 1, cost.of, len(guess), 16).length]
            cost.observe(1 + len(guess), known.of(1 + len(guess)) * disturbed())
            n_steps += 1
            for guessed in [*guess, None]:
                state.add(reply[at])
                at += 1
                if guessed != reply[at - 1]:
                    break
    return n_steps


@pytest.mark.parametrize("jitter", [0.05, 0.3, 1.0])
def test_whatever_else_the_machine_does_the_same_text_takes_about_as_many_steps(jitter: float) -> None:
    """A step that was disturbed kept its size from being tried again: three times as many were seen."""
    undisturbed = evaluations_of_a_copy(random.Random(0), 0.0)
    assert undisturbed < 0.3 * 5 * 250
    for seed in range(20):
        assert evaluations_of_a_copy(random.Random(seed), jitter) < 1.4 * undisturbed


def looking_up(tokens: list[int]) -> DraftState:
    state = DraftState(16, lookups=(Lookup(2, 4096),))
    state.lookups[0].extend(tokens)
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


def test_what_lies_behind_a_wrong_token_says_nothing() -> None:
    state = looking_up([*range(10, 60), 1, 10, 11])
    state.look_up(16)
    state.add(999)
    after = state.acceptance
    state.add(13)
    assert state.acceptance == after


def test_what_a_draft_model_says_is_judged_by_itself() -> None:
    state = looking_up([])
    state.draft_acceptance = 0.5
    state.expect([1, 2, 3])
    before = state.acceptance
    for token in (1, 2, 9):
        state.add(token)
    assert state.acceptance == before
    assert 0.5 < state.draft_acceptance < 0.8


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


def test_where_a_token_costs_as_much_as_a_step_nothing_is_drafted() -> None:
    assert draft_length([0.98], 1, per_token(0.0, 0.01), 8, 99).length == 0


def test_nobody_is_slowed_down_for_less_than_others_gain() -> None:
    """One of several sequences repeats its prompt; the others get nothing from its drafts."""

    def alone(n: int) -> int:
        return draft_length([0.97], n, per_token(0.01, 0.003), 16, 99).length

    assert alone(1) > 6
    assert alone(1) > alone(2) > alone(8) == 0


def test_a_draft_is_longer_the_cheaper_and_the_better_it_is() -> None:
    def length(p: float, draft_s: float) -> int:
        return draft_length([p], 1, per_token(0.009, 0.001), 16, 99, lambda n: draft_s).length

    assert length(0.9, 0.0002) > length(0.9, 0.002) > 0
    assert length(0.9, 0.0002) > length(0.5, 0.0002)
    assert length(0.5, 0.02) == 0


def test_only_the_sequences_that_do_well_are_drafted_for() -> None:
    chosen = draft_length([0.95, 0.9, 0.05, 0.02], 4, per_token(0.01, 0.0003), 16, 99, lambda n: 0.0001 * n)
    assert chosen.count == 2
    assert chosen.length > 1
