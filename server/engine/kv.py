"""Carries out what the scheduler decided about cells, and keeps ``slot.tokens`` true to them."""

import logging

from server.engine.protocols import Runner
from server.engine.scheduler import Placement, Scheduler
from server.engine.sequence import Sequence, Slot
from server.errors import LlamapoolError

log = logging.getLogger(__name__)


class Cells:
    """The only place that changes cells other than by decoding."""

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self._runner = runner
        self._scheduler = scheduler

    def clear(self, slot: Slot) -> None:
        """Forget everything in `slot`."""
        self._runner.seq_remove(slot.id, 0)
        slot.tokens = []
        slot.n_shared = 0

    def truncate(self, slot: Slot, n: int) -> bool:
        """Keep the first `n` tokens. False, and nothing changed, when the model cannot forget a part."""
        if not self._runner.seq_remove(slot.id, n):
            return False
        del slot.tokens[n:]
        slot.n_shared = min(slot.n_shared, n)
        return True

    def prepare(self, placement: Placement) -> None:
        """Bring the slot's cells to the placement's prefix; less than promised when the model cannot share it."""
        slot, source, sequence = placement.slot, placement.source, placement.sequence
        if sequence.saved is not None:
            self._restore(slot, sequence)
            return
        if source is None:
            self.clear(slot)
            return
        if source is not slot:
            self.clear(slot)
            self._runner.seq_copy(source.id, slot.id)
            slot.tokens = list(source.tokens)
            slot.n_shared = len(slot.tokens) if self._runner.info.unified else 0
        if len(slot.tokens) > placement.n_reuse and not self.truncate(slot, placement.n_reuse):
            self.clear(slot)

    def park(self, sequence: Sequence, now: float) -> None:
        """Move a running sequence out of the cells; it waits for its turn again."""
        slot = sequence.slot
        assert slot is not None
        try:
            sequence.saved = self._runner.seq_save(slot.id)
            sequence.saved_tokens = list(slot.tokens)
        except LlamapoolError as error:  # its cells are computed anew then, and nobody else is troubled
            log.warning("slot %d: its state could not be saved: %s", slot.id, error)
        self._scheduler.park(sequence, now)
        self.clear(slot)

    def _restore(self, slot: Slot, sequence: Sequence) -> None:
        """Bring a parked sequence back; it is computed anew when its state does not fit."""
        self.clear(slot)
        state, tokens = sequence.saved, sequence.saved_tokens
        sequence.saved, sequence.saved_tokens = None, []
        assert state is not None
        if self._runner.seq_load(slot.id, state):
            slot.tokens = tokens
        else:
            log.info("slot %d: no room for a parked state of %d tokens, computing it again", slot.id, len(tokens))
            self.clear(slot)
