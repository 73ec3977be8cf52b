"""Common prefixes of two texts, by token comparison or by cached block hashes, and an index of cached entries by
prefix. Pure.

Tokens are hashed in blocks, each hash including the previous one, so equal prefixes have equal hashes. Matches found
by hash are verified token by token, so collisions change nothing (docs/adr/0002).
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from server.engine.lora import AdapterSet

if TYPE_CHECKING:  # a cache has an index
    from server.engine.kv.ram_cache import CacheEntry

BLOCK = 16  # tokens


def _none(adapter_set: AdapterSet) -> int:
    """Return the hash of the empty prefix."""
    return hash((adapter_set.scope, adapter_set.at(0)))


class PrefixHashes:
    """The block hashes of one text that may grow or be truncated, computed on demand.

    Code that changes hashed tokens must call `cut` or `forget`; appending needs no call.
    """

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes: list[int] = []

    def upto(self, n_blocks: int, tokens: Sequence[int], adapter_set: AdapterSet) -> list[int]:
        """Return at least the hashes of the first `n_blocks` blocks of `tokens`, after that of the empty prefix.

        The adapter set and namespace are part of the empty prefix's hash. The returned list is internal: read only.
        """
        hashes, none = self._hashes, _none(adapter_set)
        if not hashes or hashes[0] != none:
            hashes[:] = [none]
        n_known = len(hashes) - 1
        if n_known < n_blocks:
            at = hashes[-1]
            further = iter(tokens[n_known * BLOCK : n_blocks * BLOCK])
            for block in zip(*[further] * BLOCK, strict=True):  # the fastest way to form blocks
                at = hash((at, block))
                hashes.append(at)
        return hashes

    def shared(self, other: "PrefixHashes") -> int:
        """Return the common prefix in tokens, in whole blocks, as far as both are hashed. Compares hashes only; another
        thread may change `other` meanwhile, so it is an estimate.
        """
        try:
            return max(n_equal(self._hashes, other._hashes) - 1, 0) * BLOCK
        except IndexError:  # it was truncated meanwhile
            return 0

    def cut(self, n_tokens: int) -> None:
        """Keep the hashes of the first `n_tokens` tokens."""
        del self._hashes[n_tokens // BLOCK + 1 :]

    def forget(self) -> None:
        """Drop all hashes."""
        self._hashes = []

    def fits(self, tokens: Sequence[int], adapter_set: AdapterSet) -> bool:
        """Whether the hashes are correct for `tokens`; for tests."""
        known = self._hashes
        if not known or known[0] != _none(adapter_set):  # nothing is hashed, or it will be recomputed
            return True
        return known == PrefixHashes().upto(len(tokens) // BLOCK, tokens, adapter_set)[: len(known)]

    def copy(self) -> "PrefixHashes":
        other = PrefixHashes()
        other._hashes = self._hashes.copy()
        return other


def n_equal(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of common leading hashes. Each covers everything before it, so a binary search suffices."""
    return bisect_left(range(min(len(a), len(b))), True, key=lambda at: a[at] != b[at])


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of leading tokens that `a` and `b` share.

    Most pairs differ early, so the compared stretch doubles; list slices compare at C speed.
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


MOST = 16  # entries that one lookup compares


class PrefixIndex:
    """Entries by the hash of each of their whole-block prefixes, including the empty one."""

    def __init__(self) -> None:
        self._begins: dict[int, dict[int, CacheEntry]] = {}  # by identity, in insertion order
        self._ends: dict[int, dict[int, CacheEntry]] = {}  # by the last hash

    def add(self, entry: "CacheEntry") -> None:
        """Add `entry`, whose tokens must not change any more."""
        hashes, key, begins = self._hashes(entry), id(entry), self._begins
        for each in hashes:
            if each in begins:
                begins[each][key] = entry
            else:
                begins[each] = {key: entry}
        self._ends.setdefault(hashes[-1], {})[key] = entry

    def remove(self, entry: "CacheEntry") -> None:
        hashes, key = self._hashes(entry), id(entry)
        for where, at in ((self._begins, hashes), (self._ends, hashes[-1:])):
            for each in at:
                del where[each][key]
                if not where[each]:
                    del where[each]

    @staticmethod
    def _hashes(entry: "CacheEntry") -> list[int]:
        n_blocks = len(entry.tokens) // BLOCK
        return entry.hashes.upto(n_blocks, entry.tokens, entry.adapter_set)[: n_blocks + 1]

    def _deepest(
        self, tokens: Sequence[int], adapter_set: AdapterSet, hashes: PrefixHashes | None, most: int
    ) -> list[int]:
        """Return the hashes of the longest prefix, within the first `most` tokens, that some entry shares."""
        known, n_blocks = hashes or PrefixHashes(), most // BLOCK
        low, step = 0, 8
        while True:
            high = min(low + step, n_blocks + 1)
            found = known.upto(high - 1, tokens, adapter_set)
            at = bisect_left(found, True, low, high, key=lambda each: each not in self._begins)
            if at < high or high > n_blocks:
                return found[:at]
            low, step = high, step * 2

    def match(
        self,
        prompt: Sequence[int],
        wanted: AdapterSet,
        at_least: int,
        hashes: PrefixHashes | None = None,
        most: int | None = None,
    ) -> "tuple[CacheEntry | None, int]":
        """Return the entry with the most reusable tokens, more than `at_least` and at most `most`, and that number.

        May miss up to a block of tokens if more than `MOST` entries share a prefix. `hashes`: of the prompt, if
        available.
        """
        best: CacheEntry | None = None
        longest = at_least
        most = len(prompt) if most is None else most
        seen: set[int] = set()
        path = self._deepest(prompt, wanted, hashes, most)
        for n_blocks in range(len(path) - 1, -1, -1):
            if longest >= (n_blocks + 1) * BLOCK or len(seen) >= MOST:  # no shorter prefix can be better
                break
            members = self._begins[path[n_blocks]]
            if len(members) == len(seen):  # entries sharing more were already compared
                continue
            for entry in reversed(members.values()):  # newest first
                if id(entry) in seen:
                    continue
                seen.add(id(entry))
                n = entry.reusable(min(_in_common(prompt, entry.tokens, n_blocks), most), wanted)
                if n > longest:
                    best, longest = entry, n
                if len(seen) >= MOST:
                    break
        if best is None or common_prefix(prompt, best.tokens) < longest:  # the latter: a hash collision
            return None, 0
        return best, longest

    def divergence(self, prompt: Sequence[int], wanted: AdapterSet, hashes: PrefixHashes | None = None) -> int:
        """Return the length of the longest prefix that `prompt` shares with some entry, accurate to one block."""
        path = self._deepest(prompt, wanted, hashes, len(prompt))
        entries = list(self._begins[path[-1]].values())[-MOST:] if path else []
        return max((_in_common(prompt, entry.tokens, len(path) - 1) for entry in entries), default=0)

    def within(
        self, tokens: Sequence[int], adapter_set: AdapterSet, hashes: PrefixHashes | None = None
    ) -> "list[CacheEntry]":
        """Return the entries with the same adapter set that are equal to `tokens` or a prefix of them."""
        path = self._deepest(tokens, adapter_set, hashes, len(tokens))
        ending = [
            entry for each in path for entry in self._ends.get(each, {}).values() if entry.adapter_set == adapter_set
        ]
        return [e for e in ending if len(e.tokens) <= len(tokens) and common_prefix(e.tokens, tokens) == len(e.tokens)]


def _in_common(a: Sequence[int], b: Sequence[int], n_blocks: int) -> int:
    """As `common_prefix`, for texts that share exactly `n_blocks` blocks by their hashes."""
    start, end = n_blocks * BLOCK, (n_blocks + 1) * BLOCK
    return start + common_prefix(a[start:end], b[start:end])
