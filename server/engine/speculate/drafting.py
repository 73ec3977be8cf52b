"""For which sequences a draft model guesses, how far, and when it reads their prompts. Used by the step thread."""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from server.engine.sequence import Sequence
from server.engine.speculate.chances import Chances
from server.engine.speculate.choice import draft_length
from server.engine.speculate.draft_cells import DraftCells, Wish
from server.engine.speculate.guess import NOTHING, TRIAL, Guess, Step
from server.engine.speculate.state import Speculating

log = logging.getLogger(__name__)

NEAR = 16  # tokens that may be missing when a guess begins: what was taken since the last one, or a short prompt
MIN_CHUNK = 32  # tokens of a prompt that are read at once at least
_CHUNK_SHARE = 0.5  # of a step's time goes into reading prompts at most
_USUAL = 128.0  # tokens of an answer, before any was seen
_UNSEEN_SHARE = 0.15  # of the model's step: what one of the draft model is taken to cost before any was seen
_READING = 0.1  # of a generated token's time: a read one's, before any was seen
_RIGHT = 0.7  # of drafted tokens are right, before any was checked
_EVERY = 8  # steps for which a decision holds


@dataclass(frozen=True, slots=True)
class Wanted:
    """A sequence that could do with a guess of at most `most` tokens."""

    sequence: Sequence
    state: Speculating
    most: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """``guesses`` for those that were wanted, in their order, made in ``seconds``."""

    guesses: list[Guess]
    seconds: float = 0.0
    trial: bool = False


class Drafting:
    """Decides by what the draft model costs and by how often it was right."""

    def __init__(self, cells: DraftCells, chances: Chances, ends: frozenset[int], clock: Callable[[], float]) -> None:
        self._cells = cells
        self._chances = chances
        self._ends = ends
        self._clock = clock
        self._mean_right = _RIGHT
        self._mean_output = _USUAL
        self._read_s = 0.0  # seconds for reading one token
        self._said_failure = False
        self._decided = (0, 0)
        self._decided_for = (0, 0)
        self._age = 0

    def answered(self, n_tokens: int) -> None:
        """An answer of so many tokens has ended."""
        self._mean_output += 0.2 * (n_tokens - self._mean_output)

    def learn(self, n_guessed: int, n_right: int) -> None:
        """Of `n_guessed` drafted tokens the first `n_right` were right."""
        for right in [1.0] * n_right + [0.0] * (n_right < n_guessed):
            self._mean_right += 0.02 * (right - self._mean_right)

    def guess(self, wanted: Seq[Wanted], step: Step) -> Drafted:
        """Guesses where they pay. Never fails: what can't be drafted is left out from then on, which is logged once."""
        guesses, seconds = [NOTHING] * len(wanted), 0.0
        try:
            near, far = self._sorted(wanted)
            if far:
                self._read(wanted[far[0]], len(near) + len(far), step)
            count, length, trial = self._plan([wanted[i] for i in near], step)
            chosen, started = near[:count], self._clock()
            wishes = [self._wish(wanted[i], length, count, step) for i in chosen]
            for i, guess in zip(chosen, self._cells.guess(wishes), strict=True):
                guesses[i] = guess if len(guess.tokens) >= wanted[i].state.least_drafted else NOTHING
            seconds = self._clock() - started if chosen else 0.0
        except Exception as error:  # noqa: BLE001 - a guess is never worth a request
            self._give_up(wanted, error)
            return Drafted([NOTHING] * len(wanted))
        return Drafted(guesses, seconds, trial)

    def always(self, wanted: Seq[Wanted]) -> list[Guess]:
        """Guesses of full length for all, whatever they cost: for a benchmark, which is to see the same every time."""
        guesses = [NOTHING] * len(wanted)
        try:
            for each in wanted:
                while (missing := self._cells.missing(each.sequence)) > NEAR:
                    if not self._cells.catch_up(each.sequence, min(missing - 1, self._cells.n_batch)):
                        break
            near, _ = self._sorted(wanted)
            wishes = [
                Wish(each.sequence, self._most(each), each.state.p_min, self._ends_of(each), lambda _: True)
                for each in (wanted[i] for i in near)
            ]
            for i, guess in zip(near, self._cells.guess(wishes), strict=True):
                guesses[i] = guess
        except Exception as error:  # noqa: BLE001 - a guess is never worth a request
            self._give_up(wanted, error)
        return guesses

    def _ends_of(self, each: Wanted) -> frozenset[int]:
        return frozenset() if each.sequence.request.sampling.ignore_eos else self._ends

    def _give_up(self, wanted: Seq[Wanted], error: Exception) -> None:
        if not self._said_failure:
            log.warning("the draft model failed; the requests at hand go on without it", exc_info=error)
            self._said_failure = True
        for each in wanted:
            each.state.most_drafted = 0
        self._cells.forget([each.sequence for each in wanted])

    def _sorted(self, wanted: Seq[Wanted]) -> tuple[list[int], list[int]]:
        """Who can be guessed for now, the most promising first, and whose text must be read before."""
        near, far, room = [], [], self._cells.n_batch
        for i, each in enumerate(wanted):
            if self._most(each) < 1:
                continue
            missing = self._cells.missing(each.sequence)
            if missing > NEAR:
                far.append(i)
            elif missing <= room:
                near.append(i)
                room -= missing
        near.sort(key=lambda i: -wanted[i].state.own_drafted.factor)
        return near, far

    def _most(self, each: Wanted) -> int:
        return min(each.most, self._cells.n_ctx - each.sequence.n_computed - 2)

    def _right(self, each: Wanted) -> float:
        """How likely a drafted token is right."""
        return min(max(self._mean_right * each.state.own_drafted.factor, 0.02), 0.98)

    def _draft_s(self, n: int, step: Step) -> float:
        """Seconds for one token more of `n` guesses."""
        return self._cells.cost.of(n) or _UNSEEN_SHARE * step.base_s

    def _plan(self, near: Seq[Wanted], step: Step) -> tuple[int, int, bool]:
        """For how many of the first a guess is made, how long it is to be, and whether it is a trial.

        Nobody knows what a guess costs before the first one, which is often slow: it is made, whatever credit there is.
        """
        if not near:
            return 0, 0, False
        if not self._cells.cost.of(1):
            return 1, min(max(TRIAL, near[0].state.least_drafted), self._most(near[0])), True
        asked = (len(near), step.n_tokens)
        self._age += 1
        if asked != self._decided_for or self._age >= _EVERY:
            self._decided_for, self._age = asked, 0
            self._decided = self._length(near, step)
        count, length = self._decided
        while length and self._spent(count, length, step) > step.left_s:
            length -= 1
        if count and length:
            return count, length, False
        if self._spent(1, TRIAL, step) <= step.trial_s:
            return 1, TRIAL, True
        return 0, 0, False

    def _length(self, near: Seq[Wanted], step: Step) -> tuple[int, int]:
        chances = [self._right(each) for each in near]
        most = max(self._most(each) for each in near)
        return draft_length(chances, step.n_tokens, step.base_s, lambda n: self._draft_s(n, step), step.extra_s, most)

    def _spent(self, count: int, length: int, step: Step) -> float:
        return length * self._draft_s(count, step) + step.extra_s(count * length)

    def _wish(self, each: Wanted, length: int, count: int, step: Step) -> Wish:
        own, right = each.state.own_drafted, self._right(each)
        more_s = self._draft_s(count, step) / count + step.extra_s(count * length) / (count * length)
        needed = more_s * step.n_tokens / step.base_s  # chance of a token that is worth its time

        def goes_on(guess: Guess) -> bool:
            return (
                len(guess.tokens) < each.state.least_drafted
                or self._chances.reach(guess.kinds, own)[-1] * right >= needed
            )

        most = min(self._most(each), 2 * length)
        return Wish(each.sequence, most, each.state.p_min, self._ends_of(each), goes_on)

    def _read(self, each: Wanted, n: int, step: Step) -> None:
        """Read a part of a long text that is missing, if the rest of the answer is expected to repay it.

        That is looked at as if all `n` sequences were guessed for, which makes each guess cheaper.
        """
        missing = self._cells.missing(each.sequence)
        token_s = step.base_s / step.n_tokens
        read_s = self._read_s or _READING * _UNSEEN_SHARE * token_s
        right = self._right(each)
        count, length = draft_length(
            [right] * n, step.n_tokens, step.base_s, lambda m: self._draft_s(m, step), step.extra_s, each.most
        )
        if not count or self._spent(count, 1, step) > step.left_s:  # then nothing would be guessed now
            return
        n_expected = step.n_tokens + count * sum(right**i for i in range(1, length + 1))
        seconds = (step.base_s + self._spent(count, length, step)) / n_expected
        request, n_out = each.sequence.request, len(each.sequence.output)
        left = max(self._mean_output - n_out, self._mean_output / 4)
        if request.max_tokens >= 0:
            left = min(left, request.max_tokens - n_out)
        if left * (token_s - seconds) <= missing * read_s:
            return
        chunk = min(max(MIN_CHUNK, int(_CHUNK_SHARE * step.base_s / read_s)), missing - 1, self._cells.n_batch)
        started = self._clock()
        if self._cells.catch_up(each.sequence, chunk):
            self._read_s += (0.3 if self._read_s else 1.0) * ((self._clock() - started) / chunk - self._read_s)
