"""Which runs of a slot's cells a prompt can reuse at other positions (llama-server's ``n_cache_reuse``). Pure.

Cells that move were computed behind other text, so what follows from them is an approximation: only for requests that
ask for it, and never reused as an exact prefix.
"""

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from server.engine.media import Spans, whole
from server.engine.prefix.hashes import common_prefix


@dataclass(frozen=True, slots=True)
class Move:
    """Bring the ``n`` cells at ``source`` to ``target`` <= source; what lies between is forgotten."""

    source: int
    target: int
    n: int


def moves(cached: Seq[int], prompt: Seq[int], prefix: int, smallest: int) -> list[Move]:
    """The moves, in order, that bring runs of at least `smallest` tokens behind the common `prefix` to their place.

    Greedy as the reference (server-context.cpp, update_slots): each run is the next one in the cache that
    continues the prompt. Positions in later moves count from the cache as it was at first.
    """
    found: list[Move] = []
    packed, wanted = _packed(cached), _packed(prompt)  # the library's own search is a thousand times as fast
    head, at = prefix, prefix
    while at + smallest <= len(prompt):
        head = _find(packed, wanted[at * _WIDTH : (at + smallest) * _WIDTH], head)
        if head < 0:
            break
        n = common_prefix(packed[head * _WIDTH :], wanted[at * _WIDTH :]) // _WIDTH
        found.append(Move(head, at, n))
        head, at = head + n, at + n
    return found


_WIDTH = array("i").itemsize


def _packed(tokens: Seq[int]) -> bytes:
    return array("i", tokens).tobytes()


def _find(packed: bytes, run: bytes, start: int) -> int:
    """The first token at which `run` begins, from `start` on; -1: none."""
    at = packed.find(run, start * _WIDTH)
    while at >= 0 and at % _WIDTH:
        at = packed.find(run, at + 1)
    return at // _WIDTH


def uncut(runs: list[Move], cached: Spans, wanted: Spans) -> list[Move]:
    """As many of the first `runs` as end in no medium of either text, the last one perhaps shorter."""
    for i, move in enumerate(runs):
        n = whole(wanted, move.target + move.n) - move.target
        n = min(n, whole(cached, move.source + move.n) - move.source)
        if n < move.n:
            return [*runs[:i], *([replace(move, n=n)] if n > 0 else [])]
    return runs
