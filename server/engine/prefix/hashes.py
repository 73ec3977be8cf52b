"""What two texts begin with: compared token by token, or by hashes of beginnings, which stay with the text so that each
is computed once; and how a state that begins as a prompt does is found among thousands of kept ones. Pure.

Tokens are hashed in blocks, each hash with that of the block before it, so that equal beginnings have equal hashes.
What a look-up finds by these is compared token by token, so that a collision changes nothing (docs/adr/0002).
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from server.engine.lora import Tuning

if TYPE_CHECKING:  # a cache has an index
    from server.engine.kv.ram_cache import KeptState

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
        try:
            return max(n_equal(self._hashes, other._hashes) - 1, 0) * BLOCK
        except IndexError:  # it was cut
            return 0

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
        other = PrefixHashes()
        other._hashes = self._hashes.copy()
        return other


def n_equal(a: Sequence[int], b: Sequence[int]) -> int:
    """How many hashes of beginnings both begin with; each stands for all before it, so that a few are compared."""
    return bisect_left(range(min(len(a), len(b))), True, key=lambda at: a[at] != b[at])


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


MOST = 16  # entries that one look-up compares


class PrefixIndex:
    """Entries by the hash of each of their beginnings that is a whole number of blocks, of no blocks, too."""

    def __init__(self) -> None:
        self._begins: dict[int, dict[int, KeptState]] = {}  # in it by identity, in the order in which they came
        self._ends: dict[int, dict[int, KeptState]] = {}  # by the last hash alone

    def add(self, entry: "KeptState") -> None:
        """Take `entry` in; its tokens must not change any more."""
        hashes, key, begins = self._hashes(entry), id(entry), self._begins
        for each in hashes:
            if each in begins:
                begins[each][key] = entry
            else:
                begins[each] = {key: entry}
        self._ends.setdefault(hashes[-1], {})[key] = entry

    def remove(self, entry: "KeptState") -> None:
        hashes, key = self._hashes(entry), id(entry)
        for where, at in ((self._begins, hashes), (self._ends, hashes[-1:])):
            for each in at:
                del where[each][key]
                if not where[each]:
                    del where[each]

    @staticmethod
    def _hashes(entry: "KeptState") -> list[int]:
        n_blocks = len(entry.tokens) // BLOCK
        return entry.hashes.upto(n_blocks, entry.tokens, entry.tuning)[: n_blocks + 1]

    def _deepest(self, tokens: Sequence[int], tuning: Tuning, hashes: PrefixHashes | None, most: int) -> list[int]:
        """The hashes of as many of the first `most` tokens as some entry begins with; of what follows few are made."""
        known, n_blocks = hashes or PrefixHashes(), most // BLOCK
        low, step = 0, 8
        while True:
            high = min(low + step, n_blocks + 1)
            found = known.upto(high - 1, tokens, tuning)
            at = bisect_left(found, True, low, high, key=lambda each: each not in self._begins)
            if at < high or high > n_blocks:
                return found[:at]
            low, step = high, step * 2

    def match(
        self,
        prompt: Sequence[int],
        wanted: Tuning,
        at_least: int,
        hashes: PrefixHashes | None = None,
        most: int | None = None,
    ) -> "tuple[KeptState | None, int]":
        """The entry of which most can be reused, more than `at_least` tokens and no more than `most`, and how many.

        Up to a block's tokens may be missed when more than `MOST` entries begin in the same way. `hashes` are the
        prompt's, where somebody has them.
        """
        best: KeptState | None = None
        longest = at_least
        most = len(prompt) if most is None else most
        seen: set[int] = set()
        path = self._deepest(prompt, wanted, hashes, most)
        for n_blocks in range(len(path) - 1, -1, -1):
            if longest >= (n_blocks + 1) * BLOCK or len(seen) >= MOST:  # nobody before has so much in common
                break
            members = self._begins[path[n_blocks]]
            if len(members) == len(seen):  # who begins with more begins with this, too
                continue
            for entry in reversed(members.values()):  # the youngest first
                if id(entry) in seen:
                    continue
                seen.add(id(entry))
                n = entry.reusable(min(_in_common(prompt, entry.tokens, n_blocks), most), wanted)
                if n > longest:
                    best, longest = entry, n
                if len(seen) >= MOST:
                    break
        if best is None or common_prefix(prompt, best.tokens) < longest:  # the latter: hashes that are equal by chance
            return None, 0
        return best, longest

    def parted(self, prompt: Sequence[int], wanted: Tuning, hashes: PrefixHashes | None = None) -> int:
        """How much of its beginning `prompt` has in common with some entry, up to a block's tokens more or less."""
        path = self._deepest(prompt, wanted, hashes, len(prompt))
        entries = list(self._begins[path[-1]].values())[-MOST:] if path else []
        return max((_in_common(prompt, entry.tokens, len(path) - 1) for entry in entries), default=0)

    def within(self, tokens: Sequence[int], tuning: Tuning, hashes: PrefixHashes | None = None) -> "list[KeptState]":
        """Entries with the same tuning that `tokens` begins with or is equal to."""
        path = self._deepest(tokens, tuning, hashes, len(tokens))
        ending = [entry for each in path for entry in self._ends.get(each, {}).values() if entry.tuning == tuning]
        return [e for e in ending if len(e.tokens) <= len(tokens) and common_prefix(e.tokens, tokens) == len(e.tokens)]


def _in_common(a: Sequence[int], b: Sequence[int], n_blocks: int) -> int:
    """As `common_prefix`, for two that share so many blocks by their hashes, and no further one."""
    start, end = n_blocks * BLOCK, (n_blocks + 1) * BLOCK
    return start + common_prefix(a[start:end], b[start:end])
