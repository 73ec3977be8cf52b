"""How much of the guesses is put into a step. Pure.

A guess makes the step longer for everybody, and gives tokens to one. So what is raised is the sum of the logarithms of
every sequence's tokens per second (proportional fairness): nobody is slowed down by a tenth for less than another's
gain of a tenth. For one sequence, or where all do alike, that is the tokens per second of all.
"""

from collections.abc import Callable, Sequence
from math import log, log1p

_LEAST = 0.02  # guesses less likely than this are not even considered
_MARGIN = 0.01  # the gain that is asked for, since what is known of costs and chances is never exact


def lengths(
    reaches: Sequence[Sequence[float]],
    n_tokens: int,
    base_s: float,
    extra_s: Callable[[int], float],
    most: int,
    credit_s: float,
) -> list[int]:
    """How many tokens to take of each guess, when `n_tokens` sequences get one each in `base_s` seconds without any.

    ``reaches`` has for each guess how likely its tokens are taken, never rising; ``extra_s`` says what so many guessed
    tokens add to the step, which may not be more than `credit_s`. At most `most` tokens in all.
    """
    taken = [0] * len(reaches)
    if base_s <= 0:
        return taken
    ranked = sorted(_gains(reaches), reverse=True)[:most]
    best, n_best, gain = _MARGIN * (1 + n_tokens), 0, 0.0
    for n, (more, _) in enumerate(ranked, 1):
        gain += more
        extra = extra_s(n)
        if extra > credit_s:
            break
        value = gain - n_tokens * log1p(extra / base_s)
        if value > best:
            best, n_best = value, n
    for _, i in ranked[:n_best]:
        taken[i] += 1
    return taken


def _gains(reaches: Sequence[Sequence[float]]) -> list[tuple[float, int]]:
    """What each token adds to the logarithm of its sequence's tokens, with the place of the sequence.

    Within a guess it falls, so that the best tokens of all are the first ones of each.
    """
    gains = []
    for i, reach in enumerate(reaches):
        expected = 1.0
        for p in reach:
            if p < _LEAST:
                break
            gains.append((log1p(p / expected), i))
            expected += p
    return gains


def draft_length(
    chances: Sequence[float],
    n_tokens: int,
    base_s: float,
    draft_s: Callable[[int], float],
    extra_s: Callable[[int], float],
    most: int,
) -> tuple[int, int]:
    """(sequences, tokens for each) that a draft model should guess; (0, 0) where nothing pays.

    ``chances``, never rising, has for each sequence how likely a drafted token is right. A guess of one more token for
    so many sequences takes ``draft_s``, checking so many takes ``extra_s``; otherwise as in `lengths`.
    """
    best, found = _MARGIN * (1 + n_tokens), (0, 0)
    n = len(chances)
    counts = sorted({1, n // 4, n // 2, n} - {0})
    for length in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
        if length > most:
            break
        gains = [log1p(_expected(p, length)) for p in chances]
        for count in counts:
            seconds = base_s + length * draft_s(count) + extra_s(length * count)
            value = sum(gains[:count]) - n_tokens * log(seconds / base_s)
            if value > best:
                best, found = value, (count, length)
    return found


def _expected(p: float, n: int) -> float:
    """Tokens that are taken of `n` when each is right with `p` and the first wrong one ends it."""
    return p * (1 - p**n) / (1 - p) if p < 1 else float(n)
