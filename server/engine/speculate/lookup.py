"""Drafts from the text so far: the tokens that followed the same n-gram before. Pure.

All n-gram types use this lookup, with their own n-gram size and longest draft. The number of verified draft tokens
depends on their cost, as for every draft.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CHUNK = 8192
"""Most tokens indexed in one step (2 ms), so that a long prompt does not delay other requests."""
_MAX_COMPARED = 32  # tokens before two matching positions that are compared
_MAX_DIFFERENT = 3  # different tokens in a row after which a text is no longer followed
_MIN_FOR_NUMPY = 12  # tokens to index for which numpy is faster
_MAX_ENTRIES = 1 << 18  # entries of a table: 1 MiB


class Lookup:
    """Drafts of at most `longest` tokens from n-grams of `size` tokens of a text: `tokens`, and about `n_more` that
    follow. In a longer text, later n-grams replace earlier ones.

    A hash table with 4 bytes per entry (a dict takes 130) has the position where an n-gram ended last. A later n-gram
    with the same hash replaces an earlier one, so tokens are compared. The first ``n_indexed`` of ``tokens`` are
    indexed. ``n_matching`` tokens before the last draft equal those before the end of the text.
    """

    def __init__(self, tokens: Sequence[int], size: int, longest: int = 1 << 30, n_more: int = 0) -> None:
        self.tokens = list(tokens)
        self.n_indexed = self.n_matching = 0
        self._size, self._longest = size, longest
        n_entries = min(1 << (2 * (len(tokens) + n_more)).bit_length(), _MAX_ENTRIES)
        self._mask = n_entries - 1
        self._table: NDArray[np.int32] = np.zeros(n_entries, np.int32)
        self._entries = memoryview(self._table.data)  # a view for single entries: five times faster
        self._follows = 0  # next position in the text of the last draft; 0 = none
        self._n_different = 0  # sampled tokens in a row that differed from it

    def add(self, token: int) -> None:
        """Append a sampled token. One that differs from the followed text may be a replacement: keep following."""
        if self._follows:
            same = self.tokens[self._follows] == token
            self._follows += 1
            self.n_matching = self.n_matching + 1 if same else 0
            self._n_different = 0 if same else self._n_different + 1
            if self._n_different > _MAX_DIFFERENT:
                self._follows = 0
        self.tokens.append(token)

    def propose(self, most: int) -> list[int]:
        """Return at most `most` draft tokens; none if nothing matches or the text is not indexed yet."""
        if self.n_indexed < len(self.tokens):
            self._index()
            if self.n_indexed < len(self.tokens):
                return []
        tokens, most = self.tokens, min(most, self._longest)
        end = self._last_end()
        if end and end != self._follows:
            n_matching = self._matching(end)
            if not self._follows or n_matching > self.n_matching:
                self._follows, self.n_matching, self._n_different = end, n_matching, 0
        at = self._follows
        if not at:
            return []
        period = len(tokens) - at
        found = tokens[at : at + most]
        while len(found) < most:  # the draft reaches the end of the text: continue the period
            found += found[-period:][: most - len(found)]
        return found

    def _index(self) -> None:
        """Index up to `CHUNK` tokens."""
        tokens, size = self.tokens, self._size
        start, stop = max(self.n_indexed, size), min(len(tokens), self.n_indexed + CHUNK)
        self.n_indexed = stop
        if stop - start < _MIN_FOR_NUMPY:
            for end in range(start, stop):
                self._entries[hash(tuple(tokens[end - size : end])) & self._mask] = end
            return
        runs = zip(*(tokens[start - size + i : stop - size + i] for i in range(size)), strict=True)
        hashes = np.fromiter(map(hash, runs), np.int64, stop - start)
        self._table[hashes & self._mask] = np.arange(start, stop, dtype=np.int32)

    def _last_end(self) -> int:
        """Return where the last n-gram ended before; 0 if never."""
        last = self.tokens[-self._size :]
        end: int = self._entries[hash(tuple(last)) & self._mask]
        return end if end and self.tokens[end - self._size : end] == last else 0

    def _matching(self, at: int) -> int:
        """Return how many tokens before `at` equal those before the end, within a limit."""
        tokens, end, n = self.tokens, len(self.tokens), 0
        while n < min(at, _MAX_COMPARED) and tokens[at - 1 - n] == tokens[end - 1 - n]:
            n += 1
        return n
