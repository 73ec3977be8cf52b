"""Prefix matching."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from server.engine.costs import MoveCost
from server.engine.params import EngineParams
from server.engine.placement import Placer
from server.engine.prefix_cache import StateCache, common_prefix
from server.engine.request import Request
from server.engine.runner_api import RunnerInfo
from server.engine.sequence import Sequence, Slot, Ticket

TOKENS = st.lists(st.integers(0, 2), max_size=60)


@given(TOKENS, TOKENS, TOKENS)
def test_it_is_the_longest_shared_beginning(head: list[int], a: list[int], b: list[int]) -> None:
    assert common_prefix(head + a, head + b) == sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(head + a, head + b, strict=False))
    )


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.lists(TOKENS, max_size=6))
def test_the_match_is_at_least_as_long_as_any(prompt: list[int], caches: list[list[int]]) -> None:
    slots = [Slot(i, tokens) for i, tokens in enumerate(caches)]
    info = RunnerInfo(len(slots), 100, 100, 100, 100, unified=True)
    placer = Placer(slots, StateCache(0), info, EngineParams(), MoveCost())
    slot, n = placer._match(Sequence(Ticket(Request("r", [*prompt, 9]), lambda events: None, 0.0), 0))
    assert n == max((common_prefix(prompt, c) for c in caches), default=0)
    assert (slot is None) == (n == 0)
    assert slot is None or common_prefix(prompt, slot.tokens) == n
