"""Guesses from the text so far."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.speculate.lookup import CHUNK, Lookup


def over(tokens: list[int], size: int = 2, n_text: int = 4096) -> Lookup:
    lookup = Lookup(size, n_text)
    lookup.extend(tokens)
    return lookup


def test_what_followed_the_same_tokens_last_is_guessed() -> None:
    lookup = over([1, 2, 3, 4, 1, 2, 9, 1, 2])
    assert lookup.propose(4) == [9, 1, 2, 9]


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


def test_a_long_prompt_is_indexed_in_parts() -> None:
    lookup = over([*range(3 * CHUNK), 5, 6], n_text=4 * CHUNK)
    assert lookup.catch_up(10) == 10
    found = [bool(lookup.propose(1)) for _ in range(4)]
    assert found == [False, False, True, True]
    assert lookup.propose(1) == [7]
    assert lookup.catch_up() == 0


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
