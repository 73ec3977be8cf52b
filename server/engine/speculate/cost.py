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
from itertools import accumulate
from math import log, log1p
from random import Random

from server.engine.speculate.lookup import Lookup

UNKNOWN_SHARE = 0.5  # assumed upper bound of an additional token's cost, as a share of its even part of the step
FORGET = 256  # steps after which an unused measurement is dropped, because it may have been disturbed
SEEN = 8  # measurements kept per size
_SAME = 8  # steps for which an answer is cached
_EXACT = 32  # exact sizes up to here; larger ones in eighths of their power of two
_FAR = 1 << 20  # tokens beyond the largest measured step
_PART = 16  # least prefill tokens that show the cost of an additional token

LENGTHS = (*range(1, 17), 24, 32, 48, 64)  # of drafts
LEAST, SURE = 0.02, 0.98  # bounds of an acceptance rate
_MARGIN = 0.01  # required gain, because costs and rates are estimates


def _size(n_tokens: int) -> int:
    if n_tokens <= _EXACT:
        return n_tokens
    grain = 1 << max(n_tokens.bit_length() - 4, 0)
    return n_tokens // grain * grain


def _quick(last: Collection[float]) -> float:
    """Return the first quartile: other processes only make steps longer."""
    return sorted(last)[len(last) // 4]


@dataclass(slots=True)
class StepCost:
    """Seconds of a step by its number of tokens, interpolated linearly between measured sizes.

    A size costs what the fastest of its last steps took, and no less than a smaller size. Until enough steps were
    measured, it costs no more than a larger size, and the expectation counts as one measurement. One disturbed
    step does not exclude a size then.
    """

    _seconds: dict[int, deque[float]] = field(default_factory=dict)  # last measurements per size
    _prompt_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN))
    _seen: set[int] = field(default_factory=set)  # sizes of recent steps
    _n_seen: int = 0
    _sizes: list[int] = field(default_factory=list)
    _known: list[float] = field(default_factory=list)  # parallel to `_sizes`, never falling
    _asked: dict[int, float] = field(default_factory=dict)  # cached answers: consecutive steps ask for the same sizes

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Record a step of `n_tokens`, each with logits."""
        size = _size(n_tokens)
        last = self._seconds.get(size)
        if last is None:
            self._seconds[size] = last = deque(maxlen=SEEN)
        last.append(seconds)
        self._seen.add(size)
        self._n_seen += 1
        if len(last) < SEEN or not self._n_seen % _SAME:
            self._asked.clear()
        if self._n_seen >= FORGET:
            self._seconds = {each: self._seconds[each] for each in self._seen}
            self._seen, self._n_seen = set(), 0

    def observe_prompt(self, n_tokens: int, seconds: float) -> None:
        """Record a prefill of `n_tokens`: the initial assumption for the cost of an additional token."""
        if n_tokens >= _PART:
            self._prompt_token_s.append(seconds / n_tokens)
            self._asked.clear()

    def of(self, n_tokens: int) -> float:
        """Return the seconds of a step of `n_tokens`; 0.0 before the first measurement."""
        if not self._asked and self._seconds:
            self._learn()
        seconds = self._asked.get(n_tokens)
        if seconds is None:
            self._asked[n_tokens] = seconds = self._interpolated(n_tokens)
        return seconds

    def _learn(self) -> None:
        """Compute the curve through the measured sizes, and two points that extend it to all sizes."""
        sizes = sorted(self._seconds)
        first, last = sizes[0], sizes[-1]
        first_s = _quick(self._seconds[first])
        unseen_s = UNKNOWN_SHARE * first_s / first  # of another token, before any but the smallest step was measured
        if self._prompt_token_s:
            unseen_s = min(_quick(self._prompt_token_s), unseen_s)
        known = [first_s]
        for size in sizes[1:]:
            expected = [first_s + unseen_s * (size - first)] if len(self._seconds[size]) < SEEN else []
            known.append(_quick([*self._seconds[size], *expected]))
        for at in range(len(known) - 2, -1, -1):
            if len(self._seconds[sizes[at]]) < SEEN:
                known[at] = min(known[at], known[at + 1])
        known = list(accumulate(known, max))
        token_s = (known[-1] - known[0]) / (last - first) if last > first else unseen_s
        # at least half of the smallest step is assumed to be reading weights
        self._sizes = [0, *sizes, last + _FAR]
        self._known = [known[0] / 2, *known, known[-1] + token_s * _FAR]

    def _interpolated(self, n_tokens: int) -> float:
        sizes, known = self._sizes, self._known
        if not sizes:
            return 0.0
        at = bisect_left(sizes, _size(n_tokens))
        if sizes[at] == _size(n_tokens):
            return known[at]
        share = (n_tokens - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
        return known[at - 1] + share * (known[at] - known[at - 1])


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
    n, base_s = len(chances), step_s(n_tokens)
    if base_s <= 0:  # not measured yet
        return DraftLength()
    best = DraftLength(gain=_MARGIN * (1 + n_tokens))
    counts = sorted({1, n // 4, n // 2, n} - {0})
    for length in LENGTHS:
        if length > most:
            break
        gains = list(accumulate([log1p(_expected(p, length)) for p in chances]))
        for count in counts:
            if count * length > room:
                break
            seconds = step_s(n_tokens + count * length) + length * draft_s(count)
            gain = gains[count - 1] - n_tokens * log(seconds / base_s)
            if gain > best.gain:
                best = DraftLength(count, length, gain)
    return best


def _expected(p: float, n: int) -> float:
    """Return the expected number of accepted tokens of `n` at acceptance rate `p`."""
    p = min(max(p, LEAST), SURE)
    return p * (1 - p**n) / (1 - p)


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
