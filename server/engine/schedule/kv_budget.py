"""Which waiting request gets the remaining cells of a unified KV cache. Pure.

A request that does not fit may be bypassed by `MAX_BYPASSES` requests that fit. After that it is *due*: it is checked
before all others, and no request bypasses it. So it waits for the running requests and for those at most.

A request that was preempted for lack of cells waits until another request ends. Sizes are estimates, especially for
shared cells. If an estimate is too low, the request is preempted again.
"""

from math import inf

from server.engine.runner_api import RunnerInfo
from server.engine.schedule.queue import MAX_BYPASSES, REPLY_CELLS
from server.engine.sequence import Phase, Sequence, Slot


class KvBudget:
    """The KV cells of one instance."""

    def __init__(self, slots: list[Slot], info: RunnerInfo) -> None:
        self._slots = slots
        self._info = info
        self._preempted: list[Sequence] = []  # preempted since the last sequence ended
        self._lost = 0  # cells that are occupied although no sequence accounts for them, until a sequence ends
        self.changes = 0  # counts changes of slot holders
        self.due: list[Sequence] = []
        self.free = inf  # free cells; infinite with separate KV and while no slot is held
        self.empty = True  # no slot is held

    def measure(self) -> None:
        """Update the number of free cells. Call it before checking requests."""
        if self.due:
            self.due = [s for s in self.due if s.phase is Phase.WAITING and s.slot is None]
        active = [s for slot in self._slots if (s := slot.sequence) is not None]
        self.empty = not active
        if self._info.unified:
            self.free = self._info.n_cells - self._lost - sum(map(_cells, active)) if active else inf

    @property
    def full(self) -> bool:
        """Whether no request can fit, even with all of its prompt cached."""
        return self.free <= REPLY_CELLS  # at least the last prompt token is computed

    def fits(self, sequence: Sequence, n_kept: int) -> bool:
        """Whether enough cells are free for `sequence`, of which the first `n_kept` tokens are in cells already."""
        sequence.n_needed = (
            max(len(sequence.target), len(sequence.preempted.tokens) if sequence.preempted else 0)
            - n_kept
            + REPLY_CELLS
        )
        sequence.looked_at = self.changes
        return sequence.n_needed <= self.free

    def refuses(self, sequence: Sequence) -> bool:
        """Whether it is known without a prefix search that `sequence` does not fit."""
        if not self.empty and sequence in self._preempted:
            return True
        return sequence.looked_at == self.changes and sequence.n_needed > self.free

    def allows_bypass(self, before: list[Sequence]) -> bool:
        """Whether a request may bypass those in `before`, which do not fit: cells are left, and none of them was
        bypassed as often as allowed.
        """
        return not before or not (self.full or any(one.n_bypasses >= MAX_BYPASSES for one in before))

    def bypass(self, before: list[Sequence]) -> None:
        """Record that a request bypassed those in `before`."""
        if not self._info.unified:  # separate KV has no shared cells to wait for
            return
        for one in before:
            one.n_bypasses += 1
            if one.n_bypasses == MAX_BYPASSES:
                self.due.append(one)

    def placed(self, sequence: Sequence) -> None:
        """Record that `sequence` got a slot."""
        self.changes += 1
        sequence.n_bypasses = 0

    def ran_out(self, victim: Sequence, n_batch: int) -> None:
        """Record that a batch of `n_batch` tokens found no cells and no idle cache is left; `victim` will be
        preempted.
        """
        victim.n_needed = _cells(victim)
        self._preempted.append(victim)
        held = sum(s.n_computed - slot.n_shared for slot in self._slots if (s := slot.sequence) is not None)
        self._lost = max(self._lost, self._info.n_cells - held - n_batch)

    def left(self, *, ended: bool) -> None:
        """Record that a sequence gave up its slot. Without `ended` it was preempted and will return."""
        self.changes += 1
        if ended:
            self._preempted, self._lost = [], 0


def _cells(sequence: Sequence) -> int:
    """Return the cells that `sequence` holds or will need, without those it shares."""
    slot = sequence.held
    return max(len(sequence.target), len(slot.tokens)) - slot.n_shared + REPLY_CELLS
