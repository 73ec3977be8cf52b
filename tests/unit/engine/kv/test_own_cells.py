"""Unified cells that move: in place where nobody shares them, else out and back in.

The fake runner refuses to move what another sequence holds.
"""

import random
from typing import Any

import pytest

from server.engine.kv_store import Cells
from server.engine.params import EngineParams
from server.engine.placement import Move, Placement
from server.engine.prefix_cache import common_prefix
from server.engine.scheduler import Scheduler
from server.engine.sequence import Phase, Slot
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run, sequence


class Counting(FakeRunner):
    """Counts the states that it gives."""

    n_saved = 0

    def seq_save(self, seq: int) -> bytes:
        self.n_saved += 1
        return super().seq_save(seq)


class Setup:
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
def setup() -> Setup:
    return Setup()


@pytest.mark.parametrize(("n_shared", "n_saved"), [(0, 0), (40, 0), (41, 1)])
def test_runs_that_a_prompt_reuses_move_in_place(setup: Setup, n_shared: int, n_saved: int) -> None:
    if n_shared:
        setup.copy(0, 2, n_shared)
    slot = setup.slots[0]
    prompt = [*range(10), *range(40, 100), 7]
    placement = Placement(sequence(prompt, phase=Phase.DECODE, slot=slot), slot, slot, 10, (Move(40, 10, 60),))
    setup.cells.prepare(placement, 0.0)
    assert setup.runner.n_saved == n_saved
    assert slot.tokens == prompt[:-1]
    setup.check()


@pytest.mark.parametrize("seed", range(20))
def test_shared_cells_are_counted_once_whoever_leaves(seed: int) -> None:
    """Beside what is counted by the slots, the cells themselves: one object each."""
    draw, bench = random.Random(seed), Setup(n_seq=6)
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
