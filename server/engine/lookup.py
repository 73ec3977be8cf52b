"""Prompt lookup: guesses what comes next from what followed the same tokens before. Pure.

A guess costs nothing but the batch's extra tokens, and what is accepted is what sampling gives anyway. So it pays on
text that repeats itself (edits of code, quotes, structured data) and turns itself down elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

_LONGEST_REST = 64  # steps without a guess after many that were wrong


@dataclass(slots=True)
class Lookup:
    """Index of the text of one sequence by its last `size` tokens; drafts have at most `longest` tokens."""

    size: int
    longest: int
    _tokens: list[int] = field(default_factory=list)
    _ends: dict[tuple[int, ...], int] = field(default_factory=dict)  # what followed is at this position
    _length: int = 0  # of the next draft; adapted to what was accepted
    _rest: int = 0  # steps to skip
    _pause: int = 1  # how many to skip after the next miss

    def __post_init__(self) -> None:
        """Begin with half of the longest draft."""
        self._length = max(1, self.longest // 2)

    def extend(self, tokens: Sequence[int]) -> None:
        """`tokens` came to the text."""
        known, size = self._tokens, self.size
        for token in tokens:
            if len(known) >= size:
                self._ends[tuple(known[-size:])] = len(known)
            known.append(token)

    def draft(self, most: int) -> list[int]:
        """A guess of at most `most` tokens; empty where nothing is found or guessing does not pay now."""
        if self._rest > 0:
            self._rest -= 1
            return []
        at = self._ends.get(tuple(self._tokens[-self.size :]))
        if at is None:
            return []
        n, period = min(self._length, most), len(self._tokens) - at
        found = self._tokens[at : at + n]
        while len(found) < n:  # the guess runs into its own beginning: what repeats goes on repeating
            found += found[-period:][: n - len(found)]
        return found

    def judge(self, n_draft: int, n_accepted: int) -> None:
        """`n_accepted` of the last draft were right: longer drafts after good ones, a pause after useless ones."""
        if n_accepted == n_draft:
            self._length = min(self._length * 2, self.longest)
        else:
            self._length = max(1, min(n_accepted + 1, self.longest))
        if n_accepted:
            self._pause = 1
        else:
            self._rest, self._pause = self._pause, min(self._pause * 2, _LONGEST_REST)
