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
    best, found = n_tokens / base_s * WORTHWHILE, (0, 0)
    n = len(chances)
    counts = sorted({1, n // 4, n // 2, n} - {0})
    for length in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
        if length > most:
            break
        gains = [_expected(p, length) for p in chances]
        for count in counts:
            seconds = base_s + length * draft_s(count) + extra_s(length * count)
            rate = (n_tokens + sum(gains[:count])) / seconds
            if rate > best:
                best, found = rate, (count, length)
    return found


def _expected(p: float, n: int) -> float:
    """Tokens that are taken of `n` when each is right with `p` and the first wrong one ends it."""
    return p * (1 - p**n) / (1 - p) if p < 1 else float(n)


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
