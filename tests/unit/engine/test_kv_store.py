"""`Cells`: states are moved between cells, RAM and disk only if that is faster than computing and does not stall other
sequences; and cells that several slots share. Uses fake runners and clocks.
"""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.cache.disk_cache import DiskCache
from server.engine.cache.move_budget import MoveBudget
from server.engine.cache.prefix_cache import CacheEntry, common_prefix
from server.engine.kv_store import Cells, shift_sizes
from server.engine.params import PREFILL_ONLY_S, EngineParams
from server.engine.placement import Placement, runs_to_shift
from server.engine.scheduler import Scheduler, TokenRun
from server.engine.sequence import Phase, Sequence, Slot
from server.errors import InvalidRequest
from tests.support.fakes import FakeRunner
from tests.unit.clock import Clock
from tests.unit.engine.builders import engine_over, expected_text, request, run, sequence
from tests.unit.engine.cache.fake_files import FakeFiles

STEP_S = 0.25


class TimedRunner(FakeRunner):
    """Saving and loading a state each advance the clock ``now`` by ``move_s``."""

    def __init__(self) -> None:
        super().__init__(n_seq=3, n_ctx_seq=1024)
        self.move_s = 0.0
        self.now = 0.0
        self.copies: list[tuple[int, int]] = []

    def seq_copy(self, source: int, target: int) -> None:
        self.copies.append((source, target))
        super().seq_copy(source, target)

    def seq_save(self, seq: int) -> bytes:
        self.now += self.move_s
        return super().seq_save(seq)

    def seq_load(self, seq: int, state: bytes, n_tokens: int) -> bool:
        self.now += self.move_s
        return super().seq_load(seq, state, n_tokens)


class Setup:
    """Three slots with separate KV: 0 and 1 are idle with 200 cached tokens each, 2 is empty until `run_sequence`."""

    def __init__(self) -> None:
        self.runner = runner = TimedRunner()
        self.scheduler = Scheduler(runner.info, EngineParams(target_itl_ms=STEP_S * 1e3, cache_ram=100))
        self.cells = Cells(runner, self.scheduler, lambda: runner.now)
        for slot in self.scheduler.slots[:2]:
            slot.tokens = [slot.id] * 200
            runner.cells[slot.id] = list(slot.tokens)
            runner.computed_by[slot.id] = [()] * 200

    @property
    def slots(self) -> list[Slot]:
        return self.scheduler.slots

    def run_sequence(self, phase: Phase = Phase.DECODE) -> None:
        """Put a running sequence into slot 2."""
        self.slots[2].sequence = sequence([1, 2], phase=phase, slot=self.slots[2])

    def offload(self, slot: int) -> bool:
        """Offload a slot; return whether RAM has got a state."""
        before = len(self.scheduler.ram)
        self.cells.offload(self.slots[slot], 200, self.runner.now)
        return len(self.scheduler.ram) > before

    def set_compute_s(self, seconds: float) -> None:
        """Set the predicted prefill time of a slot's 200 tokens."""
        self.scheduler.move_budget.prefill_rate = 200 / seconds

    def measure(self, move_s: float, compute_s: float) -> None:
        """Measure a move by offloading slot 1, and set the predicted prefill time of a slot's 200 tokens."""
        self.runner.move_s = move_s
        assert self.offload(1)
        self.set_compute_s(compute_s)

    def n_refusals(self) -> int:
        """Offload slot 0 until RAM gets its state; return how often it did not."""
        return next(n for n in range(10_000) if self.offload(0))

    def place_on_copy(self) -> list[tuple[int, int]]:
        """Put a prompt that continues slot 0 into slot 2; return the stream copies that this made."""
        prompt = [*self.slots[0].tokens, 7]
        self.runner.copies.clear()
        self.cells.prepare(Placement(sequence(prompt), self.slots[2], self.slots[0], 200), self.runner.now)
        assert self.runner.cells[2] == self.slots[2].tokens == prompt[:-1]
        return self.runner.copies


@pytest.fixture
def setup() -> Setup:
    return Setup()


@pytest.mark.parametrize("moves_are_faster", [False, True])
def test_prefix_is_moved_as_a_state_if_that_beats_copying_its_stream(setup: Setup, moves_are_faster: bool) -> None:
    setup.runner.move_s = 0.003
    setup.scheduler.move_budget.copy_s = 0.015 if moves_are_faster else 0.005
    assert setup.place_on_copy() == [(0, 2)]  # no move has been measured yet
    setup.offload(1)
    setup.cells.clear(setup.slots[2])
    assert setup.place_on_copy() == [(0, 2)]  # a state would have to wait for the first copy, which is pending
    setup.scheduler.move_budget.n_copies = 0
    setup.cells.clear(setup.slots[2])
    assert setup.place_on_copy() == ([] if moves_are_faster else [(0, 2)])


def test_all_moves_of_a_step_together_stall_others_for_at_most_a_step(setup: Setup) -> None:
    setup.runner.move_s = STEP_S * 0.6
    setup.run_sequence()
    assert setup.offload(0)
    assert not setup.offload(1)
    setup.scheduler.move_budget.spent_s = 0.0
    assert setup.offload(1)


@pytest.mark.parametrize(("n_exact", "saves"), [(10, False), (50, False), (150, True)])
def test_only_exact_tokens_count_as_lost(setup: Setup, n_exact: int, *, saves: bool) -> None:
    setup.measure(move_s=0.01, compute_s=0.08)
    setup.slots[0].n_exact = n_exact
    assert setup.offload(0) == saves
    assert setup.slots[0].keep_value(0.0) == n_exact


def test_eviction_is_counted_if_enough_exact_tokens_are_lost(setup: Setup) -> None:
    slot = setup.slots[0]
    slot.n_exact = 100
    before = setup.cells._stats.n_slot_evictions
    setup.cells.offload(slot, 110, 0.0)  # 10 exact tokens are lost, too few to count
    assert setup.cells._stats.n_slot_evictions == before
    setup.cells.offload(slot, 120, 0.0)
    assert setup.cells._stats.n_slot_evictions == before + 1


@pytest.mark.parametrize(("n_elsewhere", "saves"), [(0, True), (50, True), (100, False), (190, False)])
@pytest.mark.parametrize("in_ram", [False, True])
def test_tokens_held_elsewhere_are_not_lost(setup: Setup, n_elsewhere: int, *, saves: bool, in_ram: bool) -> None:
    setup.measure(move_s=0.04, compute_s=0.2)
    shared = [*setup.slots[0].tokens[:n_elsewhere], *[5] * 10]
    if in_ram:
        setup.scheduler.ram.put(CacheEntry(shared), 0.0)
    else:
        setup.slots[2].tokens = shared
    assert setup.offload(0) == saves


@pytest.mark.parametrize(("compute_s", "saves"), [(0.31, True), (0.29, False)])
def test_state_is_saved_if_three_moves_beat_computing(setup: Setup, compute_s: float, *, saves: bool) -> None:
    """Three moves for each use: a save, a load, and the save of a state that is never used (`MOVES_PER_USE`)."""
    setup.measure(0.1, compute_s)
    assert setup.offload(0) == saves


def test_single_slow_move_prevents_saves_only_for_a_while(setup: Setup) -> None:
    setup.measure(move_s=0.3, compute_s=0.3)
    setup.runner.move_s = 0.01
    assert setup.n_refusals() > 1000
    assert setup.scheduler.move_budget.admits(1000, 200)


def test_move_is_tried_eventually_even_if_states_seem_too_large(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example with 64 slots of long prompts on a fast device, where sequences decode in every step."""
    monkeypatch.setattr("server.engine.cache.move_budget.ASSUMED_RATE", 100.0)
    setup.run_sequence()
    setup.set_compute_s(1000.0)
    setup.runner.move_s = 0.01
    assert setup.n_refusals() > 10
    setup.scheduler.move_budget.spent_s = 0.0
    assert setup.offload(1)


def test_large_state_of_few_tokens_also_measures_the_bandwidth() -> None:
    """A recurrent state has 100 MB however short the conversation is."""
    budget = MoveBudget(prefill_rate=5000.0)
    assert budget.pays(100 << 20, 60)  # not measured yet
    budget.observe_move(60, 100 << 20, 0.05)
    assert not budget.pays(100 << 20, 60)


def test_pinned_prefix_is_loaded_instead_of_a_newer_larger_state_that_starts_with_it(setup: Setup) -> None:
    ram, budget, prefix = setup.scheduler.ram, setup.scheduler.move_budget, [5] * 100
    pinned = CacheEntry(prefix, state=bytes(500))
    assert ram.pin(pinned, 60.0, 0.0)
    ram.put(CacheEntry([*prefix, *[6] * 400], state=bytes(2500)), 0.0)
    budget.bandwidth, budget.prefill_rate = 1000.0, 100.0
    placement = setup.scheduler.placer.find(sequence([*prefix, 9]), 0.0)
    assert placement is not None
    assert placement.source is pinned


@pytest.mark.parametrize("is_reset", [False, True])
def test_tokens_from_before_a_reset_are_not_shifted(setup: Setup, *, is_reset: bool) -> None:
    setup.slots[0].tokens[:20] = [8] * 20
    setup.slots[0].n_exact = 0 if is_reset else 200
    placement = setup.scheduler.placer.find(sequence([*[0] * 100, 9], n_cache_reuse=16), 0.0)
    assert placement is not None
    assert placement.n_cached == (0 if is_reset else 100)


def test_reset_drops_checkpoints_of_busy_slots_and_ends_waits_for_their_prefixes(setup: Setup) -> None:
    scheduler, busy = setup.scheduler, setup.slots[2]
    busy.sequence = sequence([7] * 200, phase=Phase.PREFILL, slot=busy)
    busy.tokens, busy.checkpoints = [7] * 100, {90: bytes(500)}
    scheduler.enqueue(twin := sequence([7] * 200))
    assert scheduler.place(0.0) is None
    assert scheduler.ram.n_bytes == 500
    assert setup.cells.drop_all() == 500
    assert scheduler.ram.n_bytes == 0
    placement = scheduler.place(0.0)
    assert placement is not None
    assert (placement.sequence, placement.source) == (twin, None)


def test_after_a_fault_only_their_own_sequences_resume_from_states_with_the_same_prefix(setup: Setup) -> None:
    for slot in setup.slots[:2]:
        slot.sequence = sequence(list(slot.tokens), phase=Phase.DECODE, slot=slot)
        setup.cells.preempt(slot.sequence, 0.0)
    setup.cells.drop_cached(sequence([*[1] * 100, 9]))
    assert [(entry.tokens[0], entry.n_exact > 0) for entry in setup.scheduler.ram] == [(0, True), (1, False)]


def test_pin_during_a_reset_is_refused_with_the_reason(setup: Setup) -> None:
    setup.scheduler.ram.offloads = False
    with pytest.raises(InvalidRequest, match="the cache was reset meanwhile"):
        setup.cells.pin(setup.slots[0], 60.0, 0.0)


def test_first_unmeasured_move_is_also_limited_to_a_step(setup: Setup) -> None:
    budget = setup.scheduler.move_budget
    assert not budget.move_stalls(4 << 30)
    setup.run_sequence()
    assert not budget.move_stalls(64 << 20)
    assert budget.move_stalls(4 << 30)


@pytest.mark.parametrize(("compute_s", "pays"), [(0.3, True), (0.05, False)])
def test_state_is_loaded_or_awaited_if_that_beats_computing(setup: Setup, compute_s: float, *, pays: bool) -> None:
    setup.runner.move_s = 0.1
    assert setup.offload(0)
    setup.cells.clear(setup.slots[0])
    setup.set_compute_s(compute_s)
    placer, (entry,) = setup.scheduler.placer, setup.scheduler.ram
    placement = placer.find(sequence([0] * 200 + [9]), 0.0)
    assert placement is not None
    assert placement.n_reuse == (200 if pays else 0)
    placer.disk = disk = DiskCache(FakeFiles(), 1 << 30, Clock(), lambda: None, can_cut=True)
    try:
        disk.ready.result(60)
        disk.index.put(CacheEntry([5] * 200, size=len(entry.state)), 0.0)
        assert (placer.find(sequence([5] * 200 + [9]), 0.0) is None) == pays
    finally:
        disk.close()


@pytest.mark.parametrize("phase", [Phase.DECODE, Phase.PREFILL])
@pytest.mark.parametrize(("steps", "moves"), [(0.9, True), (1.1, False)])
def test_moves_longer_than_a_step_are_not_made(setup: Setup, phase: Phase, steps: float, *, moves: bool) -> None:
    budget = setup.scheduler.move_budget
    setup.set_compute_s(1000.0)  # every move would pay
    setup.runner.move_s = steps * (STEP_S if phase is Phase.DECODE else PREFILL_ONLY_S)
    assert setup.offload(1)
    (entry,) = setup.scheduler.ram
    budget.spent_s = 0.0
    assert not budget.move_stalls(len(entry.state))
    setup.run_sequence(phase)
    assert budget.move_stalls(len(entry.state)) != moves
    assert setup.offload(0) == moves
    budget.spent_s, slot = 0.0, setup.slots[0]
    slot.sequence = victim = sequence(slot.tokens, phase=Phase.DECODE, slot=slot)
    setup.cells.preempt(victim, setup.runner.now)
    assert ([] if victim.offloaded is None else victim.offloaded.tokens) == ([0] * 200 if moves else [])
    assert not slot.tokens


def test_idle_slots_are_written_once_to_a_shared_disk(setup: Setup) -> None:
    files = FakeFiles()
    files.shared = True
    disk = DiskCache(files, 1 << 30, Clock(), lambda: None, can_cut=True)
    disk.ready.result(60)
    cells = setup.cells
    setup.scheduler.placer.disk = disk
    setup.runner.move_s = 2 * STEP_S
    setup.offload(0)  # measures a move: longer than a decode step, shorter than a prefill-only step
    for slot in setup.slots[:2]:
        slot.last = sequence(slot.tokens)
    setup.run_sequence()
    assert not cells.write_for_others()  # a sequence runs
    setup.slots[2].sequence = None
    assert cells.write_for_others()
    assert not cells.write_for_others()  # slot 0 was written when it was offloaded to RAM
    disk.close()
    assert sorted(saved.tokens[0] for saved in files.saved.values()) == [0, 1]


def test_no_more_checkpoints_are_made_while_others_decode_if_one_has_stalled_them() -> None:
    class SlowCheckpoints(FakeRunner):
        now = 0.0

        def seq_checkpoint(self, seq: int) -> bytes:
            self.now += 1.0
            return super().seq_checkpoint(seq)

    runner = SlowCheckpoints(n_seq=2, n_ctx_seq=1024, partial_removal=False, n_checkpoint_bytes=40 << 20)
    scheduler = Scheduler(runner.info, EngineParams(target_itl_ms=300.0, cache_ram=0))
    cells = Cells(runner, scheduler, lambda: runner.now)
    slot, other = scheduler.slots
    slot.sequence = prompt = sequence([1] * 600, phase=Phase.PREFILL, slot=slot)
    other.sequence = sequence([1], phase=Phase.DECODE, slot=other)
    prompt.checkpoint_positions = tuple(range(100, 600, 100))
    for n in prompt.checkpoint_positions:
        scheduler.move_budget.spent_s = 0.0
        slot.tokens, runner.cells[0] = [1] * n, [1] * n
        cells.decoded([TokenRun(0, n - 100, [1] * 100, at=n - 100, sequence=prompt)])
    assert (list(slot.checkpoints), runner.now) == ([100], 1.0)


class CountingRunner(FakeRunner):
    """Counts the states that it saves."""

    n_saved = 0

    def seq_save(self, seq: int) -> bytes:
        self.n_saved += 1
        return super().seq_save(seq)


class UnifiedSetup:
    """Slots with unified KV; slots 0 and 1 hold 100 tokens each, in cells of their own."""

    def __init__(self, n_seq: int = 3) -> None:
        self.runner = CountingRunner(n_seq=n_seq, n_ctx_seq=200, n_cells=600, unified=True)
        self.scheduler = Scheduler(self.runner.info, EngineParams(cache_ram=0))
        self.cells = Cells(self.runner, self.scheduler, lambda: 0.0)
        self.fill(0, list(range(100)))
        self.fill(1, list(range(100, 200)))

    def fill(self, slot: int, tokens: list[int]) -> None:
        self.runner.cells[slot], self.runner.computed_by[slot] = list(tokens), [()] * len(tokens)
        self.slots[slot].tokens = list(tokens)

    @property
    def slots(self) -> list[Slot]:
        return self.scheduler.slots

    def copy(self, source: int, target: int, n: int) -> None:
        """Place a sequence in slot `target` on the first `n` tokens of slot `source`, whose cells they then share."""
        prompt = self.slots[source].tokens[:n]
        made = sequence(prompt, phase=Phase.DECODE, slot=self.slots[target])
        self.cells.prepare(Placement(made, self.slots[target], self.slots[source], n), 0.0)


@pytest.mark.parametrize(("n_shared", "n_saved"), [(0, 0), (40, 0), (41, 1)])
def test_reused_runs_are_shifted_in_place_unless_another_slot_shares_them(n_shared: int, n_saved: int) -> None:
    setup = UnifiedSetup()
    if n_shared:
        setup.copy(0, 2, n_shared)
    slot = setup.slots[0]
    prompt = [*range(10), *range(40, 100), 7]
    placement = Placement(sequence(prompt, phase=Phase.DECODE, slot=slot), slot, slot, 10, (range(40, 100),))
    setup.cells.prepare(placement, 0.0)
    assert setup.runner.n_saved == n_saved
    assert slot.tokens == prompt[:-1]
    assert [slot.tokens for slot in setup.slots] == [setup.runner.cells[slot.id] for slot in setup.slots]


@pytest.mark.parametrize("seed", range(20))
def test_shared_cells_count_once_after_random_copies_and_truncations(seed: int) -> None:
    """``cells`` models what each slot holds: one object for each cell."""
    draw, setup = random.Random(seed), UnifiedSetup(n_seq=6)
    slots = setup.slots
    cells: list[list[Any]] = [[object() for _ in range(100)], [object() for _ in range(100)], [], [], [], []]
    for _ in range(60):
        at, other = draw.sample(range(6), 2)
        n, operation = draw.randint(0, 100), draw.choice(["copy", "truncate", "clear", "decode"])
        if operation == "copy" and cells[other]:
            n = min(n + 1, len(cells[other]))
            setup.copy(other, at, n)
            cells[at] = cells[other][:n]
        elif operation == "truncate" and n < len(cells[at]):
            setup.cells.truncate(slots[at], n)
            del cells[at][n:]
        elif operation == "clear":
            setup.cells.clear(slots[at])
            cells[at] = []
        elif operation == "decode" and len(cells[at]) < 150:
            setup.fill(at, [*slots[at].tokens, *range(at, at + 10)])
            cells[at] += [object() for _ in range(10)]
        assert sum(len(slot.tokens) - slot.n_shared for slot in slots) == len(set().union(*cells))
        for i, slot in enumerate(slots):
            shared = [common_prefix(cells[i], theirs) for j, theirs in enumerate(cells) if j != i]
            assert setup.cells.n_held_elsewhere(slot) == max(shared)


@pytest.mark.timeout(60)
async def test_only_request_is_recomputed_if_there_is_no_memory_for_its_context_shift() -> None:
    class FailingRunner(CountingRunner):
        """Has no memory for the first state."""

        def seq_save(self, seq: int) -> bytes:
            state = super().seq_save(seq)
            if self.n_saved == 1:
                raise MemoryError
            return state

    runner = FailingRunner(n_seq=2, n_ctx_seq=100, n_cells=400, unified=True)
    async with engine_over(runner, context_shift=True, cache_ram=0) as engine:
        await run(engine, request("a" * 80, id_slot=0, max_tokens=1))
        (reply,) = await run(engine, request("a" * 80 + "b", id_slot=1, max_tokens=60, n_keep=0))
    assert runner.n_saved > 0
    assert len(reply.text) == 60


async def test_state_is_loaded_from_ram_although_idle_caches_fill_the_cells() -> None:
    runner = FakeRunner(n_seq=4, n_ctx_seq=2048, n_cells=2048, unified=True)
    async with engine_over(runner, clock=Clock()) as engine:
        for name, n in (("x", 500), ("a", 600), ("b", 600), ("c", 600), ("t", 20)):
            await run(engine, request(name * n, max_tokens=2))
        again = request("x" * 500 + "!")
        (reply,) = await run(engine, again)
        assert engine.stats.n_ram_hits == 1
    assert reply.started.n_cached == 501
    assert reply.text == expected_text(again)


@pytest.mark.parametrize(("n_more", "n_cached"), [(5, 21), (4, 17)])  # the last token of a prompt is always computed
async def test_repeated_short_prompt_is_loaded_from_ram(n_more: int, n_cached: int) -> None:
    prompt = "a" * 16 + "b" * n_more
    async with engine_over(FakeRunner(n_seq=1), clock=Clock()) as engine:
        await run(engine, request(prompt, max_tokens=20))
        await run(engine, request("a" * 16 + "c" * 20, max_tokens=1))
        (reply,) = await run(engine, request(prompt, max_tokens=1))
    assert reply.started.n_cached == n_cached


async def test_evictions_from_slots_and_from_ram_are_counted() -> None:
    runner = FakeRunner(n_seq=1, n_ctx_seq=1024, n_state_bytes=400 << 10)
    async with engine_over(runner, cache_ram=1, clock=Clock()) as engine:
        for name in "abcd":
            await run(engine, request(name * 100, max_tokens=1))
        await run(engine, request("d" * 100 + "!", max_tokens=1))  # continues in its slot
        stats = engine.stats
        assert (stats.n_slot_evictions, stats.n_ram_evictions) == (3, 1)


def running(n_prompt: int, n_computed: int, n_keep: int, n_discard: int) -> Sequence:
    return sequence([1] * n_prompt, slot=Slot(tokens=[1] * n_computed), n_keep=n_keep, n_discard=n_discard)


def test_context_shift_keeps_n_keep_tokens_and_drops_half_of_the_rest() -> None:
    assert shift_sizes(running(10, 99, 10, 0), 100, add_bos=False) == (10, 44)
    assert shift_sizes(running(10, 99, 10, 0), 100, add_bos=True) == (11, 44)
    assert shift_sizes(running(10, 99, -1, 7), 100, add_bos=False) == (10, 7)


@given(st.integers(1, 98), st.integers(-1, 200), st.integers(0, 200), st.booleans())
def test_context_shift_always_drops_some_tokens_but_not_all(n_prompt: int, keep: int, discard: int, bos: bool) -> None:
    kept, dropped = shift_sizes(running(n_prompt, 99, keep, discard), 100, add_bos=bos)
    assert dropped >= 1
    assert kept + dropped < 99


def runs_by_llama_server(cached: list[int], prompt: list[int], prefix: int, smallest: int) -> list[range]:
    """Return the runs to shift, found by the loop of llama-server (server-context.cpp, update_slots)."""
    found: list[range] = []
    head = at = prefix
    while head + smallest <= len(cached) and at + smallest <= len(prompt):
        if cached[head : head + smallest] == prompt[at : at + smallest]:
            n = common_prefix(cached[head:], prompt[at:])
            found.append(range(head, head + n))
            head, at = head + n, at + n
        else:
            head += 1
    return found


@given(
    st.lists(st.sampled_from([0, 1, 256, 65536, 1 << 20]), max_size=60),
    st.lists(st.sampled_from([0, 1, 256, 65536, 1 << 20]), max_size=60),
    st.integers(1, 4),
)
def test_runs_to_shift_are_those_of_llama_server(cached: list[int], prompt: list[int], smallest: int) -> None:
    prefix = common_prefix(cached, prompt)
    assert runs_to_shift(cached, prompt, prefix, smallest) == runs_by_llama_server(cached, prompt, prefix, smallest)
