"""What happens when KV cells run short: which waiting requests fit, which ones may bypass a request that does not, and
what is evicted or preempted when a batch finds no cells. Pure; `kv_store` carries it out.
"""

from math import inf

from server.engine.queue import MAX_BYPASSES, REPLY_CELLS
from server.engine.runner_api import RunnerInfo
from server.engine.sequence import Sequence, Slot, first_to_evict


class KvBudget:
    """The KV cells of one instance, and the requests that they are free for."""

    def __init__(self, slots: list[Slot], info: RunnerInfo) -> None:
        self._slots = slots
        self._info = info
        self._preempted: list[Sequence] = []  # preempted since the last sequence ended
        self._lost = 0  # cells that are occupied although no sequence accounts for them, until a sequence ends
        self._needed: dict[Sequence, int] = {}  # cells for each sequence that was checked since the last change
        self.changes = 0  # counts changes of slot holders
        self.free = inf  # free cells; infinite with separate KV and while no slot is held

    def measure(self) -> None:
        """Update the number of free cells. Call it before checking requests."""
        active = [s for slot in self._slots if (s := slot.sequence) is not None]
        if not active:
            self._preempted = []
        if self._info.unified:
            self.free = self._info.n_cells - self._lost - sum(map(_cells, active)) if active else inf

    def fits(self, sequence: Sequence, n_kept: int) -> bool:
        """Return whether enough cells are free for `sequence`, whose first `n_kept` tokens are in cells already."""
        n_preempted = len(sequence.preempted.tokens) if sequence.preempted else 0
        n_needed = self._needed[sequence] = max(len(sequence.target), n_preempted) - n_kept + REPLY_CELLS
        return n_needed <= self.free

    def refuses(self, sequence: Sequence) -> bool:
        """Return whether it is known without a prefix search that `sequence` does not fit."""
        return sequence in self._preempted or self._needed.get(sequence, 0) > self.free

    def allows_bypass(self, blocked: list[Sequence]) -> bool:
        """Return whether a request may bypass those that are `blocked`, because they do not fit: cells for more than a
        reply are left, and none of them was bypassed as often as allowed.
        """
        return not blocked or (self.free > REPLY_CELLS and all(one.n_bypasses < MAX_BYPASSES for one in blocked))

    def victim(self, n_tokens: int, *, can_split: bool) -> Slot | Sequence | None:
        """Return what to evict after a batch of `n_tokens` found no cells: an idle slot, or a sequence to preempt: the
        least urgent one, and among equals the newest.

        A sequence that is alone gets a smaller batch (None); if the batch cannot be split, it has to end.
        """
        if cached := [slot for slot in self._slots if slot.idle and slot.tokens]:
            return first_to_evict(cached)
        active = [s for slot in self._slots if (s := slot.sequence) is not None]
        if len(active) == 1:
            return None if can_split else active[0]
        victim = max(active, key=lambda s: (s.request.priority, s.arrival))
        self._preempted.append(victim)
        n_held = sum(s.n_computed - s.held.n_shared for s in active)
        self._lost = max(self._lost, self._info.n_cells - n_held - n_tokens)
        return victim

    def changed(self) -> None:
        """Record that a slot has another holder."""
        self.changes += 1
        self._needed.clear()

    def ended(self) -> None:
        """Record that a sequence ended and gave up its slot: preempted ones may return."""
        self._preempted, self._lost = [], 0


def _cells(sequence: Sequence) -> int:
    """Return the cells that `sequence` holds or will need, without those it shares."""
    slot = sequence.held
    return max(len(sequence.target), len(slot.tokens)) - slot.n_shared + REPLY_CELLS
