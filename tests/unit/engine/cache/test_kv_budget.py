"""Scheduling while KV cells are short: what fits, bypasses, preemption and its order, and that no request starves.
Pure: `KvBudget` and `Scheduler` without a runner.
"""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.cache.kv_budget import KvBudget
from server.engine.cache.prefix_cache import CacheEntry
from server.engine.queue import MAX_BYPASSES, REPLY_CELLS
from server.engine.request import BACKGROUND_PRIORITY
from server.engine.runner_api import RunnerInfo
from server.engine.scheduler import Scheduler
from server.engine.sequence import Phase, Sequence, Slot
from tests.unit.engine.builders import sequence
from tests.unit.engine.schedule.test_scheduler import decoding, finish, place, placed, scheduler, waiting


def holding(
    slot: Slot, n_target: int, n_held: int, n_shared: int = 0, *, at: float = 0.0, priority: int = 0
) -> Sequence:
    """Put a sequence of `n_target` tokens into `slot`: `n_held` are in cells, of which `n_shared` are shared."""
    slot.tokens, slot.n_shared = [1] * n_held, n_shared
    slot.sequence = made = sequence([1] * n_target, at=at, phase=Phase.PREFILL, slot=slot, priority=priority)
    return made


def cells_budget() -> tuple[KvBudget, list[Slot]]:
    """Return a budget of 1000 cells for 3 slots; the sequence in slot 0 needs 300 besides 20 shared ones."""
    slots = [Slot(id=i) for i in range(3)]
    budget = KvBudget(slots, RunnerInfo(3, 1000, 1000, 512, 512, unified=True))
    holding(slots[0], 320, 100, n_shared=20)
    budget.measure()
    return budget, slots


def test_request_fits_exactly_into_the_free_cells() -> None:
    budget, _ = cells_budget()
    assert budget.free == 1000 - 300 - REPLY_CELLS
    n = 1000 - 300 - 2 * REPLY_CELLS
    assert budget.fits(exact := sequence([1] * n), 0)
    assert not budget.surely_lacks_cells(exact)
    assert not budget.fits(large := sequence([1] * (n + 1)), 0)
    assert budget.fits(sequence([1] * (n + 10)), 10)
    assert budget.surely_lacks_cells(large)  # known without a prefix search, until another sequence holds a slot
    budget.changed()
    assert not budget.surely_lacks_cells(large)


def test_cells_shared_with_an_idle_slot_are_not_free() -> None:
    """Evicting it would not free them. Each is counted once, also where several sequences share it."""
    budget, slots = cells_budget()
    base = budget.free
    slots[1].tokens = [1] * 200
    slots[0].shares_with = slots[1]
    budget.measure()
    assert budget.free == base - 20
    holding(slots[2], 90, 90, n_shared=90)
    slots[2].shares_with = slots[1]
    budget.measure()
    assert budget.free == base - 90 - REPLY_CELLS
    slots[2].shares_with = slots[0]  # a copy of a sequence, whose first 20 tokens are the idle slot's
    budget.measure()
    assert budget.free == base - 20 - REPLY_CELLS
    holding(slots[1], 200, 200)  # running, so it counts itself
    budget.measure()
    assert budget.free == base - 200 - 2 * REPLY_CELLS


def test_resumed_sequence_needs_the_cells_of_its_state() -> None:
    budget, _ = cells_budget()
    resumed = sequence([1] * 10)
    resumed.offloaded = CacheEntry([1] * 600)
    assert not budget.fits(resumed, 0)
    resumed.offloaded = CacheEntry([1] * 500)
    assert budget.fits(resumed, 0)


def test_decoded_cells_beyond_the_target_are_not_free() -> None:
    budget, slots = cells_budget()
    slots[0].tokens = [1] * 420
    budget.measure()
    assert budget.free == 1000 - 400 - REPLY_CELLS


def test_blocked_requests_are_bypassed_while_more_than_a_replys_cells_are_free() -> None:
    budget, _ = cells_budget()
    blocked = [sequence([1]), sequence([2])]
    assert budget.allows_bypass(blocked)
    blocked[1].n_bypasses = MAX_BYPASSES
    assert not budget.allows_bypass(blocked)
    blocked[1].n_bypasses, budget.free = MAX_BYPASSES - 1, REPLY_CELLS
    assert not budget.allows_bypass(blocked)
    assert budget.allows_bypass([])
    budget.free = REPLY_CELLS + 1
    assert budget.allows_bypass(blocked)


def test_lack_of_cells_evicts_an_idle_slot_then_halves_the_batch_then_ends_the_sequence() -> None:
    budget, slots = cells_budget()
    slots[1].tokens = [2] * 50  # slot 2 is also idle, but empty
    assert budget.victim(100, can_split=True) is slots[1]
    slots[1].tokens = []
    assert budget.victim(101, can_split=True) is None
    assert budget.max_batch == 50
    budget.decoded()
    assert budget.max_batch == 512
    assert budget.victim(1, can_split=False) is slots[0].sequence


def test_preempted_sequence_may_return_when_no_other_is_left() -> None:
    budget, slots = cells_budget()
    newest = holding(slots[1], 100, 100, at=5.0)
    assert budget.victim(8, can_split=True) is newest
    slots[0].sequence = slots[1].sequence = None
    budget.measure()
    assert not budget.surely_lacks_cells(newest)


def test_least_urgent_sequence_is_preempted_and_among_equals_the_newest() -> None:
    budget, slots = cells_budget()
    urgent = holding(slots[1], 100, 100, at=9.0, priority=-1)
    newest = holding(slots[2], 100, 100, at=5.0)
    assert budget.victim(8, can_split=True) is newest
    assert budget.surely_lacks_cells(newest)
    assert not budget.surely_lacks_cells(urgent)
    # slots account for 280 cells and the batch lacked 8: the other 712 count as lost until a sequence ends
    slots[2].sequence = None
    budget.measure()
    assert budget.free == 1000 - 712 - 300 - 100 - 2 * REPLY_CELLS
    budget.ended()
    budget.measure()
    assert budget.free == 1000 - 300 - 100 - 2 * REPLY_CELLS
    assert not budget.surely_lacks_cells(newest)


@pytest.mark.parametrize(("n_others", "n_more"), [(0, 1), (1100, 1000)], ids=["in place", "copied"])
def test_cells_of_an_idle_slot_are_not_free_for_the_prompt_that_continues_it(n_others: int, n_more: int) -> None:
    s = scheduler(3, unified=True, n_cells=2000 + n_more)
    prefilling = placed(s, [1] * 900)
    s.slots[2].tokens = [2] * 1000 + [4] * n_others
    waiting(s, [*[2] * 1000, *[3] * n_more])
    assert s.place(0.0) is None  # including replies, both need 2028 cells besides `n_more`
    finish(s, prefilling, 1.0)
    placement = place(s)
    assert (placement.source, placement.n_reuse) == (s.slots[2], 1000)


def test_a_prompt_needs_no_more_cells_for_a_prefix_that_a_sequence_shares_with_an_idle_slot() -> None:
    s = scheduler(3, unified=True, n_cells=2000)
    running = placed(s, [2] * 1010)
    idle = next(slot for slot in s.slots if slot.idle)
    idle.tokens = [2] * 1000 + [4] * 10
    running.held.tokens, running.held.n_shared, running.held.shares_with = [2] * 1010, 1000, idle
    waiting(s, [*[2] * 1000, *[4] * 10, *[3] * 800])
    placement = place(s)
    assert (placement.source, placement.n_reuse) == (idle, 1010)


def preempt(s: Scheduler, sequence: Sequence) -> None:
    slot = sequence.held
    s.requeue(sequence, 1.0)
    slot.tokens, slot.n_shared = [], 0


def test_preempted_sequence_is_not_placed_again_before_another_ends() -> None:
    s = scheduler(4, unified=True, n_cells=4000)  # by count it would fit, but a decode has found no cells
    old, new = (decoding(s, [n] * 800, at=float(n)) for n in (1, 2))
    assert s.kv_budget.victim(2, can_split=True) is new
    preempt(s, new)
    assert s.place(0.0) is None
    finish(s, old, 2.0)
    assert place(s).sequence is new


def test_requeued_sequences_are_placed_immediately_the_oldest_first() -> None:
    """The case of a rejected batch if the model's memory cannot be truncated."""
    s = scheduler(4)
    sequences = [placed(s, [n] * 40, at=float(n)) for n in range(4)]
    for n in (0, 2, 1, 3):
        preempt(s, sequences[n])
    assert [place(s).sequence for _ in sequences] == sequences


def test_quarantined_sequences_decode_alone_until_past_the_fault() -> None:
    s = scheduler(4)
    sequences = [placed(s, [n] * 40, at=float(n)) for n in range(4)]
    sequences[0].quarantined_until, sequences[1].quarantined_until = 40, 30
    batches = []
    for _ in range(4):
        entries = s.plan()
        batches.append([e.sequence for e in entries])
        for entry in entries:
            entry.sequence.output = [5]
        s.commit(entries, 0.01)
    assert [sequences[0]] in batches[:3]
    assert [sequences[1]] in batches[:3]
    assert set(sequences[2:]) <= set(batches[2])
    assert set(batches[3]) == set(sequences)


def test_prefill_in_quarantine_alternates_with_decoding_and_each_run_is_checked() -> None:
    s = scheduler(2, unified=True)
    live, quarantined = decoding(s, [1] * 9), placed(s, [2] * 500, priority=BACKGROUND_PRIORITY)
    quarantined.quarantined_until = 501
    turns = []
    while quarantined.phase is Phase.PREFILL:
        (run,) = s.plan()
        turns.append(run.sequence)
        assert run.n_outputs == 1
        s.commit([run], 0.01)
    assert len(turns) > 4
    assert all({*pair} == {live, quarantined} for pair in pairwise(turns))


def test_requests_that_fit_bypass_a_prompt_that_lacks_cells() -> None:
    s = scheduler(4, unified=True, n_cells=2048)
    running = decoding(s, [1] * 1300)
    large = waiting(s, [2] * 1200)
    small = [waiting(s, [3 + n] * 5) for n in range(3)]
    urgent = waiting(s, [9] * 5, priority=-5)
    assert [place(s).sequence for _ in range(3)] == [urgent, *small[:2]]
    finish(s, urgent, 1.0)
    finish(s, running, 1.0)
    assert place(s).sequence is large  # next to the two small ones that still run


@pytest.mark.parametrize("priority", [0, -5])
def test_prompt_that_lacks_cells_is_bypassed_a_bounded_number_of_times(priority: int) -> None:
    s = scheduler(4, unified=True, n_cells=2000)
    running = decoding(s, [1] * 1000)
    large, n_bypasses = waiting(s, [2] * 1900), 0
    while n_bypasses < 1000:
        small = waiting(s, [3] * 50, at=float(n_bypasses), priority=priority)
        placement = s.place(0.0)
        if placement is None:
            break
        assert placement.sequence is small
        s.occupy(placement, 0.0)
        finish(s, small, 0.0)
        n_bypasses += 1
    assert MAX_BYPASSES <= n_bypasses <= 9 * MAX_BYPASSES  # urgent ones count in one placement of 8
    finish(s, running, 1.0)
    assert place(s).sequence is large


N_CELLS = 1000
REQUEST = st.tuples(
    st.integers(1, N_CELLS - REPLY_CELLS), st.integers(0, 6), st.integers(-1, 1), st.sampled_from("abc")
)


"""Tokens, steps that it runs for, priority, client."""


@settings(max_examples=60, deadline=None)
@given(st.lists(REQUEST, min_size=1, max_size=60), st.integers(1, 5))
def test_endless_small_requests_starve_no_other(requests: list[tuple[int, int, int, str]], n_seq: int) -> None:
    s = scheduler(n_seq, unified=True, n_cells=N_CELLS)
    ends_at: dict[Sequence, int] = {}  # steps of the running sequences
    n_placed, limit = 0, 60 * (len(requests) + 10)
    open_ = {waiting(s, [i] * n, at=float(i), priority=p, client=c): t for i, (n, t, p, c) in enumerate(requests)}
    n_steps = dict(open_)
    for step in range(limit):
        if not open_:
            return
        while len(s.waiting) < n_seq + len(open_):
            small = waiting(s, [9] * 10, at=100.0 + step, priority=-1, client="d")
            n_steps[small] = 2
        while (placement := s.place(0.0)) is not None:
            sequence = placement.sequence
            placement.slot.tokens, placement.slot.n_shared = [], 0
            s.occupy(placement, float(step))
            placement.slot.tokens = list(sequence.target)
            ends_at[sequence] = step + n_steps[sequence]
            n_placed += 1
            open_.pop(sequence, None)
        for sequence in [one for one, end in ends_at.items() if end <= step]:
            del ends_at[sequence]
            slot = sequence.slot
            finish(s, sequence, float(step))
            assert slot is not None
            slot.tokens = []
        s.check_integrity()
    raise AssertionError(f"{len(open_)} requests wait after {n_placed} placements")


def test_background_request_that_was_bypassed_does_not_block_live_ones() -> None:
    s = scheduler(4, unified=True, n_cells=2000)
    decoding(s, [1] * 800, priority=BACKGROUND_PRIORITY)
    large = waiting(s, [2] * 1500, priority=BACKGROUND_PRIORITY)
    for n in range(MAX_BYPASSES):
        finish(s, decoding(s, [3 + n] * 50, priority=BACKGROUND_PRIORITY), 1.0)
    live = waiting(s, [99] * 50)
    assert place(s).sequence is live
    assert large in s.waiting


def test_live_request_that_lacks_cells_preempts_the_newest_background_sequence() -> None:
    s = scheduler(4, unified=True, n_cells=2000)
    _, newest = (decoding(s, [n] * 700, at=float(n), priority=BACKGROUND_PRIORITY) for n in (1, 2))
    live = waiting(s, [9] * 600)
    assert s.place(0.0) is None
    assert s.background_victim() is newest
    preempt(s, newest)
    assert place(s).sequence is live
    assert s.background_victim() is None


@pytest.mark.parametrize(("n_prompt", "fits"), [(800, True), (1500, False)])
def test_background_sequence_is_preempted_only_if_its_cells_are_enough(n_prompt: int, *, fits: bool) -> None:
    s = scheduler(4, unified=True, n_cells=2000)
    decoding(s, [1] * 1000)
    background = decoding(s, [2] * 300, priority=BACKGROUND_PRIORITY)
    waiting(s, [9] * n_prompt)
    assert s.place(0.0) is None
    assert s.background_victim() is (background if fits else None)
