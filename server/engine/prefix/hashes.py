"""What two texts begin with: compared token by token, or by hashes of beginnings, which stay with the text so that each
is computed once. Pure.

Tokens are hashed in blocks, each hash with that of the block before it, so that equal beginnings have equal hashes.
"""

from collections.abc import Sequence
from contextlib import suppress

from server.engine.lora import Tuning

BLOCK = 16  # tokens


def _none(tuning: Tuning) -> int:
    """The hash of no tokens."""
    return hash((tuning.scope, tuning.at(0)))


class PrefixHashes:
    """The hashes of one text that may grow or be cut, as far as somebody has asked for it.

    Whoever changes tokens that were hashed says so (`cut`, `forget`); those that are added need no word.
    """

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes: list[int] = []

    def upto(self, n_blocks: int, tokens: Sequence[int], tuning: Tuning) -> list[int]:
        """At least the hashes of the first `n_blocks` blocks of `tokens`, which has so many, behind that of none.

        What computes the first token, and for whom, is part of the latter. The list is their own, for reading.
        """
        hashes, none = self._hashes, _none(tuning)
        if not hashes or hashes[0] != none:
            hashes[:] = [none]
        n_known = len(hashes) - 1
        if n_known < n_blocks:
            at = hashes[-1]
            further = iter(tokens[n_known * BLOCK : n_blocks * BLOCK])
            for block in zip(*[further] * BLOCK, strict=True):  # the fastest way to blocks
                at = hash((at, block))
                hashes.append(at)
        return hashes

    def shared(self, other: "PrefixHashes") -> int:
        """Tokens, in whole blocks, that both texts begin with, as far as both are known; a few comparisons, whatever
        their length. Nothing but hashes is compared; another thread may change `other` meanwhile: it is a guess."""
        ours, theirs = self._hashes, other._hashes
        low, high = 0, min(len(ours), len(theirs))
        with suppress(IndexError):  # it was cut
            while low < high:
                middle = (low + high) // 2
                if ours[middle] == theirs[middle]:
                    low = middle + 1
                else:
                    high = middle
        return max(low - 1, 0) * BLOCK

    def cut(self, n_tokens: int) -> None:
        """Only the first `n_tokens` tokens are still what they were."""
        del self._hashes[n_tokens // BLOCK + 1 :]

    def forget(self) -> None:
        """The text is another one now."""
        self._hashes = []

    def fits(self, tokens: Sequence[int], tuning: Tuning) -> bool:
        """Whether what is known is true of `tokens`; for tests."""
        known = self._hashes
        if not known or known[0] != _none(tuning):  # nothing is known, or it will be computed anew
            return True
        return known == PrefixHashes().upto(len(tokens) // BLOCK, tokens, tuning)[: len(known)]

    def copy(self) -> "PrefixHashes":
        """For a copy of the text."""
        other = PrefixHashes()
        other._hashes = self._hashes.copy()
        return other


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
