"""What a cache keeps, as values that nobody changes any more, for who looks."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import TypeAlias

from server.engine.kv.ram_cache import StateCache
from server.engine.prefix.hashes import BLOCK

KEPT_S = 2.0
"""How long what is told of kept states is good for."""
MOST_STATES = 60  # of a cache, told one by one: the most valuable ones

KeptText: TypeAlias = tuple[int, Sequence[int]]
"""A kept state's number, and the hashes of its text."""


@dataclass(frozen=True, slots=True)
class KeptView:
    """A prompt state that has no slot. ``number``: its name, as long as it is kept."""

    number: int
    n_tokens: int
    size: int  # bytes
    used_at: float  # by the engine's clock
    n_used: int
    value: float  # as in `engine.kv.cost`


@dataclass(frozen=True, slots=True)
class KeptStates:
    """All that a cache keeps: how many, their bytes, and the `MOST_STATES` most valuable ones."""

    n: int
    n_bytes: int
    states: tuple[KeptView, ...]


def told_of(cache: StateCache, now: float) -> tuple[KeptStates, list[KeptText]]:
    """What a cache keeps, and how those that are told one by one begin."""
    told = nlargest(MOST_STATES, cache, key=lambda state: state.value(now))
    views = [KeptView(id(s), len(s.tokens), s.size, s.used_at, s.n_used, s.value(now)) for s in told]
    texts: list[KeptText] = [(id(s), s.hashes.upto(len(s.tokens) // BLOCK, s.tokens, s.tuning)) for s in told]
    return KeptStates(len(cache), cache.size, tuple(views)), texts
