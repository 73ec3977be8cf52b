"""Finds, among thousands of kept states, those that begin as a prompt does. Pure; see docs/adr/0002.

Tokens are hashed in blocks, each hash with that of the block before it, so that equal beginnings have equal chains and
a look-up walks down one chain. What it finds is compared token by token, so that a collision changes nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from server.engine.adapters import Tuning
from server.engine.prefix import common_prefix

BLOCK = 16  # tokens
MOST = 16  # entries that one look-up compares


class Kept(Protocol):
    """What an index holds."""

    tokens: list[int]
    tuning: Tuning

    def reusable(self, n: int, wanted: Tuning) -> int: ...


K = TypeVar("K", bound=Kept)


class PrefixIndex(Generic[K]):
    """Entries by the hashes of their blocks; each look-up takes about a microsecond for each block that is shared."""

    def __init__(self) -> None:
        self._through: dict[int, dict[int, K]] = {}  # by a chain's hash: who has these blocks, by identity
        self._ends: dict[int, dict[int, K]] = {}  # and who has no further whole block
        self._chains: dict[int, list[int]] = {}  # of each entry, by identity

    def add(self, entry: K) -> None:
        """Take `entry` in; its tokens must not change any more."""
        chain = self._chains[id(entry)] = list(_chain(entry.tokens, entry.tuning))
        for at in chain:
            self._through.setdefault(at, {})[id(entry)] = entry
        self._ends.setdefault(chain[-1], {})[id(entry)] = entry

    def remove(self, entry: K) -> None:
        """Forget `entry`."""
        chain = self._chains.pop(id(entry))
        for at in chain:
            _drop(self._through, at, entry)
        _drop(self._ends, chain[-1], entry)

    def _path(self, tokens: Sequence[int], tuning: Tuning) -> list[int]:
        path = []
        for at in _chain(tokens, tuning):
            if at not in self._through:
                break
            path.append(at)
        return path

    def match(self, prompt: Sequence[int], wanted: Tuning, at_least: int) -> tuple[K | None, int]:
        """The entry of which most can be reused, more than `at_least` tokens, and how many.

        Up to a block's tokens may be missed when more than `MOST` entries begin in the same way.
        """
        best: K | None = None
        longest, left = at_least, MOST
        seen: set[int] = set()
        path = self._path(prompt, wanted)
        for depth in range(len(path) - 1, -1, -1):
            if longest >= (depth + 1) * BLOCK or not left:  # nobody further up has so much in common
                break
            for entry in reversed(self._through[path[depth]].values()):  # the youngest first
                if id(entry) in seen:
                    continue
                seen.add(id(entry))
                n = entry.reusable(_in_common(prompt, entry.tokens, depth), wanted)
                if n > longest:
                    best, longest = entry, n
                left -= 1
                if not left:
                    break
        if best is None or common_prefix(prompt, best.tokens) < longest:  # the latter: hashes that are equal by chance
            return None, 0
        return best, longest

    def parted(self, prompt: Sequence[int], wanted: Tuning) -> int:
        """How much of its beginning `prompt` has in common with some entry, up to a block's tokens more or less."""
        path = self._path(prompt, wanted)
        if not path:
            return 0
        entries = list(self._through[path[-1]].values())[-MOST:]
        return max(_in_common(prompt, entry.tokens, len(path) - 1) for entry in entries)

    def within(self, tokens: Sequence[int], tuning: Tuning) -> Iterator[K]:
        """Entries with the same tuning that `tokens` begins with or is equal to."""
        for at in self._path(tokens, tuning):
            for entry in list(self._ends.get(at, {}).values()):
                n = len(entry.tokens)
                if entry.tuning == tuning and n <= len(tokens) and common_prefix(entry.tokens, tokens) == n:
                    yield entry


def _chain(tokens: Sequence[int], tuning: Tuning) -> Iterator[int]:
    """The hash up to the end of each whole block, first that of none; what computes the first token is part of it."""
    at = hash(tuning.at(0))
    yield at
    for block in zip(*[iter(tokens)] * BLOCK, strict=False):  # the fastest way to whole blocks; the rest is dropped
        at = hash((at, block))
        yield at


def _in_common(a: Sequence[int], b: Sequence[int], n_blocks: int) -> int:
    """As `common_prefix`, for two that share so many blocks by their hashes, and no further one."""
    start, end = n_blocks * BLOCK, (n_blocks + 1) * BLOCK
    return start + common_prefix(a[start:end], b[start:end])


def _drop(table: dict[int, dict[int, K]], at: int, entry: K) -> None:
    entries = table[at]
    entries.pop(id(entry), None)
    if not entries:
        del table[at]
