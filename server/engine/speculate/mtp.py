"""Guesses of a model's own heads (MTP), which follow the model by themselves: there is nothing to read before. Used by
the step thread alone."""

from collections.abc import Callable
from collections.abc import Sequence as Seq

from server.engine.runner_api import MtpHeads
from server.engine.sequence import Sequence
from server.engine.speculate.cost import StepCost
from server.engine.speculate.draft_model import NEAR, DraftEntry, Guess, Wish, further


class MtpGuesser:
    """A `draft_model.Guesser`."""

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
