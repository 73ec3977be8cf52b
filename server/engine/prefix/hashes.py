"""What two texts begin with: compared token by token, or by hashes of beginnings, which stay with the text so that each
is computed once; and how a state that begins as a prompt does is found among thousands of kept ones. Pure.

Tokens are hashed in blocks, each hash with that of the block before it, so that equal beginnings have equal hashes. The
index is a radix tree over these: a look-up compares a few runs of hashes, and what it finds is compared token by token,
so that a collision changes nothing (docs/adr/0002).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

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


MOST = 16  # entries that one look-up compares


K = TypeVar("K", bound="KeptState")


@dataclass(eq=False, slots=True)
class _Run(Generic[K]):
    """Hashes that all of `members` have at this place; ``ends``: who has no whole block behind them. Both by identity,
    in the order in which they came."""

    hashes: list[int]
    members: dict[int, K] = field(default_factory=dict)
    ends: dict[int, K] = field(default_factory=dict)
    children: "dict[int, _Run[K]]" = field(default_factory=dict)  # by their first hash

    def split(self, n: int) -> None:
        """Keep the first `n` hashes; the others become those of an only child."""
        child = _Run(self.hashes[n:], self.members.copy(), self.ends, self.children)
        self.hashes, self.ends, self.children = self.hashes[:n], {}, {child.hashes[0]: child}

    def join(self) -> None:
        """Take an only child in, if that is all there is behind this run."""
        if len(self.children) == 1 and not self.ends:
            (child,) = self.children.values()
            self.hashes, self.ends, self.children = self.hashes + child.hashes, child.ends, child.children


class PrefixIndex(Generic[K]):
    """Entries by the hashes of their blocks."""

    def __init__(self) -> None:
        self._root: _Run[K] = _Run([])

    def add(self, entry: K) -> None:
        """Take `entry` in; its tokens must not change any more."""
        hashes, run, at, key = self._hashes(entry), self._root, 0, id(entry)
        while at < len(hashes):
            child = run.children.get(hashes[at])
            if child is None:
                child = run.children[hashes[at]] = _Run(hashes[at:])
            else:
                n = common_prefix(child.hashes, hashes[at : at + len(child.hashes)])
                if n < len(child.hashes):
                    child.split(n)
            child.members[key] = entry
            run, at = child, at + len(child.hashes)
        run.ends[key] = entry

    def remove(self, entry: K) -> None:
        """Forget `entry`."""
        hashes, run, at, key = self._hashes(entry), self._root, 0, id(entry)
        path = []
        while at < len(hashes):
            path.append(run)
            run = run.children[hashes[at]]
            del run.members[key]
            at += len(run.hashes)
        del run.ends[key]
        for parent in reversed(path):
            if not run.members:
                del parent.children[run.hashes[0]]
            elif run.children:
                run.join()
            run = parent

    @staticmethod
    def _hashes(entry: K) -> list[int]:
        n_blocks = len(entry.tokens) // BLOCK
        return entry.hashes.upto(n_blocks, entry.tokens, entry.tuning)[: n_blocks + 1]

    def _path(
        self, tokens: Sequence[int], tuning: Tuning, hashes: PrefixHashes, most: int
    ) -> list[tuple[_Run[K], int]]:
        """The runs that the first `most` tokens go through, each with the number of blocks up to where they part."""
        path: list[tuple[_Run[K], int]] = []
        n_blocks = most // BLOCK
        run, at = self._root, 0
        while at <= n_blocks:
            child = run.children.get(hashes.upto(at, tokens, tuning)[at])
            if child is None:
                break
            end = min(at + len(child.hashes), n_blocks + 1)
            n = common_prefix(child.hashes, hashes.upto(end - 1, tokens, tuning)[at:end])
            run, at = child, at + n
            path.append((child, at - 1))
            if n < len(child.hashes):
                break
        return path

    def match(
        self,
        prompt: Sequence[int],
        wanted: Tuning,
        at_least: int,
        hashes: PrefixHashes | None = None,
        most: int | None = None,
    ) -> tuple[K | None, int]:
        """The entry of which most can be reused, more than `at_least` tokens and no more than `most`, and how many.

        Up to a block's tokens may be missed when more than `MOST` entries begin in the same way. `hashes` are the
        prompt's, where somebody has them.
        """
        best: K | None = None
        longest, left = at_least, MOST
        most = len(prompt) if most is None else most
        seen: set[int] = set()
        for run, n_blocks in reversed(self._path(prompt, wanted, hashes or PrefixHashes(), most)):
            if longest >= (n_blocks + 1) * BLOCK or not left:  # nobody further up has so much in common
                break
            for entry in reversed(run.members.values()):  # the youngest first
                if id(entry) in seen:
                    continue
                seen.add(id(entry))
                n = entry.reusable(min(_in_common(prompt, entry.tokens, n_blocks), most), wanted)
                if n > longest:
                    best, longest = entry, n
                left -= 1
                if not left:
                    break
        if best is None or common_prefix(prompt, best.tokens) < longest:  # the latter: hashes that are equal by chance
            return None, 0
        return best, longest

    def parted(self, prompt: Sequence[int], wanted: Tuning, hashes: PrefixHashes | None = None) -> int:
        """How much of its beginning `prompt` has in common with some entry, up to a block's tokens more or less."""
        path = self._path(prompt, wanted, hashes or PrefixHashes(), len(prompt))
        if not path:
            return 0
        run, n_blocks = path[-1]
        entries = list(run.members.values())[-MOST:]
        return max(_in_common(prompt, entry.tokens, n_blocks) for entry in entries)

    def within(self, tokens: Sequence[int], tuning: Tuning, hashes: PrefixHashes | None = None) -> Iterator[K]:
        """Entries with the same tuning that `tokens` begins with or is equal to."""
        for run, _ in self._path(tokens, tuning, hashes or PrefixHashes(), len(tokens)):
            for entry in list(run.ends.values()):
                n = len(entry.tokens)
                if entry.tuning == tuning and n <= len(tokens) and common_prefix(entry.tokens, tokens) == n:
                    yield entry


def _in_common(a: Sequence[int], b: Sequence[int], n_blocks: int) -> int:
    """As `common_prefix`, for two that share so many blocks by their hashes, and no further one."""
    start, end = n_blocks * BLOCK, (n_blocks + 1) * BLOCK
    return start + common_prefix(a[start:end], b[start:end])
