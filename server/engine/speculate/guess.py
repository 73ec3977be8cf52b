"""What the sources of guesses have in common: plain values."""

from collections.abc import Callable
from dataclasses import dataclass, field

TRIAL = 2  # tokens of a guess that is made to see whether guessing pays again


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next, each with the kind of evidence for it: an index of `Chances`."""

    tokens: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)

    def first(self, n: int) -> "Guess":
        """The guess cut to `n` tokens."""
        return self if n >= len(self.tokens) else Guess(self.tokens[:n], self.kinds[:n])


NOTHING = Guess()


@dataclass(frozen=True, slots=True)
class Step:
    """The step that guesses are for: `n_tokens` come out of it in `base_s` seconds without any.

    ``extra_s`` says what so many guessed tokens add to it. ``left_s`` and ``trial_s`` are what may be spent on guesses,
    and on a trial.
    """

    n_tokens: int
    base_s: float
    extra_s: Callable[[int], float]
    left_s: float
    trial_s: float
