"""How much of the guesses is put into a step: what raises the tokens that come out of a second. Pure."""

from collections.abc import Callable, Sequence

_LEAST = 0.02  # guesses less likely than this are not even considered
WORTHWHILE = 1.02  # the gain that is asked for, since what is known of costs and chances is never exact


def lengths(
    reaches: Sequence[Sequence[float]],
    n_tokens: int,
    base_s: float,
    extra_s: Callable[[int], float],
    most: int,
    credit_s: float,
) -> list[int]:
    """How many tokens to take of each guess, when `n_tokens` come out of a step of `base_s` seconds without guesses.

    ``reaches`` has for each guess how likely its tokens are taken, never rising; ``extra_s`` says what so many guessed
    tokens add to the step, which may not be more than `credit_s`. At most `most` tokens in all.
    """
    ranked = sorted((p for reach in reaches for p in reach if p >= _LEAST), reverse=True)[:most]
    best, n_best, expected = n_tokens / base_s * WORTHWHILE if base_s > 0 else 0.0, 0, float(n_tokens)
    for n, p in enumerate(ranked, 1):
        expected += p
        extra = extra_s(n)
        if extra > credit_s:
            break
        rate = expected / (base_s + extra) if base_s + extra > 0 else expected
        if rate > best:
            best, n_best = rate, n
    return _take(reaches, ranked[:n_best])


def _take(reaches: Sequence[Sequence[float]], chosen: Sequence[float]) -> list[int]:
    """The lengths that make up the `chosen` chances: all above the last of them, and of those equal to it the first."""
    if not chosen:
        return [0] * len(reaches)
    last = chosen[-1]
    taken = [sum(1 for p in reach if p > last) for reach in reaches]
    left = len(chosen) - sum(taken)
    for i, reach in enumerate(reaches):
        equal = sum(1 for p in reach if p == last)
        n = min(equal, left)
        taken[i] += n
        left -= n
    return taken
