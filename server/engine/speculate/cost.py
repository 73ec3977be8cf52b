"""How many guesses pay: by what a step of so many tokens costs, learned from the steps that were done, and by how many
of a sequence's guesses were right lately (`Speculating`). Pure.

A decode of one token reads every weight, and of a few more tokens reads them no more often: what the further tokens
cost depends on the machine, the model and the kernels, and has to be seen.

A guess makes the step longer for everybody, and gives tokens to one. So what is raised is the sum of the logarithms of
every sequence's tokens per second (proportional fairness): nobody is slowed down by a tenth for less than another's
gain of a tenth. For one sequence, or where all do alike, that is the tokens per second of all.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import log, log1p
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server.engine.speculate.lookup import TextSource

UNKNOWN_SHARE = 0.5  # of a token's even share of the step: what one more is taken to cost at most before it was seen
FORGET = 256  # steps after which a size that was not seen again is forgotten: it may have been disturbed
SEEN = 8  # steps of a size that are remembered
_SAME = 8  # steps for which an answer holds
_EXACT = 32  # sizes up to here are kept apart, larger ones by eighths of their power of two
_PART = 16  # tokens of a prompt from which on they tell what one more costs

LEAST = 0.02  # guesses less likely than this are not even considered
_MARGIN = 0.01  # the gain that is asked for, since what is known of costs and of guesses is never exact


def _size(n_tokens: int) -> int:
    if n_tokens <= _EXACT:
        return n_tokens
    grain = 1 << max(n_tokens.bit_length() - 4, 0)
    return n_tokens // grain * grain


def _quick(last: Collection[float]) -> float:
    """The quarter of the quickest ends here: what other processes do only makes a step longer."""
    return sorted(last)[len(last) // 4]


@dataclass(slots=True)
class StepCost:
    """Seconds of a step by the number of its tokens; between two known sizes on the line that joins them.

    A size costs what the quickest of its last steps took, and no less than a smaller one. Until enough of them were
    seen it costs no more than a larger one, and what was expected has a vote: one disturbed step would keep its size
    from being tried again.
    """

    _seconds: dict[int, deque[float]] = field(default_factory=dict)  # of the last steps of each size
    _prompt_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN))
    _seen: set[int] = field(default_factory=set)  # sizes of the last steps
    _n_seen: int = 0
    _sizes: list[int] = field(default_factory=list)
    _known: list[float] = field(default_factory=list)  # by `_sizes`, never falling
    _asked: dict[int, float] = field(default_factory=dict)  # what was said lately: every step asks for the same

    def observe(self, n_tokens: int, seconds: float) -> None:
        """A step of `n_tokens`, each with its logits, took `seconds`."""
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
        """A prompt's part of `n_tokens` took `seconds`: as long as nothing better is known, a further token costs that
        much."""
        if n_tokens >= _PART:
            self._prompt_token_s.append(seconds / n_tokens)
            self._asked.clear()

    def of(self, n_tokens: int) -> float:
        """Seconds that a step of `n_tokens` takes; 0.0 before any was seen."""
        if not self._asked:
            self._learn()
        seconds = self._asked.get(n_tokens)
        if seconds is None:
            self._asked[n_tokens] = seconds = self._of(_size(n_tokens), n_tokens)
        return seconds

    def _learn(self) -> None:
        self._sizes, self._known = sorted(self._seconds), []
        for size in self._sizes:
            last = self._seconds[size]
            expected = [self._expected(size)] if self._known and len(last) < SEEN else []
            self._known.append(_quick([*last, *expected]))
        for at in range(len(self._known) - 2, -1, -1):
            if len(self._seconds[self._sizes[at]]) < SEEN:
                self._known[at] = min(self._known[at], self._known[at + 1])
        self._known = list(accumulate(self._known, max))

    def _expected(self, n_tokens: int) -> float:
        """Before anything but the smallest step was seen."""
        smallest, seconds = self._sizes[0], self._known[0]
        most = UNKNOWN_SHARE * seconds / smallest
        token_s = min(_quick(self._prompt_token_s), most) if self._prompt_token_s else most
        return seconds + token_s * (n_tokens - smallest)

    def _of(self, size: int, n_tokens: int) -> float:
        sizes, known = self._sizes, self._known
        if not sizes:
            return 0.0
        at = bisect_left(sizes, size)
        if at < len(sizes) and sizes[at] == size:
            return known[at]
        if at == 0:
            return known[0] * (1 + size / sizes[0]) / 2  # at least half is taken to be the weights
        if len(sizes) == 1:
            return self._expected(n_tokens)
        low, high = (at - 1, at) if at < len(sizes) else (0, at - 1)  # behind the largest: as from the smallest to it
        slope = (known[high] - known[low]) / (sizes[high] - sizes[low])
        return known[at - 1] + slope * (n_tokens - sizes[at - 1])


@dataclass(frozen=True, slots=True)
class Step:
    """The step that guesses are for: `n_tokens` come out of it in `base_s` seconds without any.

    ``extra_s`` says what so many more tokens add to it, ``evaluation_tokens`` how many of them each further length is,
    ``fills`` whether shorter sequences are filled up (`evaluated`).
    """

    n_tokens: int
    base_s: float
    extra_s: Callable[[int], float]
    evaluation_tokens: float = 0.0
    fills: bool = False


def evaluated(sequences: Mapping[int, int], evaluation_tokens: float, *, fills: bool) -> int:
    """Tokens that a step computes as quickly, which has so many sequences by their numbers of tokens.

    Those with cells of their own are evaluated together only as far as they have as many: each further length costs
    as much as `evaluation_tokens`, or less, if the others are filled up to it (`fills`; `schedule.evaluations`).
    """
    n = sum([each * count for each, count in sequences.items()])
    apart = (len(sequences) - 1) * evaluation_tokens
    return n + int(min(apart, max(sequences) * sum(sequences.values()) - n) if fills else apart)


def lengths(reaches: Sequence[Sequence[float]], step: Step, most: int) -> list[int]:
    """How many tokens to take of each guess, at most `most` in all.

    ``reaches`` has for each guess how likely its tokens are taken, never rising.
    """
    taken, n_tokens, base_s = [0] * len(reaches), step.n_tokens, step.base_s
    if base_s <= 0:
        return taken
    ranked = sorted(_gains(reaches), reverse=True)[:most]
    best, n_best, gain = _MARGIN * (1 + n_tokens), 0, 0.0
    alike = {1: n_tokens}  # sequences by their tokens
    for n, (more, i) in enumerate(ranked, 1):
        gain += more
        taken[i] += 1
        alike[taken[i]] -= 1
        if not alike[taken[i]]:
            del alike[taken[i]]
        alike[taken[i] + 1] = alike.get(taken[i] + 1, 0) + 1
        extra_s = step.extra_s(evaluated(alike, step.evaluation_tokens, fills=step.fills) - n_tokens)
        value = gain - n_tokens * log1p(extra_s / base_s)
        if value > best:
            best, n_best = value, n
        most_gain = gain + (len(ranked) - n) * more  # gains fall, and costs rise
        if most_gain - n_tokens * log1p(step.extra_s(n) / base_s) <= best:
            break
    taken = [0] * len(reaches)
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
            if p < LEAST:
                break
            gains.append((log1p(p / expected), i))
            expected += p
    return gains


def draft_length(chances: Sequence[float], step: Step, draft_s: Callable[[int], float], most: int) -> tuple[int, int]:
    """(sequences, tokens for each) that a draft model should guess, at most `most`; (0, 0) where nothing pays.

    ``chances``, never rising, has for each sequence how likely a drafted token is right. A guess of one more token for
    so many sequences takes ``draft_s``.
    """
    n, n_tokens, base_s = len(chances), step.n_tokens, step.base_s
    best, found = _MARGIN * (1 + n_tokens), (0, 0)
    counts = sorted({1, n // 4, n // 2, n} - {0})
    for length in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
        if length > most:
            break
        gains = [log1p(_expected(p, length)) for p in chances]
        for count in counts:
            tokens = {1: n_tokens - count, 1 + length: count} if count < n_tokens else {1 + length: count}
            more = evaluated(tokens, step.evaluation_tokens, fills=step.fills) - n_tokens
            seconds = base_s + length * draft_s(count) + step.extra_s(more)
            value = sum(gains[:count]) - n_tokens * log(seconds / base_s)
            if value > best:
                best, found = value, (count, length)
    return found


def _expected(p: float, n: int) -> float:
    """Tokens that are taken of `n` when each is right with `p` and the first wrong one ends it."""
    return p * (1 - p**n) / (1 - p) if p < 1 else float(n)


# ---- what is known of the guesses of one sequence

SURE = 0.98  # no guess is taken to be more likely
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
    sources: "tuple[TextSource, ...]" = ()
    most_drafted: int = 0
    least_drafted: int = 0
    p_min: float = 0.0
    right: float = _LOOKED_UP
    right_drafted: float = UNSEEN
    expected: list[int] = field(default_factory=list)
    source: "TextSource | None" = None  # who guessed what is expected; None: a draft model
    dice: Random | None = None  # by which guesses are taken, where that is left to chance (`rates_of_length`)

    def look_up(self, most: int) -> list[int]:
        """What the text suggests, of the first source that has a suggestion."""
        for source in self.sources:
            guess = source.guess(most)
            if guess:
                self.expected, self.source = guess[::-1], source
                return guess
        self.expected = []
        return []

    def expect(self, drafted: Sequence[int]) -> None:
        """A draft model guessed these."""
        self.expected, self.source = list(drafted[::-1]), None

    def add(self, token: int) -> None:
        """`token` was sampled."""
        for source in self.sources:
            source.add(token)
        if not self.expected:
            return
        right = self.expected.pop() == token
        if not right:
            self.expected = []
        if self.source is None:
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
