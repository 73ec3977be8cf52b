"""How many draft tokens pay, from measured step times and the acceptance rate of each sequence (`DraftState`). Pure.

A decode of one token reads every weight; a few more tokens read them no more often. What additional tokens cost
depends on the machine, the model and the kernels, and is measured.

A draft makes the step longer for all sequences and gives tokens to one. So the objective is the sum of the
logarithms of each sequence's tokens per second (proportional fairness): no sequence is slowed down by a tenth for
less than a tenth gained by another. For a single sequence this is its tokens per second.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from math import log, log1p
from random import Random

from server.engine.speculate.lookup import Lookup

UNKNOWN_SHARE = 0.5  # assumed upper bound of an additional token's cost, as a share of its even part of the step
FORGET = 256  # steps after which an unused measurement is dropped, because it may have been disturbed
SEEN = 8  # measurements kept per size
_SAME = 8  # steps for which a curve of well-known sizes is used
_EXACT = 32  # exact sizes up to here; larger ones in eighths of their power of two
_FAR = 1 << 20  # tokens beyond the largest measured step
_PART = 16  # least prefill tokens that show the cost of an additional token

LENGTHS = (*range(1, 17), 24, 32, 48, 64)  # of drafts
LEAST, SURE = 0.02, 0.98  # bounds of an acceptance rate
_MARGIN = 0.01  # required gain, because costs and rates are estimates


def _quick(last: Collection[float]) -> float:
    """Return the first quartile: other processes only make steps longer."""
    return sorted(last)[len(last) // 4]


@dataclass(slots=True)
class StepCost:
    """Seconds of a step by its number of tokens, interpolated linearly between measured sizes.

    A size costs what the fastest of its last steps took, and no less than a smaller size. Until it was measured
    `SEEN` times, it costs no more than a larger size, and the expectation counts as one measurement. So one disturbed
    step does not exclude it.
    """

    _seconds: dict[int, deque[float]] = field(default_factory=dict)  # last measurements per size
    _last_seen: dict[int, int] = field(default_factory=dict)  # number of the last step of a size
    _n_steps: int = 0
    _prompt_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN))
    _curve: tuple[list[int], list[float]] | None = None  # sizes, and their seconds, which never fall
    _asked: dict[int, float] = field(default_factory=dict)  # of the curve: consecutive steps ask for the same sizes

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Record a step of `n_tokens`, each with logits."""
        grain = 1 if n_tokens <= _EXACT else 1 << n_tokens.bit_length() - 4
        size = n_tokens // grain * grain
        last = self._seconds.setdefault(size, deque(maxlen=SEEN))
        last.append(seconds)
        self._n_steps += 1
        self._last_seen[size] = self._n_steps
        if len(last) < SEEN or not self._n_steps % _SAME:
            self._curve = None
        if not self._n_steps % FORGET:
            self._seconds = {n: s for n, s in self._seconds.items() if self._last_seen[n] > self._n_steps - FORGET}

    def observe_prompt(self, n_tokens: int, seconds: float) -> None:
        """Record a prefill of `n_tokens`: the initial assumption for the cost of an additional token."""
        if n_tokens >= _PART:
            self._prompt_token_s.append(seconds / n_tokens)
            self._curve = None

    def of(self, n_tokens: int) -> float:
        """Return the seconds of a step of `n_tokens`; 0.0 before the first measurement."""
        if not self._seconds:
            return 0.0
        if self._curve is None:
            self._curve = self._learned()
            self._asked.clear()
        seconds = self._asked.get(n_tokens)
        if seconds is None:
            sizes, known = self._curve
            at = bisect_left(sizes, n_tokens)
            share = (n_tokens - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
            self._asked[n_tokens] = seconds = known[at - 1] + share * (known[at] - known[at - 1])
        return seconds

    def _learned(self) -> tuple[list[int], list[float]]:
        """Return the curve through the measured sizes, and two points that extend it to all sizes."""
        sizes = sorted(self._seconds)
        first, last = sizes[0], sizes[-1]
        first_s = _quick(self._seconds[first])
        token_s = UNKNOWN_SHARE * first_s / first  # of another token, before any but the smallest step was measured
        if self._prompt_token_s:
            token_s = min(_quick(self._prompt_token_s), token_s)
        known = [first_s]
        for size in sizes[1:]:
            expected = [first_s + token_s * (size - first)] if len(self._seconds[size]) < SEEN else []
            known.append(_quick([*self._seconds[size], *expected]))
        for at in range(len(known) - 2, -1, -1):
            if len(self._seconds[sizes[at]]) < SEEN:
                known[at] = min(known[at], known[at + 1])
        known = list(accumulate(known, max))
        if last > first:
            token_s = (known[-1] - known[0]) / (last - first)
        # at least half of the smallest step is assumed to be reading weights
        return [0, *sizes, last + _FAR], [known[0] / 2, *known, known[-1] + token_s * _FAR]


@dataclass(frozen=True, slots=True)
class DraftLength:
    """Verify drafts of ``length`` tokens for the first ``count`` sequences. ``gain``: the sum of the logarithms of all
    sequences' tokens per second, compared with no drafts.
    """

    count: int = 0
    length: int = 0
    gain: float = 0.0


def draft_length(
    chances: Sequence[float],
    n_tokens: int,
    step_s: Callable[[int], float],
    most: int,
    room: int,
    draft_s: Callable[[int], float] = lambda count: 0.0,
) -> DraftLength:
    """Return how many tokens to draft, at most `most` each and `room` in all, in a step of `n_tokens` otherwise.

    `chances`, never rising: the acceptance rate per sequence. `step_s`: seconds of a step of so many tokens.
    `draft_s`: seconds to propose one more token for so many sequences. All drafts have one length, because with
    separate KV each other length takes another graph evaluation.
    """
    n, base_s, best = len(chances), step_s(n_tokens), DraftLength(gain=_MARGIN * (1 + n_tokens))
    if base_s <= 0:  # not measured yet
        return DraftLength()
    rows = [_log_tokens(round(chance, 2)) for chance in chances]
    for count in sorted({1, n // 4, n // 2, n} - {0}):
        logs = list(map(sum, zip(*rows[:count], strict=True)))
        for length, gained in zip(LENGTHS, logs, strict=True):
            if length > most or count * length > room:
                break
            seconds = step_s(n_tokens + count * length) + length * draft_s(count)
            gain = gained - n_tokens * log(seconds / base_s)
            if gain > best.gain:
                best = DraftLength(count, length, gain)
            if logs[-1] - n_tokens * log(seconds / base_s) <= best.gain:
                break  # a longer draft costs no less
    return best if best.count else DraftLength()


@lru_cache(maxsize=128)
def _log_tokens(chance: float) -> tuple[float, ...]:
    """Return the logarithm of the tokens that a step is expected to yield, for each of `LENGTHS`."""
    p = min(max(chance, LEAST), SURE)
    return tuple(log1p(p * (1 - p**length) / (1 - p)) for length in LENGTHS)


# ---- the speculation state of one sequence

_WEIGHT, _DRAFT_WEIGHT = 0.2, 0.1  # weight of one token in the acceptance rate of text and of a draft model
UNSEEN = 0.7  # initial acceptance rate of a draft model
_LOOKED_UP = 0.3  # initial acceptance rate of text drafts: too low to pay on most machines


@dataclass(eq=False, slots=True)
class DraftState:
    """Speculation state of one sequence: limits, lookup and acceptance rates.

    At most ``most`` tokens are from the text, and ``least_drafted`` to ``most_drafted`` from a draft model, which
    stops at a token less probable than ``p_min``. ``acceptance`` is the recent acceptance rate of text drafts,
    ``draft_acceptance`` that of the draft model. ``expected`` holds proposed tokens that were not sampled yet, next
    one last. It includes text drafts that were not verified, so their acceptance rate is measured at no cost.
    """

    most: int
    lookup: Lookup | None = None
    most_drafted: int = 0
    least_drafted: int = 0
    p_min: float = 0.0
    acceptance: float = _LOOKED_UP
    draft_acceptance: float = UNSEEN
    n_judged: int = 0  # tokens of a draft model that were compared with sampled ones
    expected: list[int] = field(default_factory=list)
    is_text: bool = False  # whether ``expected`` is from the text
    dice: Random | None = None  # random acceptance for synthetic benchmarks (`rates_of_length`)

    def look_up(self, most: int) -> list[int]:
        """Return a draft from the text."""
        draft = self.lookup.propose(most) if self.lookup is not None else []
        self.expected, self.is_text = draft[::-1], True
        return draft

    def expect(self, drafted: Sequence[int]) -> None:
        """Record the tokens that a draft model proposed."""
        self.expected, self.is_text = list(drafted[::-1]), False

    def add(self, token: int) -> None:
        """Record that `token` was sampled."""
        if self.lookup is not None:
            self.lookup.add(token)
        if not self.expected:
            return
        right = self.expected.pop() == token
        if not right:
            self.expected = []
        if not self.is_text:
            self.n_judged += 1
            weight = max(_DRAFT_WEIGHT, 1 / (1 + self.n_judged))
            self.draft_acceptance += weight * (right - self.draft_acceptance)
        else:
            self.acceptance += _WEIGHT * (right - self.acceptance)


# ---- synthetic acceptance for benchmarks: draft tokens are accepted at random to measure a draft of a given quality.
# The text is then not the model's (llama.cpp tools/server/server-context.cpp,
# server_sample_and_accept_synth; common/speculative.cpp, common_speculative_synth_rates_resolve)

_HALVINGS = 32


def rates_of_length(length: float, most: int) -> tuple[float, ...]:
    """Return acceptance rates of `most` draft tokens for which a step yields `length` tokens on average, including its
    own.

    Each token has the same conditional rate. `length` is between 1 and ``most + 1``.
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
    """Return the acceptance probability of each draft token given the one before it; `rates` never rise."""
    before = (1.0, *rates)
    return tuple(rate / given if given > 0 else 0.0 for given, rate in zip(before, rates, strict=False))
