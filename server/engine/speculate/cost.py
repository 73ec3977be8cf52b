"""How many draft tokens pay, from measured step times and the acceptance rate of each sequence (`DraftState`). Pure.

A decode of one token reads every weight once, and so does a decode of a few more tokens. What additional tokens cost
depends on the machine, the model and the kernels, and is measured.

A draft makes the step longer for all sequences and gives tokens to one. So the objective is the sum of the
logarithms of each sequence's tokens per second (proportional fairness): no sequence is slowed down by 10% for less
than a 10% gain of another. For a single sequence the objective is its tokens per second.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import log
from operator import mul
from random import Random

from server.engine.speculate.lookup import Lookup

# assumed cost of a further token, as a share of a step's time per token; the time of a GPU is that of reading weights
TOKEN_COST, GPU_TOKEN_COST = 0.7, 0.1
EXPIRY_STEPS = 256  # steps after which the oldest measurement of each size is dropped, in case it was disturbed
N_MEASUREMENTS = 8  # measurements kept per size
_EXACT_SIZES = 32  # exact sizes up to here; larger ones in eighths of their power of two
_NEAR_FACTOR, _FAR_TOKENS = 4, 1 << 20  # times the largest measured step, and tokens beyond that
_CURVE_STEPS = 8  # steps for which a curve of well-known sizes is used

LENGTHS = (*range(1, 17), 24, 32, 48, 64)  # of drafts
MIN_RATE, MAX_RATE = 0.02, 0.98  # bounds of an acceptance rate
_MIN_GAIN = 0.01  # required gain, because costs and rates are estimates


@dataclass(slots=True)
class StepCost:
    """Seconds of a step by its number of tokens, interpolated linearly between measured sizes.

    The cost of a size is the lower third of its last measurements, because other processes only make steps longer.
    It is at least that of a smaller size. The cost expected before counts as the first measurement, so that one
    disturbed step does not exclude a size.

    Up to `_NEAR_FACTOR` times the largest measured size, an additional token is assumed to cost at most ``token_cost``
    of the smallest step's time per token: long drafts may pay where short ones do not. Sizes that differ by less than a
    factor of two say nothing about it.
    """

    token_cost: float = TOKEN_COST
    _last: dict[int, deque[float]] = field(default_factory=dict)  # measurements per size
    _n_steps: int = 0
    _curve: tuple[list[int], list[float]] | None = None  # sizes, and their seconds, which never decrease

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Record a step of `n_tokens`, each with logits."""
        grain = 1 if n_tokens <= _EXACT_SIZES else 1 << n_tokens.bit_length() - 4
        size = n_tokens // grain * grain
        last = self._last.get(size)
        if last is None:
            is_larger = any(other < size for other in self._last)
            last = self._last[size] = deque([self.of(size)] if is_larger else [], N_MEASUREMENTS)
        last.append(seconds)
        self._n_steps += 1
        if not self._n_steps % EXPIRY_STEPS:
            for each in self._last.values():
                each.popleft()
            self._last = {n: each for n, each in self._last.items() if each}
        if len(last) < N_MEASUREMENTS or not self._n_steps % _CURVE_STEPS:
            self._curve = None

    def of(self, n_tokens: int) -> float:
        """Return the seconds of a step of `n_tokens`; 0.0 before the first measurement."""
        if not self._last:
            return 0.0
        if self._curve is None:
            sizes = sorted(self._last)
            thirds = [sorted(self._last[n])[len(self._last[n]) // 3] for n in sizes]
            known, first, last = list(accumulate(thirds, max)), sizes[0], sizes[-1]
            token_s = self.token_cost * known[0] / first
            slope_s = (known[-1] - known[0]) / (last - first) if last >= 2 * first else token_s
            near_s = known[-1] + min(token_s, slope_s) * (_NEAR_FACTOR - 1) * last
            # at least half of the smallest step is assumed to be reading weights
            seconds = [known[0] / 2, *known, near_s, near_s + slope_s * _FAR_TOKENS]
            self._curve = [0, *sizes, _NEAR_FACTOR * last, _NEAR_FACTOR * last + _FAR_TOKENS], seconds
        sizes, known = self._curve
        at = bisect_left(sizes, n_tokens)
        share = (n_tokens - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
        return known[at - 1] + share * (known[at] - known[at - 1])


def draft_length(
    gains: Sequence[Sequence[float]],
    n_tokens: int,
    step_s: Callable[[int, int], float],
    max_length: int,
    max_total: int,
    draft_s: Callable[[int], float] | None = None,
) -> tuple[int, int, float]:
    """Return the number of sequences to draft for, the length of their drafts, and the gain.

    The gain is the sum of the logarithms of all sequences' tokens per second, compared with no drafts. `gains`: the
    `log_tokens` of each sequence, best first. `n_tokens`: tokens of the step without drafts. `step_s`: seconds of a
    step by the number of its drafts and their length. `max_length` and `max_total` limit each draft and the tokens of
    all drafts. `draft_s`: seconds to propose one more token for so many sequences. All drafts have one length, because
    with separate KV each other length takes another graph evaluation.
    """
    n, base_s, best = len(gains), step_s(0, 0), (0, 0, _MIN_GAIN * (1 + n_tokens))
    for count in sorted({1, n // 4, n // 2, n} - {0}):
        logs = list(map(sum, zip(*gains[:count], strict=True)))
        for length, gained in zip(LENGTHS, logs, strict=True):
            if length > max_length or count * length > max_total:
                break
            seconds = step_s(count, length) + (length * draft_s(count) if draft_s else 0.0)
            gain = gained - n_tokens * log(seconds / base_s)
            if gain > best[2]:
                best = count, length, gain
            if logs[-1] - n_tokens * log(seconds / base_s) <= best[2]:
                break  # a longer draft costs no less
    return best if best[0] else (0, 0, 0.0)


def log_tokens(rates: Sequence[float]) -> list[float]:
    """Return the logarithm of the expected tokens per step for each of `LENGTHS`.

    `rates`: the acceptance rate of each draft token if all before it are accepted. Longer drafts do not exist.
    """
    chances = accumulate([min(max(rate, MIN_RATE), MAX_RATE) for rate in rates], mul)
    logs = list(map(log, accumulate(chances, initial=1.0)))
    return [logs[min(length, len(rates))] for length in LENGTHS]


_TEXT_WEIGHT, _MODEL_WEIGHT = 0.2, 0.1  # weight of one token in the acceptance rate of text and of a draft model
MODEL_RATE = 0.7  # initial acceptance rate of a draft model
# initial acceptance rates of text drafts after matches of 0, 1, 2, 4, 8, 16 and 32 tokens, as measured with code,
# documents and chats (benchmarks/experiments.md)
_TEXT_RATES = (0.1, 0.3, 0.4, 0.6, 0.8, 0.93, 0.98)


@dataclass(eq=False, slots=True)
class DraftState:
    """Speculation state of one sequence: limits, lookup and acceptance rates.

    A draft from the text has at most ``max_text_draft`` tokens, a draft of a draft model ``min_model_draft`` to
    ``max_model_draft``; it ends before a token less probable than ``p_min``. ``text_rates`` are the recent acceptance
    rates of text drafts by the bit length of ``n_matching``, the tokens that matched before; ``draft_acceptance`` is
    that of the draft model. ``text`` and ``drafted`` have their proposed tokens that are not sampled yet, next one
    last. Text drafts that were not verified count, too: measuring their rate costs nothing.
    """

    max_text_draft: int = 0
    lookup: Lookup | None = None
    max_model_draft: int = 0
    min_model_draft: int = 0
    p_min: float = 0.0
    n_matching: int = 0
    text_rates: list[float] = field(default_factory=lambda: list(_TEXT_RATES))
    draft_acceptance: float = MODEL_RATE
    n_compared: int = 0  # tokens of the draft model that were compared with sampled ones
    text: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    dice: Random | None = None  # random acceptance for synthetic benchmarks (`Speculation.takes`)

    def look_up(self, most: int) -> list[int]:
        """Return a draft from the text of at most `most` tokens."""
        self.text, self.drafted = [], []
        if self.lookup is None or most <= 0:
            return []
        draft = self.lookup.propose(most)
        self.text, self.n_matching = draft[::-1], self.lookup.n_matching
        return draft

    @property
    def rates(self) -> list[float]:
        """The acceptance rate of each proposed token of the text if all before it are accepted."""
        return [self.text_rates[_level(n)] for n in range(self.n_matching, self.n_matching + len(self.text))]

    def add(self, token: int) -> None:
        """Record that `token` was sampled."""
        if self.lookup is not None:
            self.lookup.add(token)
        if self.text:
            is_match, level = self.text.pop() == token, _level(self.n_matching)
            self.text = self.text if is_match else []
            self.text_rates[level] += _TEXT_WEIGHT * (is_match - self.text_rates[level])
            self.n_matching += 1
        if self.drafted:
            is_match = self.drafted.pop() == token
            self.drafted = self.drafted if is_match else []
            self.n_compared += 1
            weight = max(_MODEL_WEIGHT, 1 / (1 + self.n_compared))
            self.draft_acceptance += weight * (is_match - self.draft_acceptance)


def _level(n_matching: int) -> int:
    return min(n_matching.bit_length(), len(_TEXT_RATES) - 1)
