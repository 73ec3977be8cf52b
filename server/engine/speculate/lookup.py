"""Prompt lookup: guesses what comes next from what followed the same tokens before. Pure.

It costs next to nothing, and pays on text that repeats itself: edits of code, quotes, structured data.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CHUNK = 2048
"""Most tokens that are indexed at once (half a millisecond), so that a long prompt stops nobody."""
LONG_MATCH = 8
"""A run of so many tokens is looked for first: of two places that fit, it finds the one that fits better."""
_MOST_APART = 3  # tokens that may differ before a text is no longer followed
_FEW = 12  # from here on numpy is the faster one
_MOST_ENTRIES = 1 << 18  # of a table: 1 MiB


class Ends:
    """Where runs of `size` tokens ended last, in a table by their hash: 4 bytes an entry, where a dict takes 130.

    A later run with the same hash replaces an earlier one; who reads compares the tokens.
    """

    def __init__(self, size: int, n_text: int) -> None:
        self.size = size
        n_entries = min(1 << (2 * n_text).bit_length(), _MOST_ENTRIES)
        self._mask = n_entries - 1
        self._table: NDArray[np.int32] = np.zeros(n_entries, np.int32)
        self._entries = memoryview(self._table.data)  # the same, for one at a time: five times as fast

    def add(self, tokens: list[int], start: int, stop: int) -> None:
        """Enter the runs that end before the positions `start` up to `stop`."""
        size = self.size
        start = max(start, size)
        if stop - start < _FEW:
            for end in range(start, stop):
                self._entries[hash(tuple(tokens[end - size : end])) & self._mask] = end
            return
        runs = zip(*(tokens[start - size + i : stop - size + i] for i in range(size)), strict=True)
        hashes = np.fromiter(map(hash, runs), np.int64, stop - start)
        self._table[hashes & self._mask] = np.arange(start, stop, dtype=np.int32)

    def find(self, tokens: list[int]) -> int:
        """Where the last `size` of `tokens` ended before; 0 when they never did."""
        last = tokens[-self.size :]
        if len(last) < self.size:
            return 0
        end: int = self._entries[hash(tuple(last)) & self._mask]
        return end if end and tokens[end - self.size : end] == last else 0


class Lookup:
    """Index of the text of one sequence of about `n_text` tokens, by runs of `size` tokens; of more, the last ones."""

    def __init__(self, size: int, n_text: int) -> None:
        sizes = (size,) if size >= LONG_MATCH else (LONG_MATCH, size)
        self._ends = [Ends(each, n_text) for each in sizes]
        self._tokens: list[int] = []
        self._n_indexed = 0
        self._follows = 0  # where the text goes on that the last guess was taken from; 0 = nowhere
        self._n_apart = 0  # tokens since then that were others

    def extend(self, tokens: Sequence[int]) -> None:
        """`tokens` came to the text; they are indexed later."""
        self._tokens.extend(tokens)

    def add(self, token: int) -> None:
        """`token` was sampled. Where the text that is followed has another one, it may stand in its place."""
        if self._follows:
            same = self._tokens[self._follows] == token
            self._follows += 1
            self._n_apart = 0 if same else self._n_apart + 1
            if self._n_apart > _MOST_APART:
                self._follows = 0
        self._tokens.append(token)

    def catch_up(self, most: int = CHUNK) -> int:
        """Index up to `most` of the tokens that came; how many that were."""
        start, stop = self._n_indexed, min(len(self._tokens), self._n_indexed + most)
        for ends in self._ends:
            ends.add(self._tokens, start, stop)
        self._n_indexed = stop
        return stop - start

    def guess(self, most: int) -> list[int]:
        """At most `most` tokens; none where nothing is found, or the text is not indexed yet."""
        self.catch_up()
        tokens = self._tokens
        if self._n_indexed < len(tokens):
            return []
        at = 0
        for ends in self._ends:
            if at := ends.find(tokens):
                break
        if not at and not self._follows:
            return []
        if at and at != self._follows:
            n_matching = self._matching(at)
            if self._follows and n_matching < LONG_MATCH and self._matching(self._follows) >= n_matching:
                at = self._follows
        self._follows = at or self._follows
        at = self._follows
        if tokens[at - 1] == tokens[-1]:
            self._n_apart = 0
        period = len(tokens) - at
        found = tokens[at : at + most]
        while len(found) < most:  # the guess runs into its own beginning: what repeats goes on repeating
            found += found[-period:][: most - len(found)]
        return found

    def judge(self, n_checked: int, n_right: int) -> None:
        """Nothing is learned here from what was right; `state.Speculating` does."""

    def _matching(self, at: int, most: int = 32) -> int:
        """How many tokens before `at` are those before the end."""
        tokens, end, n = self._tokens, len(self._tokens), 0
        while n < most and n < at and tokens[at - 1 - n] == tokens[end - 1 - n]:
            n += 1
        return n
