"""What speculation knows of one sequence."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from random import Random

from server.engine.speculate.cost import LEAST
from server.engine.speculate.lookup import TextSource

SURE = 0.98  # no guess is taken to be more likely
_FAR = [int(log(LEAST) / log(min(max(right, 1) / 100, SURE))) + 1 for right in range(101)]
"""By percents of guesses that are right: tokens behind which nothing is likely enough to be looked at."""
_WEIGHT = 0.2  # of one token in the average of those that were right
UNSEEN = 0.7  # of a draft model's are, before any was checked
_LOOKED_UP = 0.3  # of guesses from the text are taken to be right before any was seen: too few to pay on most machines


@dataclass(eq=False, slots=True)
class Speculating:
    """At most ``most`` tokens are guessed from the text, ``most_drafted`` and no fewer than ``least_drafted`` by a
    draft model, which stops at a token less probable than ``p_min``.

    ``right`` is the share of tokens guessed from the text that were right, lately; ``right_drafted`` that of a draft
    model's. ``expected`` is what was guessed and not sampled yet, the next one last. Of a guess from the text it is
    there whether any of it was put into a step or not: so it is known for nothing whether guessing would pay.
    """

    most: int
    sources: tuple[TextSource, ...] = ()
    most_drafted: int = 0
    least_drafted: int = 0
    p_min: float = 0.0
    right: float = _LOOKED_UP
    right_drafted: float = UNSEEN
    expected: list[int] = field(default_factory=list)
    drafted: bool = False  # by a draft model, what is expected
    source: TextSource | None = None  # who guessed it, if not a draft model
    n_checked: int = 0  # guesses in the step that is under way
    dice: Random | None = None  # by which guesses are taken, where that is left to chance (`rates_of_length`)

    def look_up(self, most: int) -> list[int]:
        """What the text suggests, of the first source that has a suggestion."""
        self.drafted, self.source = False, None
        most = min(most, _FAR[int(self.right * 100)])
        for source in self.sources:
            guess = source.guess(most)
            if guess:
                self.expected, self.source = guess[::-1], source
                return guess
        self.expected = []
        return []

    def expect(self, drafted: Sequence[int]) -> None:
        """A draft model guessed these."""
        self.expected, self.drafted, self.source = list(drafted[::-1]), True, None

    def extend(self, token: int) -> None:
        """`token` was sampled."""
        for source in self.sources:
            source.add(token)
        if not self.expected:
            return
        right = self.expected.pop() == token
        if not right:
            self.expected = []
        if self.drafted:
            self.right_drafted += _WEIGHT * (right - self.right_drafted)
        else:
            self.right += _WEIGHT * (right - self.right)

    def reach(self, n: int) -> list[float]:
        """For each of `n` tokens guessed from the text: how likely it and all before it are right."""
        right = min(self.right, SURE)
        return [right**i for i in range(1, n + 1)]


# ---- guesses that are taken or not by chance, whatever the model says: what a draft so good would be worth.
# For benchmarks alone: the text is not the model's (llama.cpp tools/server/server-context.cpp,
# server_sample_and_accept_synth; common/speculative.cpp, common_speculative_synth_rates_resolve)

_HALVINGS = 32


def rates_of_length(length: float, most: int) -> tuple[float, ...]:
    """How often each of `most` guesses is taken, when a step gives `length` tokens in the mean, its own one included.

    Each with the same chance as the one before it. `length` is at least 1 and at most ``most + 1``.
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(middle**n for n in range(1, most + 1)) < length - 1:
            low = middle
        else:
            high = middle
    chance = 1.0 if length >= most + 1 else 0.0 if length <= 1 else (low + high) / 2
    return tuple(chance**n for n in range(1, most + 1))


def conditional(rates: Sequence[float]) -> tuple[float, ...]:
    """How likely each guess is taken once the one before it was; `rates` never rise."""
    before = (1.0, *rates)
    return tuple(rate / given if given > 0 else 0.0 for given, rate in zip(before, rates, strict=False))
