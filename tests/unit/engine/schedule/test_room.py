"""With unified cells, what comes back from RAM, disk or a parking takes the room of idle caches, and no more of it."""

from dataclasses import replace

import pytest

from server.engine.kv_store import Cells
from server.engine.lora import NO_ADAPTERS
from server.engine.params import EngineParams
from server.engine.placement import Placement
from server.engine.prefix_cache import SlotState, in_ram
from server.engine.request import Request
from server.engine.scheduler import Scheduler
from server.engine.sequence import Phase, Sequence, Slot, Ticket
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import alone, engine_over, request, run, ticking
from tests.unit.engine.kv.test_disk import Files, on_disk, still


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


async def test_caches_that_made_room_come_back_too() -> None:
    """Conversations take turns in cells that hold two of them."""
    async with engine_over(unified(1200), clock=still) as engine:
        for turn in range(3):
            for name in "abcd":
                wanted = request(name * (400 + 20 * turn), max_tokens=2)
                (reply,) = await run(engine, wanted)
                assert reply.text == alone(wanted)
                assert (reply.started.n_cached >= 400) == (turn > 0)


async def test_a_state_from_disk_takes_the_room_of_idle_caches() -> None:
    files: Files = await on_disk("x" * 500)
    async with engine_over(unified(), cache_disk=1, clock=still) as engine:
        await engine.use_disk(files)
        for name in "abc":
            await run(engine, request(name * 650, max_tokens=2))
        (reply,) = await run(engine, request("x" * 500 + "!"))
    assert reply.started.n_cached == 501


class Setup:
    """A scheduler over unified cells, whose slots a test fills."""

    def __init__(self, n_cells: int = 1000, n_seq: int = 4) -> None:
        self.runner = unified(n_cells, n_seq)
        self.scheduler = Scheduler(self.runner.info, EngineParams(cache_ram=100))
        self.cells = Cells(self.runner, self.scheduler, lambda: 0.0)

    def fill(self, slot: int, n: int, *, used_at: float = 0.0, running: bool = False) -> Slot:
        padded_lengths = self.scheduler.slots[slot]
        padded_lengths.tokens, padded_lengths.last_used = [slot] * n, used_at
        self.runner.cells[slot] = list(padded_lengths.tokens)
        self.runner.computed_by[slot] = [()] * n
        if running:
            padded_lengths.sequence = self.sequence(n)
            padded_lengths.sequence.slot = padded_lengths
        return padded_lengths

    def sequence(self, n: int) -> Sequence:
        ticket = Ticket(Request("r", [9] * n), lambda events: None, 0.0)
        return Sequence(ticket, 0, [9] * n, phase=Phase.DECODE)

    def preempted(self, n: int) -> Sequence:
        """A sequence whose state waits to come back."""
        one = FakeRunner(n_seq=1)
        one.cells[0], one.computed_by[0] = [9] * n, [()] * n
        sequence = self.sequence(n + 1)
        self.preempt(sequence, SlotState([9] * n, one.seq_save(0), NO_ADAPTERS, n))
        return sequence

    def preempt(self, sequence: Sequence, state: SlotState) -> None:
        sequence.preempted = in_ram(state, 0.0)
        self.scheduler.ram.pin(sequence.preempted, 0.0)

    def bring_back(self, sequence: Sequence, slot: int) -> list[int]:
        """Into `slot`; what every slot holds then."""
        assert sequence.preempted is not None
        entry = sequence.preempted
        self.cells.prepare(Placement(sequence, self.scheduler.slots[slot], entry, len(entry.tokens)), 10.0)
        assert [len(s.tokens) for s in self.scheduler.slots] == [len(c) for c in self.runner.cells.values()]
        return [len(s.tokens) for s in self.scheduler.slots]


def test_a_parked_sequence_comes_back_in_place_of_the_least_valuable_cache() -> None:
    setup = Setup()
    for slot, used_at in ((0, 5.0), (1, 1.0), (2, 9.0)):
        setup.fill(slot, 300, used_at=used_at)
    assert setup.bring_back(setup.preempted(200), 3) == [300, 0, 300, 200]
    (kept,) = setup.scheduler.ram
    assert kept.tokens == [1] * 300


def test_no_more_caches_go_than_needed() -> None:
    setup = Setup()
    for slot, used_at in ((0, 5.0), (1, 1.0), (2, 9.0)):
        setup.fill(slot, 300, used_at=used_at)
    assert setup.bring_back(setup.preempted(450), 3) == [0, 0, 300, 450]
    assert setup.bring_back(setup.preempted(100), 0) == [100, 0, 300, 450]


def test_caches_stay_where_a_state_finds_no_room_anyway() -> None:
    setup = Setup()
    setup.fill(0, 700, running=True)
    setup.fill(1, 100)
    setup.fill(2, 100)
    assert setup.bring_back(setup.preempted(400), 3) == [700, 100, 100, 0]


def test_caches_stay_when_a_state_is_refused_for_something_else() -> None:
    setup = Setup()
    setup.fill(1, 100)
    sequence = setup.preempted(100)
    assert sequence.preempted is not None
    setup.preempt(sequence, replace(sequence.preempted.saved, state=b"not a state"))
    assert setup.bring_back(sequence, 3) == [0, 100, 0, 0]


def test_separate_cells_have_nothing_to_give() -> None:
    setup = Setup()
    setup.runner = FakeRunner(n_seq=2, n_ctx_seq=100)
    setup.scheduler = Scheduler(setup.runner.info, EngineParams())
    setup.cells = Cells(setup.runner, setup.scheduler, lambda: 0.0)
    setup.fill(0, 50)
    sequence = setup.preempted(20)
    assert sequence.preempted is not None
    setup.preempt(sequence, replace(sequence.preempted.saved, state=b"not a state"))
    assert setup.bring_back(sequence, 1) == [50, 0]


async def test_who_was_parked_does_not_compute_again() -> None:
    """Four streams outgrow the cells; every token is computed once, though caches of others are there all the time."""
    runner = unified(400)
    requests = [request(f"{i} " + "y" * 30, max_tokens=150) for i in range(4)]
    async with engine_over(runner, clock=ticking(), target_itl_ms=0) as engine:
        replies = await run(engine, *requests)
        assert engine.stats.n_preempted > 0
    assert [r.text for r in replies] == [alone(r) for r in requests]
    assert sum(n for batch in runner.batches for _, n in batch) == sum(len(r.prompt) + 149 for r in requests)


@pytest.mark.parametrize("at_once", [1, 3])
async def test_many_conversations_over_few_cells_come_back_from_the_tier(at_once: int) -> None:
    """24 conversations of 4 turns, in cells that hold two or three: hardly anything is computed twice."""
    names, turns = [f"{i:02}" for i in range(24)], 4
    histories = {name: f"{name} begins here. " * 6 for name in names}
    n_new = n_asked = 0
    async with engine_over(unified(1024, n_seq=8), clock=still) as engine:
        for turn in range(turns):
            for first in range(0, len(names), at_once):
                talking = names[first : first + at_once]
                for name in talking:
                    new = f" And what of {name}, in turn {turn}?" * 2
                    n_new += len(new) + (len(histories[name]) + 1 if turn == 0 else 0)
                    histories[name] += new
                wanted = [request(histories[name]) for name in talking]
                replies = await run(engine, *wanted)
                assert [r.text for r in replies] == [alone(r) for r in wanted]
                n_asked += sum(len(r.prompt) for r in wanted)
                for name, reply in zip(talking, replies, strict=True):
                    histories[name] += reply.text
        stats = engine.stats
        assert stats.n_ram_hits >= 0.95 * len(names) * (turns - 1)
        assert stats.prompt_tokens <= 1.05 * n_new
        assert stats.prompt_tokens_cached >= 0.95 * (n_asked - n_new)
        assert n_asked > 2 * n_new
