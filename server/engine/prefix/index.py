"""Finds, among thousands of kept states, those that begin as a prompt does. Pure; see docs/adr/0002.

A radix tree over chained hashes of blocks of tokens (`hashes.py`): a look-up compares a few runs of hashes.
What it finds is compared token by token, so that a collision changes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from server.engine.lora import Tuning
from server.engine.prefix.hashes import BLOCK, PrefixHashes, common_prefix

if TYPE_CHECKING:  # a cache has an index
    from server.engine.kv.ram_cache import KeptState

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
