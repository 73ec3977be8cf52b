"""What happens when memory for KV states runs short. No native calls; `Cells.free_cells` (kv_store.py) executes it.

| what is short | what happens | decided by |
|---|---|---|
| cells for a prompt (unified KV) | the request waits; others may bypass it | `KvBudget.fits`, `allows_bypass` |
| cells or a slot for a live prompt | a sequence of a batch is preempted | `Scheduler.background_victim` |
| cells for a state to load | the idle slot with the lowest keep value is evicted | `Cells._load_entry_evicting` |
| cells for a decode with draft tokens | the next steps have no drafts | `Speculation.pause` |
| cells for a decode, idle slots have some | the one with the lowest keep value is evicted | `KvBudget.victim` |
| cells for a decode, idle slots have none | the least urgent sequence is preempted | `KvBudget.victim` |
| cells for a decode of one sequence | it retries with half of the batch | `KvBudget.victim` |
| cells for a decode of one token | the reply ends; without output, `ContextExceeded` | `KvBudget.victim` |
| RAM for an evicted slot | states of lowest keep value per byte go to disk or are dropped | `CacheTier.make_room` |
| RAM for a preempted sequence | such states, too; if they are too few, it is recomputed | `CacheTier.reserve` |
| RAM for a checkpoint | such states, too, then idle slots' checkpoints | `Cells._make_room_for_checkpoint` |

A preempted sequence may resume after any sequence has ended. The most urgent priority is the smallest number.

`CacheTier` is in prefix_cache.py. A slot is offloaded to RAM only if that gains more time than it takes, and stalls no
other sequence (`Cells.offload`). Separate KV has cells for every slot, so only the RAM rows apply to it. Models are
unloaded by `server.pool.policy`.
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
        self._victims: list[Sequence] = []  # preempted since the last sequence ended
        self._n_lost = 0  # cells that count as free but that a decode did not find; 0 after a sequence has ended
        self._needed: dict[Sequence, int] = {}  # cells for each sequence that was checked since the last change
        self.max_batch = info.n_batch  # tokens of the next batch
        self.changes = 0  # number of changes of slot holders
        self.held: dict[Slot, int] = {}  # idle slots whose first tokens are in cells that sequences share, and how many
        self.free = inf  # free cells; infinite with separate KV and while all slots are idle

    def measure(self) -> None:
        """Update the number of free cells. Call it before checking requests."""
        active = [s for slot in self._slots if (s := slot.sequence) is not None]
        if not active:
            self._victims = []
        if self._info.unified:
            self.held = _held_of_idle([sequence.held for sequence in active])
            n_held = sum(max(n - slot.n_shared, 0) for slot, n in self.held.items())
            self.free = self._info.n_cells - self._n_lost - n_held - sum(map(_n_cells, active)) if active else inf

    def fits(self, sequence: Sequence, n_in_cells: int) -> bool:
        """Return whether enough cells are free for `sequence`, whose first `n_in_cells` tokens are in cells already."""
        n_offloaded = len(sequence.offloaded.tokens) if sequence.offloaded else 0
        n_needed = self._needed[sequence] = max(len(sequence.target), n_offloaded) - n_in_cells + REPLY_CELLS
        return n_needed <= self.free

    def surely_lacks_cells(self, sequence: Sequence) -> bool:
        """Return whether `sequence` is known not to fit, without a prefix search."""
        return sequence in self._victims or self._needed.get(sequence, 0) > self.free

    def may_fit_without(self, sequence: Sequence, others: list[Sequence]) -> bool:
        """Return whether `others` hold the cells that `sequence` is known to lack."""
        return self._needed.get(sequence, 0) - self.free <= sum(map(_n_cells, others))

    def allows_bypass(self, blocked: list[Sequence]) -> bool:
        """Return whether a request may bypass those that are `blocked`, because they do not fit: cells for more than a
        reply are left, and none of them was bypassed as often as allowed.
        """
        return not blocked or (self.free > REPLY_CELLS and all(one.n_bypasses < MAX_BYPASSES for one in blocked))

    def victim(self, n_tokens: int, *, can_split: bool) -> Slot | Sequence | None:
        """Return what gives up its cells after a batch of `n_tokens` found none.

        An idle slot to evict; otherwise the sequence to preempt: the least urgent, among equals the newest. An only
        sequence is returned to end if its batch cannot be split. None: it retries with half of the batch.
        """
        if cached := [slot for slot in self._slots if slot.idle and slot.tokens]:
            return first_to_evict(cached)
        active = [s for slot in self._slots if (s := slot.sequence) is not None]
        if len(active) == 1:
            if not can_split:
                return active[0]
            self.max_batch = n_tokens // 2
            return None
        victim = max(active, key=lambda s: (s.request.priority, s.arrival))
        self._victims.append(victim)
        n_held = sum(s.n_computed - s.held.n_shared for s in active)
        self._n_lost = max(self._n_lost, self._info.n_cells - n_held - n_tokens)
        return victim

    def changed(self) -> None:
        """Record that a slot has another holder."""
        self.changes += 1
        self._needed.clear()

    def decoded(self) -> None:
        """Record that a batch found cells: the next one may have the full size."""
        self.max_batch = self._info.n_batch

    def ended(self) -> None:
        """Record that a sequence ended and released its slot: preempted ones may resume."""
        self._victims, self._n_lost = [], 0


def _n_cells(sequence: Sequence) -> int:
    """Return the cells that `sequence` holds or will need, without those it shares."""
    slot = sequence.held
    return max(len(sequence.target), len(slot.tokens)) - slot.n_shared + REPLY_CELLS


def _held_of_idle(active: list[Slot]) -> dict[Slot, int]:
    """Return the idle slots that share cells with `active` ones, and the number of their first tokens in such cells.

    Their eviction does not free these cells.
    """
    held: dict[Slot, int] = {}
    for slot in active:
        n, source = slot.n_shared, slot.shares_with
        while n and source is not None and source.idle:
            held[source] = max(n, held.get(source, 0))
            n, source = min(n, source.n_shared), source.shares_with
    return held
