"""A prompt that counts how much of it is read in slices."""

from typing import Any


class Counting(list[int]):
    """``n_read`` tokens were copied out of it."""

    n_read = 0

    def __getitem__(self, at: Any) -> Any:
        """As a list."""
        found = super().__getitem__(at)
        if isinstance(at, slice):
            self.n_read += len(found)
        return found
