"""Which cells of which slot a prompt can reuse. Pure; see docs/adr/0002 for why this is no radix tree."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from server.engine.adapters import BARE, Tuning


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
    prompt: Sequence[int], slots: Iterable[S], wanted: Tuning = BARE, most: int | None = None
) -> tuple[S | None, int]:
    """The slot from which most of `prompt`'s beginning can be had under `wanted`, `most` tokens of it, and how many.

    Also called on the event loop while a step thread changes the slots: slices, which are never out of range.
    """
    best: S | None = None
    longest = 0
    limit = len(prompt) if most is None else most
    following = prompt[:1]
    for slot in slots:
        tokens = slot.tokens
        if tokens[longest : longest + 1] == following:
            n = slot.reusable(min(common_prefix(prompt, tokens), limit), wanted)
            if n > longest:
                best, longest, following = slot, n, prompt[n : n + 1]
                if longest >= limit:
                    break
    return best, longest
