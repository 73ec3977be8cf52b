"""What a draft model's context holds for each slot, and the guesses that it makes from there."""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from server.engine.prefix.match import common_prefix
from server.engine.runner_api import DraftRunner
from server.engine.sequence import Sequence
from server.engine.speculate.chances import drafted_kind
from server.engine.speculate.cost import StepCost
from server.engine.speculate.guess import Guess

log = logging.getLogger(__name__)

MIN_COPY = 32  # tokens more than its own that a slot takes over from another


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """A `protocols.BatchEntry`."""

    seq: int
    pos: int
    tokens: list[int]
    want_logits: bool = True
    all_logits: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """Guess for `sequence`, whose cells lack few tokens: at most `most`, as long as `goes_on` says so of the guess."""

    sequence: Sequence
    most: int
    p_min: float
    ends: frozenset[int]  # tokens that end the text: nothing follows them
    goes_on: Callable[[Guess], bool]


@dataclass(slots=True)
class _Held:
    """``tokens`` are in the cells; the first `n_same` are known to be those of `owner`, as long as its `base` is."""

    tokens: list[int] = field(default_factory=list)
    owner: Sequence | None = None
    base: list[int] = field(default_factory=list)
    n_same: int = 0


class DraftCells:
    """Used by the step thread alone. ``cost`` learns what one token more of so many guesses takes."""

    def __init__(self, runner: DraftRunner, clock: Callable[[], float]) -> None:
        self.cost = StepCost()
        self._runner = runner
        self._clock = clock
        self._held = [_Held() for _ in range(runner.info.n_seq)]

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
            n += common_prefix(held.tokens[n:], [*text[n:], sequence.output[-1]])
        else:
            n = self._take_over(slot.id, text)
            held.owner, held.base = sequence, sequence.base
        if n < len(held.tokens):
            self._cut(slot.id, n)
            n = len(held.tokens)
        held.n_same = min(n, len(text))
        return len(text) + 1 - n

    def _take_over(self, seq: int, text: list[int]) -> int:
        """Tokens in the cells of `seq` that begin `text`, copied from another's where those have much more."""
        held = self._held[seq]
        own = common_prefix(held.tokens, text)
        others = [(common_prefix(other.tokens, text), i) for i, other in enumerate(self._held) if i != seq]
        best, source = max(others, default=(0, seq))
        if best < own + MIN_COPY:
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
        guesses = [Guess() for _ in wishes]
        going = list(range(len(wishes)))
        entries = [self._rest(wish.sequence) for wish in wishes]
        while entries and self._decode(entries, len(entries)):
            further: list[int] = []
            entries_further: list[DraftEntry] = []
            for output, i in enumerate(going):
                wish, guess = wishes[i], guesses[i]
                token, p = self._runner.best(output)
                if p < wish.p_min or token in wish.ends:
                    continue
                guess.tokens.append(token)
                guess.kinds.append(drafted_kind(p))
                if len(guess.tokens) < wish.most and wish.goes_on(guess):
                    seq = entries[output].seq
                    further.append(i)
                    entries_further.append(DraftEntry(seq, len(self._held[seq].tokens), [token]))
            going, entries = further, entries_further
        return guesses

    def _rest(self, sequence: Sequence) -> DraftEntry:
        slot = sequence.slot
        assert slot is not None
        at = len(self._held[slot.id].tokens)
        return DraftEntry(slot.id, at, [*slot.tokens[at:], sequence.output[-1]])

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
