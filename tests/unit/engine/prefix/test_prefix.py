"""Prefix matching."""

from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from server.engine.lora import Tuning
from server.engine.prefix.match import common_prefix, longest_match

TOKENS = st.lists(st.integers(0, 2), max_size=60)


@dataclass
class Cache:
    id: int
    tokens: list[int] = field(default_factory=list)

    def reusable(self, n: int, _wanted: Tuning) -> int:
        return n


class Emptied:
    """A slot that its step thread clears while it is looked at."""

    id = 0

    def __init__(self) -> None:
        self._looks = iter(([1, 2], []))

    @property
    def tokens(self) -> list[int]:
        return next(self._looks, [])

    def reusable(self, n: int, _wanted: Tuning) -> int:
        return n


def test_a_slot_that_is_cleared_meanwhile_is_no_error() -> None:
    slots: Any = [Emptied(), Cache(1, [1])]
    assert longest_match([1, 2, 3], slots)[1] in (1, 2)


@given(TOKENS, TOKENS, TOKENS)
def test_it_is_the_longest_shared_beginning(head: list[int], a: list[int], b: list[int]) -> None:
    assert common_prefix(head + a, head + b) == sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(head + a, head + b, strict=False))
    )


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.lists(TOKENS, max_size=6))
def test_the_match_is_at_least_as_long_as_any(prompt: list[int], caches: list[list[int]]) -> None:
    slots = [Cache(i, tokens) for i, tokens in enumerate(caches)]
    slot, n = longest_match(prompt, slots)
    assert n == max((common_prefix(prompt, c) for c in caches), default=0)
    assert (slot is None) == (n == 0)
    assert slot is None or common_prefix(prompt, slot.tokens) == n
