"""Which runs of cached tokens a prompt can reuse at other positions (llama-server's ``n_cache_reuse``). Pure.

Cells that move were computed behind other text, so what follows from them is an approximation: only for requests
that ask for it, and never reused as an exact prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from server.engine.prefix import common_prefix


@dataclass(frozen=True, slots=True)
class Move:
    """Bring the ``n`` cells at ``source`` to ``target`` <= source; what lies between is forgotten."""

    source: int
    target: int
    n: int


def moves(cached: Sequence[int], prompt: Sequence[int], prefix: int, smallest: int) -> list[Move]:
    """The moves, in order, that bring runs of at least `smallest` tokens behind the common `prefix` to their place.

    Greedy as the reference (server-context.cpp, update_slots): each run is the next one in the cache that
    continues the prompt. Positions in later moves count from the cache as it was at first.
    """
    found: list[Move] = []
    head, at = prefix, prefix
    while head + smallest <= len(cached) and at + smallest <= len(prompt):
        # the slices of few tokens first: long ones for each common token would be quadratic
        if cached[head] == prompt[at] and cached[head : head + smallest] == prompt[at : at + smallest]:
            n = common_prefix(cached[head : head + len(prompt) - at], prompt[at:])
            found.append(Move(head, at, n))
            head, at = head + n, at + n
        else:
            head += 1
    return found
