"""What follows when the library refuses a batch: cells are brought back in step, and who is at fault fails alone."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from server.engine.kv.cells import Cells
from server.engine.runner_api import Runner
from server.engine.schedule.scheduler import Scheduler, TokenRun
from server.engine.sequence import Phase, Sequence, Ticket, log_fields
from server.errors import CONTAINED, NotNumbers

log = logging.getLogger(__name__)

MAX_FAULTS = 2  # times a sequence is computed anew without getting further; then it is taken to be at fault
MAX_SPOILED = 8  # the same for logits that are no numbers, where an adapter may have left that in the cells


@dataclass(eq=False)
class Faults:
    """Used by the step thread. `take_results` takes in what a decode of so many seconds gave, `fail` ends a request."""

    _runner: Runner
    _scheduler: Scheduler
    _cells: Cells
    _clock: Callable[[], float]
    _take_results: Callable[[list[TokenRun], float], object]
    _fail: Callable[[Ticket, Exception], None]

    def recover(self, entries: list[TokenRun], error: Exception) -> None:
        """The library refused the batch `entries`: decode each alone, so that only those fail that are refused again.

        Where the model can't forget a part of a sequence, it is parked and computed anew, in steps of its own until it
        is past the place of the fault, at most `MAX_FAULTS` times; so is a medium that was decoded in part, which goes
        whole.
        """
        about = log_fields(*(entry.sequence.request for entry in entries))
        log.error(
            "a decode of %d sequences failed, each is tried by itself; a smaller n_batch takes less memory: %r",
            len(entries),
            error,
            extra=about,
        )
        kept = [entry for entry in entries if self._rewind(entry, error)]
        if len(entries) == 1:
            for entry in kept:
                self._fail(entry.sequence.ticket, error)
            return
        for entry in kept:
            if entry.sequence.slot is not None:  # else another choice of its request has failed
                self._decode_alone(entry)

    def wipe(self, spoiled: list[Sequence]) -> None:
        """The logits of `spoiled` are not numbers: by what computes them (a LoRA scale without bounds), or by what
        another sequence has left in their cells, since 0 times no number is none.

        Every cell is zeroed. Sequences that gave numbers just now come back from their states, the others are computed
        anew. One whose logits are none again, though nothing kept was of use to it, is at fault; so is, at once, one
        that an adapter computes, be it in the middle of its prompt.
        """
        about = log_fields(*(sequence.request for sequence in spoiled))
        log.error(
            "the logits of %d sequences are not numbers, every cell is wiped; look at LoRA scales, and --check-tensors",
            len(spoiled),
            extra=about,
        )
        now = self._clock()
        most = MAX_SPOILED if self._runner.adapters else MAX_FAULTS
        for sequence in list(self._scheduler.active()):
            slot = sequence.slot
            if slot is None:  # another choice of its request has failed
                continue
            if sequence not in spoiled and sequence.phase is Phase.DECODE:
                self._cells.park(sequence, now)
                continue
            tuned = bool(sequence.next_adapters)
            sequence.n_faults += tuned or sequence in spoiled
            if sequence.n_faults > (1 if tuned else most):
                self._fail(sequence.ticket, NotNumbers())
            else:
                sequence.anew = True
                self._scheduler.park(sequence, now)
            self._cells.clear(slot)
        for slot in self._scheduler.slots:
            self._cells.evict(slot, now)
        for sequence in spoiled:
            self._cells.moving.distrust(sequence)
        self._runner.wipe()

    def _decode_alone(self, entry: TokenRun) -> None:
        started = self._clock()
        try:
            self._runner.use_adapters(entry.sequence.next_adapters)
            if self._runner.decode([entry]):
                self._take_results([entry], self._clock() - started)
        except CONTAINED as own:
            if self._rewind(entry, own):
                self._fail(entry.sequence.ticket, own)

    def _rewind(self, entry: TokenRun, error: Exception) -> bool:
        """Forget what a failed decode may have left. False when its sequence can't go on from there."""
        sequence = entry.sequence
        slot = sequence.slot
        if slot is None:  # another choice of its request has failed
            return False
        n = len(slot.tokens)
        can_forget = self._cells.truncate(slot, n)
        if can_forget and len(slot.tokens) == n:
            return True
        if not can_forget:
            self._cells.clear(slot)
        sequence.n_faults += 1
        sequence.suspect = max(sequence.suspect, entry.at + len(entry.tokens))
        if sequence.n_faults > MAX_FAULTS:
            self._fail(sequence.ticket, error)
        elif not can_forget:
            self._scheduler.park(sequence, self._clock())
        return False
