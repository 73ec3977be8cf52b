"""The hashes that go with a slot are those of what is in its cells, whatever happens to these."""

from server.engine.kv_store import Cells
from server.engine.lora import NO_ADAPTERS
from server.engine.params import EngineParams
from server.engine.placement import Move, Placement
from server.engine.prefix_cache import BLOCK
from server.engine.request import Request
from server.engine.scheduler import Scheduler
from server.engine.sequence import Phase, Sequence, Slot, Ticket
from tests.support.fakes import FakeRunner

TEXT = [*range(6 * BLOCK)]
CUT = 3 * BLOCK


class Setup:
    """A sequence of `TEXT` generates in slot 0; every block of it is hashed."""

    def __init__(self) -> None:
        self.runner = FakeRunner(n_seq=2, n_ctx_seq=512)
        self.scheduler = Scheduler(self.runner.info, EngineParams())
        self.cells = Cells(self.runner, self.scheduler, lambda: 0.0)
        ticket = Ticket(Request("r", TEXT), lambda events: None, 0.0)
        self.sequence = Sequence(ticket, 0, TEXT, output=[100, 101], phase=Phase.DECODE)
        self.slot.sequence, self.sequence.slot = self.sequence, self.slot
        self.hold([*TEXT, 100])
        self.sequence.hashes.upto(6, TEXT, NO_ADAPTERS)

    @property
    def slot(self) -> Slot:
        return self.scheduler.slots[0]

    def hold(self, tokens: list[int]) -> None:
        self.slot.tokens = tokens
        self.runner.cells[0] = list(tokens)
        self.runner.computed_by[0] = [()] * len(tokens)

    def end(self) -> None:
        self.scheduler.release(self.sequence, 0.0)
        self.sequence.phase = Phase.ENDED

    @property
    def n_known(self) -> int:
        """Blocks that need no hashing any more; those are of the text."""
        assert self.slot.hashes.fits(self.slot.tokens, NO_ADAPTERS)
        known = self.slot.hashes.upto(0, self.slot.tokens, NO_ADAPTERS)
        return len(known) - 1


def test_a_slot_takes_over_what_was_hashed_of_the_prompt() -> None:
    setup = Setup()
    setup.end()
    assert setup.n_known == 6


def test_a_request_that_ends_while_its_prompt_is_computed_leaves_what_is_in_the_cells() -> None:
    setup = Setup()
    setup.sequence.phase, setup.sequence.output = Phase.PREFILL, []
    setup.hold(TEXT[: CUT + 3])
    setup.end()
    assert setup.n_known == 3


def test_what_is_cut_off_is_no_longer_known() -> None:
    setup = Setup()
    setup.end()
    setup.cells.truncate(setup.slot, CUT + 3)
    setup.slot.tokens += [7] * 3 * BLOCK
    assert setup.n_known == 3
    setup.cells.clear(setup.slot)
    setup.slot.tokens = [9] * CUT
    assert setup.n_known == 0


def test_a_sequence_that_is_parked_is_hashed_anew_with_what_it_generated() -> None:
    setup = Setup()
    setup.sequence.base, setup.sequence.base_output = TEXT[CUT:], 0  # as after a context shift
    setup.hold([*TEXT[CUT:], 100])
    setup.cells.preempt(setup.sequence, 0.0)
    assert setup.sequence.target == [*TEXT[CUT:], 100]
    assert setup.sequence.hashes.fits(setup.sequence.target, NO_ADAPTERS)
    assert setup.n_known == 0


def test_cells_that_move_take_no_hashes_along() -> None:
    setup = Setup()
    setup.end()
    follower = Sequence(setup.sequence.ticket, 0, [*TEXT[:BLOCK], *TEXT[CUT:], 5])
    move = Move(CUT, BLOCK, len(TEXT) - CUT)
    setup.cells.prepare(Placement(follower, setup.slot, setup.slot, BLOCK, (move,)), 0.0)
    assert setup.slot.tokens == follower.target[:-1]
    assert setup.n_known == 1


def test_a_context_shift_leaves_the_hashes_of_what_stays_in_its_place() -> None:
    setup = Setup()
    setup.slot.hashes.upto(6, setup.slot.tokens, NO_ADAPTERS)
    setup.cells.shift(setup.sequence, BLOCK, 2 * BLOCK, 0.0)
    assert setup.slot.tokens == [*TEXT[:BLOCK], *TEXT[CUT:], 100]
    assert setup.n_known == 1
    setup.end()
    assert setup.n_known == 1
