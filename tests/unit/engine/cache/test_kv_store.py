"""Moves of states between cells, RAM and disk, where they pay and delay no other sequence by more than a step; and
cells that several slots share.
"""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.cache.disk_cache import DiskCache
from server.engine.cache.kv_store import Cells, shift_sizes
from server.engine.cache.move_budget import MoveBudget
from server.engine.cache.prefix_cache import CacheEntry, common_prefix
from server.engine.params import PREFILL_ONLY_S, EngineParams
from server.engine.placement import Placement, runs_to_shift
from server.engine.scheduler import Scheduler, TokenRun
from server.engine.sequence import Phase, Sequence, Slot
from server.errors import InvalidRequest
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import alone, engine_over, request, run, sequence
from tests.unit.engine.cache.test_disk_cache import Files, on_disk, still

STEP_S = 0.25


class Slow(FakeRunner):
    """Saving and loading take ``seconds`` of a clock that nothing else moves."""

    def __init__(self) -> None:
        super().__init__(n_seq=3, n_ctx_seq=1024)
        self.seconds = 0.0
        self.now = 0.0
        self.copies: list[tuple[int, int]] = []

    def seq_copy(self, source: int, target: int) -> None:
        self.copies.append((source, target))
        super().seq_copy(source, target)

    def seq_save(self, seq: int) -> bytes:
        self.now += self.seconds
        return super().seq_save(seq)

    def seq_load(self, seq: int, state: bytes, n_tokens: int) -> bool:
        self.now += self.seconds
        return super().seq_load(seq, state, n_tokens)


class Setup:
    """Slots 0 and 1 hold idle caches; slot 2 generates when a test says so."""

    def __init__(self) -> None:
        self.runner = runner = Slow()
        self.scheduler = Scheduler(runner.info, EngineParams(target_itl_ms=STEP_S * 1e3, cache_ram=100))
        self.cells = Cells(runner, self.scheduler, lambda: runner.now)
        for slot in self.scheduler.slots[:2]:
            slot.tokens = [slot.id] * 200
            runner.cells[slot.id] = list(slot.tokens)
            runner.computed_by[slot.id] = [()] * 200

    @property
    def slots(self) -> list[Slot]:
        return self.scheduler.slots

    def generate(self, phase: Phase = Phase.DECODE) -> None:
        self.slots[2].sequence = sequence([1, 2], phase=phase, slot=self.slots[2])

    def keep(self, slot: int) -> bool:
        before = len(self.scheduler.ram)
        self.cells.offload(self.slots[slot], 200, self.runner.now)
        return len(self.scheduler.ram) > before

    def computes(self, seconds: float) -> None:
        """The 200 tokens of a slot take so long to compute."""
        self.scheduler.move_budget.computed = 200 / seconds

    def take_over(self) -> list[tuple[int, int]]:
        """Copies of streams, for a prompt that begins with what slot 0 holds and is put into slot 2."""
        prompt = [*self.slots[0].tokens, 7]
        self.runner.copies.clear()
        self.cells.prepare(Placement(sequence(prompt), self.slots[2], self.slots[0], 200), self.runner.now)
        assert self.runner.cells[2] == self.slots[2].tokens == prompt[:-1]
        return self.runner.copies


@pytest.fixture
def setup() -> Setup:
    return Setup()


@pytest.mark.parametrize("quicker", [False, True])
def test_a_beginning_is_taken_over_by_its_state_where_that_is_quicker_than_its_whole_stream(
    setup: Setup, quicker: bool
) -> None:
    setup.runner.seconds = 0.003
    setup.scheduler.move_budget.copy_s = 0.015 if quicker else 0.005
    assert setup.take_over() == [(0, 2)]  # nobody knows yet what a state takes
    setup.keep(1)
    setup.cells.clear(setup.slots[2])
    assert setup.take_over() == [(0, 2)]  # the first copy is still to be carried out, which a state would wait for
    setup.scheduler.move_budget.n_copies = 0
    setup.cells.clear(setup.slots[2])
    assert setup.take_over() == ([] if quicker else [(0, 2)])


def test_moves_of_one_step_hold_others_up_for_no_longer_than_a_step_together(setup: Setup) -> None:
    setup.runner.seconds = STEP_S * 0.6
    setup.generate()
    assert setup.keep(0)
    assert not setup.keep(1)
    setup.scheduler.move_budget.spent_s = 0.0
    assert setup.keep(1)


@pytest.mark.parametrize(("n_exact", "saves"), [(10, False), (50, False), (150, True)])
def test_tokens_that_were_shifted_are_not_lost_since_nobody_can_reuse_them(
    setup: Setup, n_exact: int, *, saves: bool
) -> None:
    setup.runner.seconds = 0.01
    setup.keep(1)
    setup.computes(0.08)
    setup.slots[0].n_exact = n_exact
    assert setup.keep(0) == saves
    assert setup.slots[0].keep_value(0.0) == n_exact


def test_tokens_that_are_not_exact_are_lost_before_exact_ones(setup: Setup) -> None:
    slot = setup.slots[0]
    slot.n_exact = 100
    before = setup.cells._stats.n_slot_evictions
    setup.cells.offload(slot, 110, 0.0)  # 90 stay, so 10 exact ones are lost
    assert setup.cells._stats.n_slot_evictions == before
    setup.cells.offload(slot, 120, 0.0)
    assert setup.cells._stats.n_slot_evictions == before + 1


@pytest.mark.parametrize(("n_elsewhere", "saves"), [(0, True), (50, True), (100, False), (190, False)])
@pytest.mark.parametrize("in_ram", [False, True])
def test_tokens_that_another_slot_or_ram_holds_are_not_lost(
    setup: Setup, n_elsewhere: int, *, saves: bool, in_ram: bool
) -> None:
    setup.runner.seconds = 0.04
    assert setup.keep(1)  # tells what a move takes
    setup.computes(0.2)
    shared = [*setup.slots[0].tokens[:n_elsewhere], *[5] * 10]
    if in_ram:
        setup.scheduler.ram.put(CacheEntry(shared), 0.0)
    else:
        setup.slots[2].tokens = shared
    assert setup.keep(0) == saves


@pytest.mark.parametrize(("compute_s", "saves"), [(0.31, True), (0.29, False)])
def test_a_state_is_saved_where_three_moves_are_quicker_than_computing(
    setup: Setup, compute_s: float, *, saves: bool
) -> None:
    """Its save, its load, and the save of another one that nobody uses."""
    setup.runner.seconds = 0.1
    assert setup.keep(1)
    setup.computes(compute_s)
    assert setup.keep(0) == saves


def test_a_single_slow_move_keeps_states_from_being_saved_for_a_while_only(setup: Setup) -> None:
    setup.runner.seconds = 0.3
    assert setup.keep(1)
    setup.computes(0.3)
    setup.runner.seconds = 0.01
    n_refused = 0
    while not setup.keep(0):
        n_refused += 1
        assert n_refused < 10_000
    assert n_refused > 1000
    assert setup.scheduler.move_budget.admits(1000, 200)


def test_a_move_is_tried_and_measured_though_every_state_seems_too_large(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with 64 slots of long prompts and a fast device, where no step is without a sequence."""
    monkeypatch.setattr("server.engine.cache.move_budget.ASSUMED_RATE", 100.0)
    setup.generate()
    setup.computes(1000.0)
    setup.runner.seconds = 0.01
    n_refused = 0
    while not setup.keep(0):
        n_refused += 1
        assert n_refused < 10_000
    assert n_refused > 10
    setup.scheduler.move_budget.spent_s = 0.0
    assert setup.keep(1)


def test_a_large_state_of_few_tokens_also_tells_what_a_move_takes() -> None:
    """A recurrent state has 100 MB however short the conversation is."""
    budget = MoveBudget(computed=5000.0)
    assert budget.pays(100 << 20, 60)  # nobody knows yet
    budget.observe_move(60, 100 << 20, 0.05)
    assert not budget.pays(100 << 20, 60)


def test_a_pinned_prefix_is_loaded_although_a_newer_and_larger_state_also_begins_with_it(setup: Setup) -> None:
    ram, budget, prefix = setup.scheduler.ram, setup.scheduler.move_budget, [5] * 100
    pinned = CacheEntry(prefix, state=bytes(500))
    assert ram.pin(pinned, 60.0, 0.0)
    ram.put(CacheEntry([*prefix, *[6] * 400], state=bytes(2500)), 0.0)
    budget.bandwidth, budget.computed = 1000.0, 100.0
    placement = setup.scheduler.placer.find(sequence([*prefix, 9]), 0.0)
    assert placement is not None
    assert placement.source is pinned


@pytest.mark.parametrize("is_reset", [False, True])
def test_nothing_from_before_a_reset_is_shifted(setup: Setup, *, is_reset: bool) -> None:
    setup.slots[0].tokens[:20] = [8] * 20
    setup.slots[0].n_exact = 0 if is_reset else 200
    placement = setup.scheduler.placer.find(sequence([*[0] * 100, 9], n_cache_reuse=16), 0.0)
    assert placement is not None
    assert placement.n_cached == (0 if is_reset else 100)


def test_what_busy_slots_hold_counts_no_longer_after_a_reset_and_nobody_waits_for_it(setup: Setup) -> None:
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


def test_states_that_may_have_spoiled_a_sequence_are_only_those_of_the_preempted_ones_that_have_them(
    setup: Setup,
) -> None:
    for slot in setup.slots[:2]:
        slot.sequence = sequence(list(slot.tokens), phase=Phase.DECODE, slot=slot)
        setup.cells.preempt(slot.sequence, 0.0)
    setup.cells.drop_cached(sequence([*[1] * 100, 9]))
    assert [(entry.tokens[0], entry.n_exact > 0) for entry in setup.scheduler.ram] == [(0, True), (1, False)]


def test_a_pin_during_a_reset_says_so(setup: Setup) -> None:
    setup.scheduler.ram.offloads = False
    with pytest.raises(InvalidRequest, match="the cache was reset meanwhile"):
        setup.cells.pin(setup.slots[0], 60.0, 0.0)


def test_the_first_move_stalls_nobody_for_longer_than_a_step_either(setup: Setup) -> None:
    budget = setup.scheduler.move_budget
    assert not budget.move_stalls(4 << 30)
    setup.generate()
    assert not budget.move_stalls(64 << 20)
    assert budget.move_stalls(4 << 30)


@pytest.mark.parametrize(("compute_s", "pays"), [(0.3, True), (0.05, False)])
def test_a_state_is_loaded_and_one_on_disk_waited_for_where_loading_is_quicker_than_computing(
    setup: Setup, compute_s: float, *, pays: bool
) -> None:
    setup.runner.seconds = 0.1
    assert setup.keep(0)
    setup.cells.clear(setup.slots[0])
    setup.computes(compute_s)
    placer, (entry,) = setup.scheduler.placer, setup.scheduler.ram
    placement = placer.find(sequence([0] * 200 + [9]), 0.0)
    assert placement is not None
    assert placement.n_reuse == (200 if pays else 0)
    placer.disk = disk = DiskCache(Files(), 1 << 30, still, lambda: None, can_cut=True)
    try:
        disk.ready.result(60)
        disk.index.put(CacheEntry([5] * 200, size=len(entry.state)), 0.0)
        assert (placer.find(sequence([5] * 200 + [9]), 0.0) is None) == pays
    finally:
        disk.close()


@pytest.mark.parametrize("phase", [Phase.DECODE, Phase.PREFILL])
@pytest.mark.parametrize(("steps", "moves"), [(0.9, True), (1.1, False)])
def test_no_load_or_save_holds_others_up_for_longer_than_a_step(
    setup: Setup, phase: Phase, steps: float, *, moves: bool
) -> None:
    budget = setup.scheduler.move_budget
    setup.computes(1000.0)  # however much it saves
    setup.runner.seconds = steps * (STEP_S if phase is Phase.DECODE else PREFILL_ONLY_S)
    assert setup.keep(1)
    (entry,) = setup.scheduler.ram
    budget.spent_s = 0.0
    assert not budget.move_stalls(len(entry.state))
    setup.generate(phase)
    assert budget.move_stalls(len(entry.state)) != moves
    assert setup.keep(0) == moves
    budget.spent_s, slot = 0.0, setup.slots[0]
    slot.sequence = victim = sequence(slot.tokens, phase=Phase.DECODE, slot=slot)
    setup.cells.preempt(victim, setup.runner.now)
    assert ([] if victim.offloaded is None else victim.offloaded.tokens) == ([0] * 200 if moves else [])
    assert not slot.tokens


def test_idle_slots_are_written_once_for_other_processes(setup: Setup) -> None:
    files = Files()
    files.shared = True
    disk = DiskCache(files, 1 << 30, still, lambda: None, can_cut=True)
    disk.ready.result(60)
    cells = setup.cells
    setup.scheduler.placer.disk = disk
    setup.runner.seconds = 2 * STEP_S
    setup.keep(0)  # which tells what it takes: longer than a step, less than a prompt's
    for slot in setup.slots[:2]:
        slot.last = sequence(slot.tokens)
    setup.generate()
    assert not cells.write_for_others()  # others are at work
    setup.slots[2].sequence = None
    assert cells.write_for_others()
    assert not cells.write_for_others()  # slot 0's went there with RAM's copy
    disk.close()
    assert sorted(saved.tokens[0] for saved in files.saved.values()) == [0, 1]


def test_no_checkpoint_follows_one_that_stalled_others_while_they_decode() -> None:
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


class Counting(FakeRunner):
    """Counts the states that it gives."""

    n_saved = 0

    def seq_save(self, seq: int) -> bytes:
        self.n_saved += 1
        return super().seq_save(seq)


class Unified:
    """Slot 0 holds 100 tokens, computed alone; slot 1 others."""

    def __init__(self, n_seq: int = 3) -> None:
        self.runner = Counting(n_seq=n_seq, n_ctx_seq=200, n_cells=600, unified=True)
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
        prompt = self.slots[source].tokens[:n]
        made = sequence(prompt, phase=Phase.DECODE, slot=self.slots[target])
        self.cells.prepare(Placement(made, self.slots[target], self.slots[source], n), 0.0)

    def shift(self, slot: int, keep: int, discard: int) -> None:
        made = sequence(list(self.slots[slot].tokens), phase=Phase.DECODE, slot=self.slots[slot])
        self.slots[slot].sequence = made
        self.cells.shift(made, keep, discard, 0.0)
        self.check()

    def check(self) -> None:
        """What slots say is what cells hold."""
        assert [slot.tokens for slot in self.slots] == [self.runner.cells[slot.id] for slot in self.slots]


@pytest.fixture
def unified_cells() -> Unified:
    return Unified()


@pytest.mark.parametrize(("n_shared", "n_saved"), [(0, 0), (40, 0), (41, 1)])
def test_runs_that_a_prompt_reuses_move_in_place(unified_cells: Unified, n_shared: int, n_saved: int) -> None:
    if n_shared:
        unified_cells.copy(0, 2, n_shared)
    slot = unified_cells.slots[0]
    prompt = [*range(10), *range(40, 100), 7]
    placement = Placement(sequence(prompt, phase=Phase.DECODE, slot=slot), slot, slot, 10, (range(40, 100),))
    unified_cells.cells.prepare(placement, 0.0)
    assert unified_cells.runner.n_saved == n_saved
    assert slot.tokens == prompt[:-1]
    unified_cells.check()


@pytest.mark.parametrize("seed", range(20))
def test_shared_cells_are_counted_once_whoever_leaves(seed: int) -> None:
    """Beside what is counted by the slots, the cells themselves: one object each."""
    draw, bench = random.Random(seed), Unified(n_seq=6)
    slots = bench.slots
    held: list[list[Any]] = [[object() for _ in range(100)], [object() for _ in range(100)], [], [], [], []]
    for _ in range(60):
        at, other = draw.sample(range(6), 2)
        n, what = draw.randint(0, 100), draw.choice(["copy", "cut", "clear", "decode"])
        if what == "copy" and held[other]:
            n = min(n + 1, len(held[other]))
            bench.copy(other, at, n)
            held[at] = held[other][:n]
        elif what == "cut" and n < len(held[at]):
            bench.cells.truncate(slots[at], n)
            del held[at][n:]
        elif what == "clear":
            bench.cells.clear(slots[at])
            held[at] = []
        elif what == "decode" and len(held[at]) < 150:
            bench.fill(at, [*slots[at].tokens, *range(at, at + 10)])
            held[at] += [object() for _ in range(10)]
        assert sum(len(slot.tokens) - slot.n_shared for slot in slots) == len(set().union(*held))
        for i, slot in enumerate(slots):
            shared = [common_prefix(held[i], theirs) for j, theirs in enumerate(held) if j != i]
            assert bench.cells.n_held_elsewhere(slot) == max(shared)


@pytest.mark.timeout(60)
async def test_a_shift_for_which_there_is_no_memory_has_its_request_computed_anew_though_nobody_else_is_there() -> None:
    class Full(Counting):
        """Has no memory for the first state."""

        def seq_save(self, seq: int) -> bytes:
            state = super().seq_save(seq)
            if self.n_saved == 1:
                raise MemoryError
            return state

    runner = Full(n_seq=2, n_ctx_seq=100, n_cells=400, unified=True)
    async with engine_over(runner, context_shift=True, cache_ram=0) as engine:
        await run(engine, request("a" * 80, id_slot=0, max_tokens=1))
        (reply,) = await run(engine, request("a" * 80 + "b", id_slot=1, max_tokens=60, n_keep=0))
    assert runner.n_saved > 0
    assert len(reply.text) == 60


def unified(n_cells: int = 2048, n_seq: int = 4) -> FakeRunner:
    return FakeRunner(n_seq=n_seq, n_ctx_seq=n_cells, n_cells=n_cells, unified=True)


async def test_a_kept_state_comes_back_when_idle_caches_fill_the_cells() -> None:
    async with engine_over(unified(), clock=still) as engine:
        for name, n in (("x", 500), ("a", 600), ("b", 600), ("c", 600), ("t", 20)):
            await run(engine, request(name * n, max_tokens=2))
        again = request("x" * 500 + "!")
        (reply,) = await run(engine, again)
        assert engine.stats.n_ram_hits == 1
    assert reply.started.n_cached == 501
    assert reply.text == alone(again)


@pytest.mark.parametrize(("n_more", "n_cached"), [(5, 21), (4, 17)])  # the last token of a prompt is always computed
async def test_a_short_prompt_that_was_sent_before_is_taken_from_ram(n_more: int, n_cached: int) -> None:
    prompt = "a" * 16 + "b" * n_more
    async with engine_over(FakeRunner(n_seq=1), clock=still) as engine:
        await run(engine, request(prompt, max_tokens=20))
        await run(engine, request("a" * 16 + "c" * 20, max_tokens=1))
        (reply,) = await run(engine, request(prompt, max_tokens=1))
    assert reply.started.n_cached == n_cached


async def test_evictions_from_slots_and_from_ram_are_counted() -> None:
    runner = FakeRunner(n_seq=1, n_ctx_seq=1024, n_state_bytes=400 << 10)
    async with engine_over(runner, cache_ram=1, clock=still) as engine:
        for name in "abcd":
            await run(engine, request(name * 100, max_tokens=1))
        await run(engine, request("d" * 100 + "!", max_tokens=1))  # continues in its slot
        stats = engine.stats
        assert (stats.n_slot_evictions, stats.n_ram_evictions) == (3, 1)


async def test_a_state_from_disk_takes_the_room_of_idle_caches() -> None:
    files: Files = await on_disk("x" * 500)
    async with engine_over(unified(), cache_disk=1, clock=still) as engine:
        await engine.use_disk(files)
        for name in "abc":
            await run(engine, request(name * 650, max_tokens=2))
        (reply,) = await run(engine, request("x" * 500 + "!"))
    assert reply.started.n_cached == 501


def running(n_prompt: int, n_computed: int, n_keep: int, n_discard: int) -> Sequence:
    return sequence([1] * n_prompt, slot=Slot(tokens=[1] * n_computed), n_keep=n_keep, n_discard=n_discard)


def test_half_of_what_follows_the_kept_beginning_is_dropped() -> None:
    assert shift_sizes(running(10, 99, 10, 0), 100, add_bos=False) == (10, 44)
    assert shift_sizes(running(10, 99, 10, 0), 100, add_bos=True) == (11, 44)
    assert shift_sizes(running(10, 99, -1, 7), 100, add_bos=False) == (10, 7)


@given(st.integers(1, 98), st.integers(-1, 200), st.integers(0, 200), st.booleans())
def test_a_shift_always_makes_room_and_leaves_something(n_prompt: int, keep: int, discard: int, bos: bool) -> None:
    kept, dropped = shift_sizes(running(n_prompt, 99, keep, discard), 100, add_bos=bos)
    assert dropped >= 1
    assert kept + dropped < 99


def in_python(cached: list[int], prompt: list[int], prefix: int, smallest: int) -> list[range]:
    """As llama-server's loop says it."""
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
def test_runs_are_those_that_the_reference_finds(cached: list[int], prompt: list[int], smallest: int) -> None:
    prefix = common_prefix(cached, prompt)
    assert runs_to_shift(cached, prompt, prefix, smallest) == in_python(cached, prompt, prefix, smallest)
