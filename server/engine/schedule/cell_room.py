"""Whom the cells that are left are given to, where all slots share them (unified KV). Pure.

Who finds too few is passed by those that fit. `MOST_PASSES` of them may take cells that it needs; then it is *due*:
looked at before everybody else, and passed only by those that find room beside it and beside all who came after it.
So it waits for those that ran, for `MOST_PASSES` more, and for nobody else.

Who was parked because the cells had run out waits until somebody leaves. What is taken is an estimate, cells that
several slots share above all: where it is too low, who comes straight back is parked straight again.
"""

from bisect import bisect_right
from itertools import accumulate
from math import inf

from server.engine.runner_api import RunnerInfo
from server.engine.schedule.queue import MOST_PASSES, REPLY_CELLS
from server.engine.sequence import Phase, Sequence, Slot


class Room:
    """The cells of one instance."""

    def __init__(self, slots: list[Slot], info: RunnerInfo) -> None:
        self._slots = slots
        self._info = info
        self._parked: list[Sequence] = []  # since somebody left
        self._lost = 0  # cells that were full though nobody is known to hold them; until somebody leaves
        self.changes = 0  # of who holds a slot
        self.due: list[Sequence] = []
        self.free = inf  # cells; any number where each slot has its own, and where nobody holds one
        self.empty = True  # nobody holds a slot
        self._held: tuple[list[tuple[float, int]], list[int]] | None = None  # cells of all who came up to each

    def measure(self) -> None:
        """What is free now; to be called before anybody is looked at."""
        self._held = None
        if self.due:
            self.due = [s for s in self.due if s.phase is Phase.WAITING and s.slot is None]
        active = [s for slot in self._slots if (s := slot.sequence) is not None]
        self.empty = not active
        if self._info.unified:
            self.free = self._info.n_cells - self._lost - sum(map(_cells, active)) if active else inf

    @property
    def full(self) -> bool:
        """Nobody fits, however much of his prompt is in the cells."""
        return self.free <= REPLY_CELLS  # a prompt's last token is computed

    def fits(self, sequence: Sequence, n_kept: int) -> bool:
        """Whether there are cells for `sequence` without the first `n_kept` of its tokens."""
        sequence.n_needed = (
            max(len(sequence.target), len(sequence.parked.tokens) if sequence.parked else 0) - n_kept + REPLY_CELLS
        )
        sequence.looked_at = self.changes
        return sequence.n_needed <= self.free

    def refuses(self, sequence: Sequence, before: list[Sequence]) -> bool:
        """Whether it is known without a look that there is no room for it, or that it may not go before those that find
        none."""
        if not self.empty and sequence in self._parked:
            return True
        known = sequence.looked_at == self.changes
        return known and (sequence.n_needed > self.free or self._hindered(sequence, before) is None)

    def passes(self, sequence: Sequence, before: list[Sequence]) -> bool:
        """Whether `sequence`, which fits, may go before those that do not; it is counted then."""
        hindered = self._hindered(sequence, before)
        if hindered is None:
            return False
        for one in hindered:
            one.n_passes += 1
            if one.n_passes == MOST_PASSES:
                self.due.append(one)
        return True

    def _hindered(self, sequence: Sequence, before: list[Sequence]) -> list[Sequence] | None:
        """Those of `before` whose cells `sequence` would take; None: one of them was passed often enough."""
        if not before or not self._info.unified:
            return []
        if self._held is None:
            active = sorted((s.came, _cells(s)) for slot in self._slots if (s := slot.sequence) is not None)
            self._held = [when for when, _ in active], [0, *accumulate(n for _, n in active)]
        came, sums = self._held
        n_cells, hindered = self._info.n_cells - self._lost, []
        for one in before:
            later = sums[-1] - sums[bisect_right(came, one.came)]
            if later + sequence.n_needed + one.n_needed <= n_cells:
                continue
            if one.n_passes >= MOST_PASSES:
                return None
            hindered.append(one)
        return hindered

    def placed(self, sequence: Sequence) -> None:
        """`sequence` holds a slot now."""
        self.changes += 1
        sequence.n_passes = 0

    def ran_out(self, victim: Sequence, n_batch: int) -> None:
        """No cells were left for a batch of `n_batch` tokens, and no idle slot held any: `victim` is to be parked."""
        victim.n_needed = _cells(victim)
        self._parked.append(victim)
        held = sum(s.n_computed - slot.n_shared for slot in self._slots if (s := slot.sequence) is not None)
        self._lost = max(self._lost, self._info.n_cells - held - n_batch)

    def left(self, *, ended: bool) -> None:
        """Somebody holds his slot no longer; without having `ended`, he will come back."""
        self.changes += 1
        if ended:
            self._parked, self._lost = [], 0


def _cells(sequence: Sequence) -> int:
    """Cells that `sequence` holds or will, beside those that it shares with others."""
    slot = sequence.held
    return max(len(sequence.target), len(slot.tokens)) - slot.n_shared + REPLY_CELLS
