"""Texts that nobody has asked before: random words of two and three syllables.

In the vocabularies of `benchmarks.make_gguf` a word is 1.3 tokens on average, about what English is to a tokenizer that
knows it. For other tokenizers `fit` says how many words to write instead, so that a prompt weighs the same everywhere.
"""

import random
from itertools import product

SYLLABLES = tuple(a + b for a, b in product("bcdfghjklmnprstvz", "aeiou"))
TOKENS_PER_WORD = 1.3
_LONG_WORDS = 0.3  # the share of words of three syllables
_NEAR = 0.15  # a tokenizer that is so close is taken as it is


class RandomText:
    """A source of texts; the same seed writes the same ones."""

    def __init__(self, seed: object, words_per_word: float = 1.0) -> None:
        self._random = random.Random(str(seed))  # noqa: S311 - texts, not secrets
        self._fit = words_per_word

    def text(self, n_words: float) -> str:
        """So many words, each with a space before it."""
        return "".join(f" {self._word()}" for _ in range(max(1, round(n_words * self._fit))))

    def _word(self) -> str:
        n_syllables = 3 if self._random.random() < _LONG_WORDS else 2
        return "".join(self._random.choices(SYLLABLES, k=n_syllables))


def fit(n_words: int, n_tokens: int) -> float:
    """Words to write for each one asked for, when `n_words` were `n_tokens`."""
    ratio = TOKENS_PER_WORD * n_words / max(1, n_tokens)
    return 1.0 if abs(ratio - 1.0) < _NEAR else ratio
