"""Guesses from the text so far."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.speculate.lookup import CHUNK, Ends, Lookup


def over(tokens: list[int], size: int = 2, n_text: int = 4096) -> Lookup:
    lookup = Lookup(size, n_text)
    lookup.extend(tokens)
    return lookup


def test_what_followed_the_same_tokens_last_is_guessed() -> None:
    lookup = over([1, 2, 3, 4, 1, 2, 9, 1, 2])
    assert lookup.propose(4) == [9, 1, 2, 9]


def test_a_draft_is_no_longer_than_its_type_allows() -> None:
    lookup = Lookup(2, 99, longest=3)
    lookup.extend([1, 2, 3, 4, 1, 2, 9, 1, 2])
    assert lookup.propose(4) == [9, 1, 2]


def test_a_text_is_followed_past_a_token_that_was_replaced() -> None:
    lookup = over([*range(10, 30), 1, 10, 11, 12, 13])
    assert lookup.propose(2) == [14, 15]
    lookup.add(99)
    assert lookup.propose(2) == [15, 16]
    lookup.add(15)
    assert lookup.propose(2) == [16, 17]


def test_a_text_is_not_followed_for_long_when_it_differs() -> None:
    lookup = over([*range(10, 30), 1, 10, 11, 12, 13])
    assert lookup.propose(2)
    for token in range(200, 204):
        lookup.add(token)
    assert lookup.propose(2) == []


def test_a_place_that_is_followed_is_left_only_for_one_that_matches_longer() -> None:
    lookup = over([*range(10, 30), 1, 40, 41, 11, 12, 5, 2, 10, 11, 12])
    assert lookup.propose(1) == [5], "the last place of two tokens"
    lookup = over([40, 41, 11, 12, 5, *range(10, 30), 2, 40, 41])
    assert lookup.propose(1) == [11]
    for token, expected in ((11, 12), (12, 5)):
        lookup.add(token)
        assert lookup.propose(1) == [expected], "followed, though the tokens were said elsewhere since"


def test_a_text_without_repetition_gives_nothing() -> None:
    assert over(list(range(100))).propose(8) == []
    assert over([1]).propose(8) == []


def test_a_long_prompt_is_indexed_in_parts() -> None:
    lookup = over([*range(3 * CHUNK), 5, 6], n_text=4 * CHUNK)
    assert lookup.catch_up(10) == 10
    found = [bool(lookup.propose(1)) for _ in range(4)]
    assert found == [False, False, True, True]
    assert lookup.propose(1) == [7]
    assert lookup.catch_up() == 0


def test_more_text_than_was_expected_is_no_trouble() -> None:
    lookup = over([i % 50 for i in range(10_000)], n_text=64)
    assert lookup.propose(3) == []
    while lookup.catch_up():
        pass
    assert lookup.propose(3) == [0, 1, 2]


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(1, 10), st.integers(1, 30))
def test_a_guess_follows_an_earlier_occurrence(tokens: list[int], size: int, part: int) -> None:
    lookup = Lookup(size, 256)
    for start in range(0, len(tokens), part):
        lookup.extend(tokens[start : start + part])
        lookup.catch_up()
    guess = lookup.propose(8)
    whole = tokens + guess
    joined = [whole[i : i + size + len(guess)] for i in range(len(tokens) - size)]
    assert not guess or tokens[-size:] + guess in joined


@given(st.lists(st.integers(0, 2**31 - 1), min_size=20, max_size=60))
def test_the_index_is_the_same_one_by_one_and_at_once(tokens: list[int]) -> None:
    at_once, one_by_one = Ends(3, 64), Ends(3, 64)
    at_once.add(tokens, 0, len(tokens))
    for i in range(len(tokens)):
        one_by_one.add(tokens, i, i + 1)
    assert (at_once._table == one_by_one._table).all()
