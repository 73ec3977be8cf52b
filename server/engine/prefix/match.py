"""Which cells of which slot a prompt can reuse. Pure; see docs/adr/0002 for why this is no radix tree.

And which runs of cached tokens it can reuse at other positions (llama-server's ``n_cache_reuse``). Cells that move
were computed behind other text, so what follows from them is an approximation: only for requests that ask for it, and
never reused as an exact prefix.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from server.engine.lora import BARE, Tuning


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that `a` and `b` share.

    Most pairs differ early, so the compared stretch doubles; slices of lists compare at the speed of C.
    """
    limit = min(len(a), len(b))
    done, step = 0, 8
    while done < limit:
        end = min(done + step, limit)
        if a[done:end] == b[done:end]:
            done, step = end, step * 2
            continue
        while end - done > 1:
            middle = (done + end) // 2
            if a[done:middle] == b[done:middle]:
                done = middle
            else:
                end = middle
        return done
    return limit


class Cached(Protocol):
    """A slot, as far as its cells matter here."""

    id: int
    tokens: list[int]

    def reusable(self, n: int, wanted: Tuning) -> int: ...


S = TypeVar("S", bound=Cached)


def longest_match(
    prompt: Sequence[int],
    slots: Iterable[S],
    wanted: Tuning = BARE,
    most: int | None = None,
    known: tuple[S, int] | None = None,
) -> tuple[S | None, int]:
    """The slot from which most of `prompt`'s beginning can be had under `wanted`, `most` tokens of it, and how many.

    `known`: one that is known to begin with so many of its tokens.
    Also called on the event loop while a step thread changes the slots: slices, which are never out of range.
    """
    limit = len(prompt) if most is None else most
    best: S | None = None
    longest = 0
    if known is not None:
        best, longest = known[0], known[0].reusable(min(known[1], limit), wanted)
    following = prompt[longest : longest + 1]
    for slot in slots:
        tokens = slot.tokens
        if tokens[longest : longest + 1] == following:
            n = slot.reusable(min(common_prefix(prompt, tokens), limit), wanted)
            if n > longest:
                best, longest, following = slot, n, prompt[n : n + 1]
                if longest >= limit:
                    break
    return best, longest


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


def _packed(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


def _find(packed: bytes, run: bytes, start: int) -> int:
    """The first token at which `run` begins, from `start` on; -1: none."""
    at = packed.find(run, start * _WIDTH)
    while at >= 0 and at % _WIDTH:
        at = packed.find(run, at + 1)
    return at // _WIDTH
