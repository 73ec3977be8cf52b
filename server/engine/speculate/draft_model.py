"""Guesses of a draft model, or of the model's own heads (MTP): for whom, how far, and when prompts are read for them.

Used by the step thread alone.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from math import sqrt

from server.engine.prefix.hashes import common_prefix
from server.engine.runner_api import DraftRunner, MtpHeads
from server.engine.sequence import Sequence
from server.engine.speculate.cost import LEAST, Step, StepCost, draft_length
from server.engine.speculate.lookup import SURE, UNSEEN, Speculating

log = logging.getLogger(__name__)

_TAKEN_OVER = 32  # tokens more than its own that a slot takes over from another
NEAR = 16  # tokens that may be missing when a guess begins: what was taken since the last one, or a short prompt
MIN_CHUNK = 32  # tokens of a prompt that are read at once at least
_CHUNK_SHARE = 0.5  # of a step's time goes into reading prompts at most
_ANSWER = 128  # tokens of an answer
_UNSEEN_SHARE = 0.15  # of the model's step: what one of the draft model is taken to cost before any was seen
_READING = 0.1  # of a generated token's time: a read one's, before any was seen
_RECOVERS = 1 / 256  # of what is missing to `UNSEEN` comes back each step without a guess: so it is tried again
_EVERY = 8  # steps for which a decision holds: what was right in one of them is chance
_FIRST = 2  # tokens of the first guess of all, whose cost nobody knows


@dataclass(slots=True)
class Guess:
    """Tokens that may come next, and how likely each of them and all before it are taken."""

    tokens: list[int] = field(default_factory=list)
    reach: list[float] = field(default_factory=list)

    def add(self, token: int, chance: float) -> None:
        """One more."""
        self.tokens.append(token)
        self.reach.append((self.reach[-1] if self.reach else 1.0) * min(chance, SURE))


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """A `protocols.BatchEntry`."""

    seq: int
    pos: int
    tokens: list[int]
    want_logits: bool = True
    all_logits: bool = False
    media: None = None  # it reads text only


@dataclass(frozen=True, slots=True)
class Wish:
    """Guess for `sequence`, of which `state` is known: at most `most` tokens, as long as `goes_on` says so of the
    guess, and none behind one of ``ends``, which end the text.
    """

    sequence: Sequence
    state: Speculating
    most: int
    ends: frozenset[int] = frozenset()
    goes_on: Callable[[Guess], bool] = lambda _: True

    @property
    def right(self) -> float:
        """How likely a guessed token is right."""
        return min(max(self.state.right_drafted, LEAST), SURE)


@dataclass(slots=True)
class _ReadText:
    """``tokens`` are in the cells; the first `n_same` are known to be those of `owner`, as long as its `base` is."""

    tokens: list[int] = field(default_factory=list)
    owner: Sequence | None = None
    base: list[int] = field(default_factory=list)
    n_same: int = 0


def further(
    wishes: Seq[Wish],
    entries: Seq[DraftEntry],
    decode: Callable[[Seq[DraftEntry]], bool],
    best: Callable[[int], tuple[int, float]],
) -> list[Guess]:
    """A guess for each of `wishes`, which begins with its entry; each decode has one token of those that go on."""
    guesses = [Guess() for _ in wishes]
    going = list(range(len(wishes)))
    while entries and decode(entries):
        still: list[int] = []
        next_entries: list[DraftEntry] = []
        for output, i in enumerate(going):
            wish, guess = wishes[i], guesses[i]
            token, p = best(output)
            if p < wish.state.p_min or token in wish.ends:
                continue
            guess.add(token, sqrt(p * wish.right))  # what is said of this token, and what came of those so far
            if len(guess.tokens) < wish.most and wish.goes_on(guess):
                entry = entries[output]
                still.append(i)
                next_entries.append(DraftEntry(entry.seq, entry.pos + len(entry.tokens), [token]))
        going, entries = still, next_entries
    return guesses


class DraftCells:
    """What a draft model's context holds for each slot. ``cost``: of one token more of so many guesses."""

    def __init__(self, runner: DraftRunner, clock: Callable[[], float]) -> None:
        self.cost = StepCost()
        self._runner = runner
        self._clock = clock
        self._held = [_ReadText() for _ in range(runner.info.n_seq)]

    @property
    def n_ctx(self) -> int:
        """Most tokens of a sequence."""
        return self._runner.info.n_ctx_seq

    @property
    def n_batch(self) -> int:
        """Most tokens of a decode."""
        return self._runner.info.n_batch

    def missing(self, sequence: Sequence) -> int:
        """How many tokens of `sequence`, which generates, are not in the cells yet; others than its own are cut off."""
        slot = sequence.slot
        assert slot is not None
        held, text = self._held[slot.id], slot.tokens
        if held.owner is sequence and held.base is sequence.base:
            n = held.n_same
            n += common_prefix(held.tokens[n:], [*text[n:], *sequence.pending])
        else:
            n = self._take_over(slot.id, text)
            held.owner, held.base = sequence, sequence.base
        if n < len(held.tokens):
            self._cut(slot.id, n)
            n = len(held.tokens)
        held.n_same = min(n, len(text))
        return len(text) + len(sequence.pending) - n

    def _take_over(self, seq: int, text: list[int]) -> int:
        """Tokens in the cells of `seq` that begin `text`, copied from another's where those have much more."""
        held = self._held[seq]
        own = common_prefix(held.tokens, text)
        others = [(common_prefix(other.tokens, text), i) for i, other in enumerate(self._held) if i != seq]
        best, source = max(others, default=(0, seq))
        if best < own + _TAKEN_OVER:
            return own
        self._cut(seq, 0)
        self._runner.seq_copy(source, seq)
        held.tokens = list(self._held[source].tokens)
        return best

    def _cut(self, seq: int, n: int) -> None:
        held = self._held[seq]
        if n and not self._runner.seq_remove(seq, n):
            n = 0
        if not n:
            self._runner.seq_remove(seq, 0)
        del held.tokens[n:]
        held.n_same = min(held.n_same, n)

    def forget(self, sequences: Seq[Sequence]) -> None:
        """What a failed decode has left is unknown."""
        for sequence in sequences:
            if sequence.slot is not None:
                self._cut(sequence.slot.id, 0)

    def catch_up(self, sequence: Sequence, n: int) -> bool:
        """Compute the next `n` tokens that are missing. False when there is no room."""
        slot = sequence.slot
        assert slot is not None
        at = len(self._held[slot.id].tokens)
        return self._decode([DraftEntry(slot.id, at, slot.tokens[at : at + n], want_logits=False)], n_guesses=0)

    def guess(self, wishes: Seq[Wish]) -> list[Guess]:
        """A guess for each, all of them one token further with each decode. `missing` was asked for each before."""
        entries = [self._rest(wish.sequence) for wish in wishes]
        return further(wishes, entries, lambda entries: self._decode(entries, len(entries)), self._runner.best)

    def _rest(self, sequence: Sequence) -> DraftEntry:
        slot = sequence.slot
        assert slot is not None
        at = len(self._held[slot.id].tokens)
        return DraftEntry(slot.id, at, [*slot.tokens[at:], *sequence.pending])

    def _decode(self, entries: Seq[DraftEntry], n_guesses: int) -> bool:
        """False when there is no room."""
        started = self._clock()
        decode, seqs = self._runner.decode, {entry.seq for entry in entries}
        if not decode(entries) and not (self._make_room(seqs) and decode(entries)):
            return False
        for entry in entries:
            self._held[entry.seq].tokens += entry.tokens
        if n_guesses:  # what was taken since the last guess is read on the way, which is a part of what guessing costs
            self.cost.observe(n_guesses, self._clock() - started)
        return True

    def _make_room(self, needed: set[int]) -> bool:
        """Drop what is held for others (slots that share their cells)."""
        others = [i for i, held in enumerate(self._held) if held.tokens and i not in needed]
        for seq in others:
            self._cut(seq, 0)
        return bool(others)


class MtpGuesser:
    """Guesses of a model's own heads (MTP), which follow the model by themselves: there is nothing to read before."""

    def __init__(self, heads: MtpHeads, clock: Callable[[], float]) -> None:
        self.cost = StepCost()
        self._heads = heads
        self._clock = clock

    @property
    def n_ctx(self) -> int:
        """Most tokens of a sequence."""
        return self._heads.info.n_ctx_seq

    @property
    def n_batch(self) -> int:
        """Most tokens of a decode."""
        return self._heads.info.n_batch

    def missing(self, sequence: Sequence) -> int:
        """Few, or too many where the model's state behind its last token is not known (it came back from RAM)."""
        slot = sequence.slot
        assert slot is not None
        return 1 if self._heads.ready(slot.id, slot.pos) else NEAR + 1

    def catch_up(self, sequence: Sequence, n: int) -> bool:
        """The model's next token brings what is missing, and nothing else does."""
        return False

    def forget(self, sequences: Seq[Sequence]) -> None:
        """The heads know by themselves what they hold."""

    def guess(self, wishes: Seq[Wish]) -> list[Guess]:
        """A guess for each, all of them one token further with each decode."""
        slots = [wish.sequence.slot for wish in wishes]
        entries = [
            DraftEntry(slot.id, slot.pos, wish.sequence.pending)
            for slot, wish in zip(slots, wishes, strict=True)
            if slot is not None
        ]
        try:
            return further(wishes, entries, self._decode, self._heads.best)
        finally:
            self._heads.end_guesses([entry.seq for entry in entries])

    def _decode(self, entries: Seq[DraftEntry]) -> bool:
        started = self._clock()
        decoded = self._heads.decode(entries)
        if decoded:
            self.cost.observe(len(entries), self._clock() - started)
        return decoded


Guesser = DraftCells | MtpGuesser


class Drafting:
    """Decides by what the draft model costs and by how often it was right."""

    def __init__(self, cells: Guesser, ends: frozenset[int], clock: Callable[[], float]) -> None:
        self._cells = cells
        self._ends = ends
        self._clock = clock
        self._read_s = 0.0  # seconds for reading one token
        self._said_failure = False
        self._decided = (0, 0)
        self._decided_for = (0, 0)
        self._age = 0

    def guess(self, wanted: Seq[Wish], step: Step) -> list[Guess]:
        """Guesses where they pay, for those that are wanted, in their order.

        Never fails: what can't be drafted is left out from then on, which is logged once.
        """
        guesses = [Guess() for _ in wanted]
        for each in wanted:
            each.state.right_drafted += _RECOVERS * (UNSEEN - each.state.right_drafted)
        try:
            near, far = self._sorted(wanted)
            if far:
                self._read(wanted[far[0]], len(near) + len(far), step)
            count, length = self._plan([wanted[i] for i in near], step)
            chosen = near[:count]
            wishes = [self._wish(wanted[i], length, count, step) for i in chosen]
            for i, guess in zip(chosen, self._cells.guess(wishes), strict=True):
                if len(guess.tokens) >= wanted[i].state.least_drafted:
                    guesses[i] = guess
        except Exception as error:  # noqa: BLE001 - a guess is never worth a request
            self._give_up(wanted, error)
            return [Guess() for _ in wanted]
        return guesses

    def always(self, wanted: Seq[Wish]) -> list[Guess]:
        """Guesses of full length for all, whatever they cost: for a benchmark, which is to see the same every time."""
        guesses = [Guess() for _ in wanted]
        try:
            for each in wanted:
                while (missing := self._cells.missing(each.sequence)) > NEAR:
                    if not self._cells.catch_up(each.sequence, min(missing - 1, self._cells.n_batch)):
                        break
            near, _ = self._sorted(wanted)
            wishes = [
                replace(each, most=self._most(each), ends=self._ends_of(each)) for each in (wanted[i] for i in near)
            ]
            for i, guess in zip(near, self._cells.guess(wishes), strict=True):
                guesses[i] = guess
        except Exception as error:  # noqa: BLE001 - a guess is never worth a request
            self._give_up(wanted, error)
        return guesses

    def _ends_of(self, each: Wish) -> frozenset[int]:
        return frozenset() if each.sequence.request.sampling.ignore_eos else self._ends

    def _give_up(self, wanted: Seq[Wish], error: Exception) -> None:
        if not self._said_failure:
            log.warning("the draft model failed; the requests at hand go on without it", exc_info=error)
            self._said_failure = True
        for each in wanted:
            each.state.most_drafted = 0
        self._cells.forget([each.sequence for each in wanted])

    def _sorted(self, wanted: Seq[Wish]) -> tuple[list[int], list[int]]:
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
        near.sort(key=lambda i: -wanted[i].state.right_drafted)
        return near, far

    def _most(self, each: Wish) -> int:
        return min(each.most, self._cells.n_ctx - each.sequence.n_computed - 2)

    def _draft_s(self, n: int, step: Step) -> float:
        """Seconds for one token more of `n` guesses."""
        return self._cells.cost.of(n) or _UNSEEN_SHARE * step.base_s

    def _plan(self, near: Seq[Wish], step: Step) -> tuple[int, int]:
        """For how many of the first a guess is made, and how long it is to be.

        Nobody knows what a guess costs before the first one, which is often slow: it is made in any case.
        """
        if not near:
            return 0, 0
        if not self._cells.cost.of(1):
            return 1, min(max(_FIRST, near[0].state.least_drafted), self._most(near[0]))
        asked = (len(near), step.n_tokens)
        self._age += 1
        if asked != self._decided_for or self._age >= _EVERY:
            self._decided_for, self._age = asked, 0
            most, chances = max(self._most(each) for each in near), [each.right for each in near]
            self._decided = draft_length(chances, step, lambda n: self._draft_s(n, step), most)
        return self._decided

    def _spent(self, count: int, length: int, step: Step) -> float:
        return length * self._draft_s(count, step) + step.extra_s(count * length)

    def _wish(self, each: Wish, length: int, count: int, step: Step) -> Wish:
        more_s = self._draft_s(count, step) / count + step.extra_s(count * length) / (count * length)
        needed = more_s * step.n_tokens / step.base_s  # chance of a token that is worth its time
        right = each.right

        def goes_on(guess: Guess) -> bool:
            return len(guess.tokens) < each.state.least_drafted or guess.reach[-1] * right >= needed

        return replace(each, most=min(self._most(each), 2 * length), ends=self._ends_of(each), goes_on=goes_on)

    def _read(self, each: Wish, n: int, step: Step) -> None:
        """Read a part of a long text that is missing, if the rest of the answer is expected to repay it.

        That is looked at as if all `n` sequences were guessed for, which makes each guess cheaper.
        """
        missing = self._cells.missing(each.sequence)
        token_s = step.base_s / step.n_tokens
        read_s = self._read_s or _READING * _UNSEEN_SHARE * token_s
        right = each.right
        count, length = draft_length([right] * n, step, lambda m: self._draft_s(m, step), each.most)
        if not count:  # then nothing would be guessed now
            return
        n_expected = step.n_tokens + count * sum(right**i for i in range(1, length + 1))
        seconds = (step.base_s + self._spent(count, length, step)) / n_expected
        request, n_out = each.sequence.request, len(each.sequence.output)
        left = max(_ANSWER - n_out, _ANSWER // 4)
        if request.max_tokens >= 0:
            left = min(left, request.max_tokens - n_out)
        if left * (token_s - seconds) <= missing * read_s:
            return
        chunk = min(max(MIN_CHUNK, int(_CHUNK_SHARE * step.base_s / read_s)), missing - 1, self._cells.n_batch)
        started = self._clock()
        if self._cells.catch_up(each.sequence, chunk):
            self._read_s += (0.3 if self._read_s else 1.0) * ((self._clock() - started) / chunk - self._read_s)
