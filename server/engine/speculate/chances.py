"""How likely a guessed token is right, learned from those that were checked. Pure.

A token's *kind* says what speaks for it: for one that is found in the text, how many tokens before it match; for one
of a draft model, the probability that it gave. All sequences learn together what a kind is worth, and each for itself
whether it does better or worse than that.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

_MATCHES = (3, 4, 5, 7, 10, 16, 24)  # a kind begins with each of these lengths, and one lies below the first
_MATCH_PRIORS = (0.3, 0.4, 0.5, 0.55, 0.65, 0.75, 0.85, 0.9)
_PROBABILITIES = (0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97)
_PROBABILITY_PRIORS = (0.1, 0.25, 0.45, 0.6, 0.75, 0.85, 0.9, 0.95)
_DRAFTED = len(_MATCH_PRIORS)  # the first kind of a draft's tokens
_PRIORS = (*_MATCH_PRIORS, *_PROBABILITY_PRIORS, 0.5)
ALIGNED = len(_PRIORS) - 1
"""The kind of a token that comes next where the text was followed before it differed."""
_PRIOR_WEIGHT = 3.0  # a prior counts as so many checked tokens
_MEMORY = 200.0  # tokens of a kind after which older ones count half
_OWN_WEIGHT, _OWN_MEMORY = 2.0, 24.0
_SURE = 0.98
_BY_MATCH = [bisect_right(_MATCHES, n) for n in range(64)]


def text_kinds(n_matching: int, n: int) -> list[int]:
    """The kinds of `n` tokens in a row, the first of them behind `n_matching` tokens that match."""
    kinds = _BY_MATCH[n_matching : n_matching + n]
    return kinds + [kinds[-1] if kinds else _BY_MATCH[-1]] * (n - len(kinds))


def drafted_kind(probability: float) -> int:
    """The kind of a token that a draft model gave `probability`."""
    return _DRAFTED + bisect_right(_PROBABILITIES, probability)


@dataclass(slots=True)
class Own:
    """How one sequence's guesses do, against what their kinds promise."""

    right: float = 0.0
    expected: float = 0.0

    @property
    def factor(self) -> float:
        """Above 1: better than expected."""
        return (self.right + _OWN_WEIGHT) / (self.expected + _OWN_WEIGHT)

    def learn(self, expected: float, right: float) -> None:
        """Of `expected` right guesses there were `right`."""
        self.right += right
        self.expected += expected
        if self.expected > _OWN_MEMORY:
            self.right, self.expected = self.right / 2, self.expected / 2


@dataclass(slots=True)
class Chances:
    """What every kind was worth so far, for all sequences of an instance."""

    _right: list[float] = field(default_factory=lambda: [p * _PRIOR_WEIGHT for p in _PRIORS])
    _checked: list[float] = field(default_factory=lambda: [_PRIOR_WEIGHT] * len(_PRIORS))

    def of(self, kind: int) -> float:
        """The share of such guesses that was right."""
        return self._right[kind] / self._checked[kind]

    def reach(self, kinds: Sequence[int], own: Own) -> list[float]:
        """For each token of a guess: how likely it and all before it are right. Never rises."""
        reached, factor, chances = 1.0, own.factor, []
        for kind in kinds:
            reached *= min(self._right[kind] / self._checked[kind] * factor, _SURE)
            chances.append(reached)
        return chances

    def learn(self, kinds: Sequence[int], n_right: int, own: Own) -> None:
        """Of a guess that was checked, the first `n_right` were right; those behind the first wrong one say nothing."""
        expected = 0.0
        for i, kind in enumerate(kinds[: n_right + 1]):
            expected += self.of(kind)
            self._checked[kind] += 1.0
            self._right[kind] += i < n_right
            if self._checked[kind] > _MEMORY:
                self._checked[kind] /= 2
                self._right[kind] /= 2
        own.learn(expected, n_right)
