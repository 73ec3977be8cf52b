"""What the sources of guesses have in common: plain values."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next, each with the kind of evidence for it: an index of `Chances`."""

    tokens: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)

    def first(self, n: int) -> "Guess":
        """The guess cut to `n` tokens."""
        return self if n >= len(self.tokens) else Guess(self.tokens[:n], self.kinds[:n])


NOTHING = Guess()
