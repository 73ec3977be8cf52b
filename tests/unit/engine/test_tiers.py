"""Taking states out of the cells: where it pays, and never longer than others can wait."""

import pytest

from server.engine.kv import Cells
from server.engine.params import EngineParams
from server.engine.request import Request
from server.engine.scheduler import Scheduler
from server.engine.sequence import Phase, Sequence, Slot, Ticket
from server.engine.text import TextStream
from server.engine.tiers import SHARE
from tests.fakes import FakeRunner

STEP_S = 0.25


class Slow(FakeRunner):
    """Saving and checkpoints take ``seconds`` of a clock that nothing else moves."""

    def __init__(self, *, partial_removal: bool = True) -> None:
        super().__init__(n_seq=3, n_ctx_seq=1024, partial_removal=partial_removal)
        self.seconds = 0.0
        self.now = 0.0

    def seq_save(self, seq: int) -> bytes:
        self.now += self.seconds
        return super().seq_save(seq)

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

    def generate(self) -> None:
        ticket = Ticket(Request("r", [1, 2]), lambda events: None, 0.0)
        sequence = Sequence(ticket, 0, TextStream(()), [1, 2], phase=Phase.DECODE, slot=self.slots[2])
        self.slots[2].sequence = sequence

    def keep(self, slot: int) -> bool:
        before = len(self.scheduler.tier)
        self.cells.tiers.keep(self.slots[slot], 200, self.runner.now)
        return len(self.scheduler.tier) > before


@pytest.fixture
def setup() -> Setup:
    return Setup(Slow())


def test_what_takes_longer_than_a_step_is_not_saved_while_others_generate(setup: Setup) -> None:
    setup.runner.seconds = 2 * STEP_S
    assert setup.keep(0)  # nobody waits, and now it is known how long it takes
    setup.generate()
    assert not setup.keep(1)


def test_what_is_quick_is_saved_while_others_generate(setup: Setup) -> None:
    setup.runner.seconds = STEP_S / 2
    setup.generate()
    assert setup.keep(0)
    assert setup.keep(1)


def test_a_step_that_has_saved_for_long_enough_leaves_the_rest_to_the_next(setup: Setup) -> None:
    setup.runner.seconds = STEP_S * SHARE * 0.6
    setup.generate()
    tiers = setup.cells.tiers
    tiers.begin_step()
    setup.keep(0)
    assert not tiers.busy
    setup.keep(1)
    assert tiers.busy
    tiers.begin_step()
    assert not tiers.busy


def test_without_others_everything_is_saved_in_one_step(setup: Setup) -> None:
    setup.runner.seconds = 2 * STEP_S
    setup.keep(0)
    assert not setup.cells.tiers.busy
    assert setup.keep(1)


def test_what_computing_does_faster_is_not_saved(setup: Setup) -> None:
    setup.runner.seconds = STEP_S / 2
    assert setup.keep(0)
    setup.scheduler.worth.computed.observe(100_000, 1.0)  # tokens in a second: 200 in 2 ms
    assert not setup.keep(1)


def test_slow_checkpoints_are_not_made_while_others_generate() -> None:
    setup = Setup(Slow(partial_removal=False))
    setup.runner.seconds = 2 * STEP_S
    for slot in setup.slots[:2]:
        slot.floor = 200
    setup.cells._checkpoint(setup.slots[0])
    assert [c.n_tokens for c in setup.slots[0].checkpoints] == [200]
    setup.generate()
    setup.cells._checkpoint(setup.slots[1])
    assert not setup.slots[1].checkpoints
