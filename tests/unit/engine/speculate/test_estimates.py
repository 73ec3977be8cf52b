"""What is learned of costs and chances, and how many guesses follow from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.speculate.chances import Chances, Own, drafted_kind, text_kinds
from server.engine.speculate.choice import draft_length, lengths
from server.engine.speculate.cost import StepCost
from server.engine.speculate.credit import START_STEPS, Credit

REACHES = st.lists(st.lists(st.floats(0.0, 0.99), max_size=16).map(lambda r: sorted(r, reverse=True)), max_size=8)


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


def test_a_kind_that_is_often_right_is_believed_more() -> None:
    chances, own = Chances(), Own()
    before = chances.of(3)
    for _ in range(20):
        chances.learn([3], 1, own)
    assert chances.of(3) > before
    for _ in range(200):
        chances.learn([3], 0, own)
    assert chances.of(3) < 0.2


def test_what_lies_behind_a_wrong_token_says_nothing() -> None:
    chances = Chances()
    before = chances.of(5)
    chances.learn([1, 2, 5, 5, 5], 1, Own())
    assert chances.of(5) == before


def test_a_sequence_that_does_worse_than_its_kinds_is_believed_less() -> None:
    chances, good, bad = Chances(), Own(), Own()
    for _ in range(5):
        chances.learn([4], 0, bad)
        chances.learn([4, 4], 2, good)
    assert chances.reach([4], bad)[0] < chances.reach([4], good)[0]


def test_kinds_rise_along_a_match_and_with_the_drafts_probability() -> None:
    assert text_kinds(3, 30) == sorted(text_kinds(3, 30))
    assert len(text_kinds(60, 20)) == len(text_kinds(100, 20)) == 20
    kinds = [drafted_kind(p / 100) for p in range(101)]
    assert kinds == sorted(kinds)


@given(REACHES, st.integers(0, 40), st.floats(1e-4, 1.0), st.floats(0.0, 0.1), st.floats(0.0, 2.0))
def test_no_more_is_taken_than_there_is_room_and_credit_for(
    reaches: list[list[float]], most: int, base_s: float, token_s: float, credit_s: float
) -> None:
    chosen = lengths(reaches, max(len(reaches), 1), base_s, lambda n: n * token_s, most, credit_s)
    assert sum(chosen) <= most
    assert sum(chosen) * token_s <= credit_s
    assert all(n <= len(reach) for n, reach in zip(chosen, reaches, strict=True))


def test_the_likeliest_tokens_of_all_guesses_are_taken() -> None:
    reaches = [[0.9, 0.8, 0.7], [0.3, 0.1], [0.95, 0.2]]
    assert lengths(reaches, 3, 0.03, lambda n: n * 0.004, 99, 9.0) == [2, 0, 1]


def test_where_a_token_costs_as_much_as_a_step_nothing_is_taken() -> None:
    assert lengths([[0.98] * 8], 1, 0.01, lambda n: n * 0.01, 99, 9.0) == [0]


def test_nobody_is_slowed_down_for_less_than_others_gain() -> None:
    def alone(n: int) -> list[int]:
        return lengths(
            [[0.97**i for i in range(1, 17)]] + [[]] * (n - 1), n, 0.01 + 0.003 * n, lambda k: k * 0.003, 99, 9
        )

    assert alone(1)[0] > 8
    assert alone(2)[0] > alone(4)[0] > alone(8)[0] == 0


def test_a_draft_is_longer_the_cheaper_and_the_better_it_is() -> None:
    def length(p: float, draft_s: float) -> int:
        return draft_length([p], 1, 0.01, lambda n: draft_s, lambda n: n * 0.001, 16)[1]

    assert length(0.9, 0.0002) > length(0.9, 0.002) > 0
    assert length(0.9, 0.0002) > length(0.5, 0.0002)
    assert length(0.5, 0.02) == 0


def test_only_the_sequences_that_do_well_are_drafted_for() -> None:
    count, length = draft_length([0.95, 0.9, 0.05, 0.02], 4, 0.01, lambda n: 0.0001 * n, lambda n: n * 0.0003, 16)
    assert count == 2
    assert length > 1


def test_the_account_is_bounded_on_both_sides() -> None:
    credit = Credit()
    credit.earn(0.01)
    assert credit.left_s == pytest.approx(START_STEPS * 0.01, rel=0.01)
    credit.spend(0.0, 100.0, trial=False)
    assert credit.left_s <= 0.2
    credit.spend(0.5, 0.0, trial=False)
    assert credit.left_s < 0
    for _ in range(10_000):
        credit.earn(0.01)
    assert 0 < credit.left_s <= 0.2
    assert 0 < credit.trial_s <= 0.02
