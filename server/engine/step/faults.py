"""Recovery after the library rejected a batch: restore the cells and fail only the faulty request."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from server.engine.kv.cells import Cells
from server.engine.runner_api import Runner
from server.engine.schedule.scheduler import Scheduler, TokenRun
from server.engine.sequence import Phase, Sequence, Ticket, log_fields
from server.errors import CONTAINED, NotNumbers

log = logging.getLogger(__name__)

MAX_FAULTS = 2  # recomputations without progress after which a sequence is considered faulty
MAX_NOT_FINITE = 8  # the same for non-finite logits, where an adapter may have left them in the cells


@dataclass(eq=False)
class Faults:
    """Used by the step thread. `take_results` processes a successful decode, `fail` ends a request."""

    _runner: Runner
    _scheduler: Scheduler
    _cells: Cells
    _clock: Callable[[], float]
    _take_results: Callable[[list[TokenRun], float], object]
    _fail: Callable[[Ticket, Exception], None]

    def recover(self, entries: list[TokenRun], error: Exception) -> None:
        """Decode each of `entries` alone after the library rejected their batch, so that only faulty ones fail.

        If the model's memory cannot be truncated, the sequence is preempted and recomputed, in quarantine (alone in
        its steps) until it is past the fault, at most `MAX_FAULTS` times. The same holds for a medium that was
        decoded in part.
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
            if entry.sequence.slot is not None:  # otherwise another choice of its request failed
                self._decode_alone(entry)

    def wipe(self, not_finite: list[Sequence]) -> None:
        """Recover from logits of `not_finite` that are not numbers. The cause is their own computation (an extreme LoRA
        scale) or a value that another sequence left in the cells, because 0 times NaN is NaN.

        All cells are zeroed. Sequences with finite logits resume from their states; others are recomputed. A
        sequence whose logits are not finite again without any cache is faulty, and so is, immediately, one computed
        by an adapter.
        """
        about = log_fields(*(sequence.request for sequence in not_finite))
        log.error(
            "the logits of %d sequences are not numbers, every cell is wiped; look at LoRA scales, and --check-tensors",
            len(not_finite),
            extra=about,
        )
        now = self._clock()
        most = MAX_NOT_FINITE if self._runner.adapters else MAX_FAULTS
        for sequence in list(self._scheduler.active()):
            slot = sequence.slot
            if slot is None:  # another choice of its request has failed
                continue
            if sequence not in not_finite and sequence.phase is Phase.DECODE:
                self._cells.preempt(sequence, now)
                continue
            tuned = bool(sequence.next_adapters)
            sequence.n_faults += tuned or sequence in not_finite
            if sequence.n_faults > (1 if tuned else most):
                self._fail(sequence.ticket, NotNumbers())
            else:
                sequence.recompute = True
                self._scheduler.preempt(sequence, now)
            self._cells.clear(slot)
        for slot in self._scheduler.slots:
            self._cells.evict(slot, now)
        for sequence in not_finite:
            self._cells.offloader.drop_cached(sequence)
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
        """Remove what a failed decode may have left. Return False if the sequence cannot continue from there."""
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
        sequence.quarantined_until = max(sequence.quarantined_until, entry.at + len(entry.tokens))
        if sequence.n_faults > MAX_FAULTS:
            self._fail(sequence.ticket, error)
        elif not can_forget:
            self._scheduler.preempt(sequence, self._clock())
        return False
