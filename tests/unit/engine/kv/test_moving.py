"""Taking states out of the cells: where it pays, and never longer than others can wait."""

import pytest

from server.engine.disk_cache import DiskCache
from server.engine.kv_store import Cells
from server.engine.params import EngineParams
from server.engine.placement import Placement
from server.engine.scheduler import ALONE_S, Scheduler
from server.engine.sequence import Phase, Sequence, Slot
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import sequence
from tests.unit.engine.kv.test_disk import Files, still

STEP_S = 0.25


class Slow(FakeRunner):
    """Saving, loading and checkpoints take ``seconds`` of a clock that nothing else moves."""

    def __init__(self, *, partial_removal: bool = True) -> None:
        super().__init__(n_seq=3, n_ctx_seq=1024, partial_removal=partial_removal)
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

    def seq_checkpoint(self, seq: int) -> bytes:
        self.now += self.seconds
        return super().seq_checkpoint(seq)


class Setup:
    """Slots 0 and 1 hold idle caches; slot 2 generates when a test says so."""

    def __init__(self, runner: Slow) -> None:
        self.runner = runner
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

    def preempt(self) -> Sequence:
        """What slot 0 holds, with the sequence that it is of."""
        slot = self.slots[0]
        slot.sequence = victim = sequence(slot.tokens, phase=Phase.DECODE, slot=slot)
        self.cells.preempt(victim, self.runner.now)
        return victim

    def computes(self, seconds: float) -> None:
        """The 200 tokens of a slot take so long to compute."""
        self.scheduler.move_cost.computed = 200 / seconds

    def take_over(self) -> list[tuple[int, int]]:
        """Copies of streams, for a prompt that begins with what slot 0 holds and is put into slot 2."""
        prompt = [*self.slots[0].tokens, 7]
        self.runner.copies.clear()
        self.cells.prepare(Placement(sequence(prompt), self.slots[2], self.slots[0], 200), self.runner.now)
        assert self.runner.cells[2] == self.slots[2].tokens == prompt[:-1]
        return self.runner.copies


@pytest.fixture
def setup() -> Setup:
    return Setup(Slow())


@pytest.mark.parametrize("quicker", [False, True])
def test_a_beginning_is_taken_over_by_its_state_where_that_is_quicker_than_its_whole_stream(
    setup: Setup, quicker: bool
) -> None:
    setup.runner.seconds = 0.003
    setup.scheduler.move_cost.copy_s = 0.015 if quicker else 0.005
    assert setup.take_over() == [(0, 2)]  # nobody knows yet what a state takes
    setup.keep(1)
    setup.cells.clear(setup.slots[2])
    assert setup.take_over() == [(0, 2)]  # the first copy is still to be carried out, which a state would wait for
    setup.scheduler.n_copies = 0
    setup.cells.clear(setup.slots[2])
    assert setup.take_over() == ([] if quicker else [(0, 2)])


def test_moves_of_one_step_hold_others_up_for_no_longer_than_a_step_together(setup: Setup) -> None:
    setup.runner.seconds = STEP_S * 0.6
    setup.generate()
    assert setup.keep(0)
    assert not setup.keep(1)
    setup.scheduler.spent_s = 0.0
    assert setup.keep(1)


@pytest.mark.parametrize("phase", [Phase.DECODE, Phase.PREFILL])
@pytest.mark.parametrize(("steps", "loads"), [(0.9, True), (1.1, False)])
def test_a_load_holds_nobody_up_for_longer_than_a_step(
    setup: Setup, phase: Phase, steps: float, *, loads: bool
) -> None:
    step_s = STEP_S if phase is Phase.DECODE else ALONE_S
    setup.computes(1000.0)  # however much it saves
    setup.runner.seconds = steps * step_s
    assert setup.keep(0)
    (entry,) = setup.scheduler.ram
    setup.scheduler.spent_s = 0.0
    assert setup.cells.may_load(entry.saved)
    setup.generate(phase)
    assert setup.cells.may_load(entry.saved) == loads
    assert setup.keep(1) == loads


@pytest.mark.parametrize("phase", [Phase.DECODE, Phase.PREFILL])
@pytest.mark.parametrize(("steps", "saves"), [(0.9, True), (1.1, False)])
def test_a_victim_is_saved_only_where_that_takes_no_longer_than_a_step(
    setup: Setup, phase: Phase, steps: float, *, saves: bool
) -> None:
    setup.computes(1000.0)
    setup.runner.seconds = steps * (STEP_S if phase is Phase.DECODE else ALONE_S)
    setup.keep(1)
    setup.scheduler.spent_s = 0.0
    setup.generate(phase)
    victim = setup.preempt()
    assert ([] if victim.preempted is None else victim.preempted.tokens) == ([0] * 200 if saves else [])
    assert not setup.slots[0].tokens


def test_idle_slots_are_written_once_for_other_processes(setup: Setup) -> None:
    files = Files()
    files.follow_s = 60.0
    disk = DiskCache(files, 1 << 30, still, lambda: None, can_cut=True)
    disk.ready.result(60)
    cells = setup.cells
    setup.scheduler.placer.disk = disk
    setup.runner.seconds = 2 * STEP_S
    setup.keep(0)  # which tells what it takes: longer than a step, less than a prompt's
    for slot in setup.slots[:2]:
        slot.last = sequence(slot.tokens)
    setup.generate()
    assert not cells.offer()  # others are at work
    setup.slots[2].sequence = None
    assert cells.offer()
    assert not cells.offer()  # slot 0's went there with RAM's copy
    disk.close()
    assert sorted(saved.tokens[0] for saved in files.saved.values()) == [0, 1]
