"""Faults of a step end as few requests as possible, once each, and leave nothing."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from server.engine.loop import MAX_FAULTS, MAX_NOT_FINITE
from server.engine.lora import Adapter
from server.engine.placement import Placement
from server.engine.request import Event, TokenLogprob
from server.engine.runner_api import BatchEntry
from server.errors import InternalError, NotNumbers
from tests.support.fakes import FakeRunner, FakeSampler
from tests.unit.engine.builders import alone, engine_over, request, run
from tests.unit.engine.speculate.fake_draft import Machine, drafted

pytestmark = pytest.mark.timeout(60)


class PanicException(BaseException):
    """As a Rust library's."""


def panics(_: object) -> None:
    raise PanicException("index out of bounds")


async def test_other_instances_go_on_without_it() -> None:
    failing = FakeRunner(n_seq=1, on_decode=panics)
    async with engine_over(failing, FakeRunner(n_seq=1)) as engine:
        ended = await run(engine, request("one"), request("two"))
        assert InternalError in [type(reply.error) for reply in ended]
        assert engine.failure
        assert engine.serves
        asked = [request(f"request {i}") for i in range(6)]
        replies = await run(engine, *asked)
        assert [reply.text for reply in replies] == [alone(one) for one in asked]


async def test_a_preempted_one_that_cannot_resume_leaves_no_sampler_open() -> None:
    runner = FakeRunner(n_seq=2, n_ctx_seq=1000, n_cells=1000, unified=True, n_batch=512)
    async with engine_over(runner) as engine:
        (instance,) = engine._instances
        prepare = instance.cells.prepare

        def fails(placement: Placement, now: float) -> None:
            if placement.sequence.n_cached >= 0:
                raise InternalError("it broke")
            prepare(placement, now)

        instance.cells.prepare = fails  # type: ignore[method-assign]
        replies = await run(engine, *(request(letter * 400, max_tokens=300) for letter in "ab"))
        assert engine.stats.n_preempted == 1
        assert sorted(str(reply.error) for reply in replies) == ["None", "it broke"]
        assert all(sampler.closed for sampler in runner.samplers)


class Stuck(FakeRunner):
    """Its cells cannot be removed `left` times."""

    left = 0

    def seq_remove(self, seq: int, pos: int) -> bool:
        if self.left:
            self.left -= 1
            raise InternalError("it broke")
        return super().seq_remove(seq, pos)


async def test_a_request_whose_slot_cannot_be_cleared_fails_and_later_ones_work() -> None:
    runner = Stuck(n_seq=1)
    async with engine_over(runner, gather_ms=0.0) as engine, asyncio.timeout(10):
        await run(engine, request("abc"))
        runner.left = 3  # in the placement, after its failure, and when it is reported
        (lost,) = await run(engine, request("xyz"))
        assert "the engine failed" in str(lost.error)
        await engine.wait_idle()
        (fine,) = await run(engine, request("xyz"))
        assert fine.text == alone(request("xyz"))


async def test_events_that_nobody_can_take_leave_others_theirs_and_no_request_open() -> None:
    taken: list[Event] = []

    def breaks(events: list[Event]) -> None:
        taken.extend(events)
        raise ZeroDivisionError("a bug")

    async with engine_over(FakeRunner(n_seq=2)) as engine:
        engine.submit(request("broken", max_tokens=5), breaks)
        (fine,) = await run(engine, request("fine", max_tokens=5))
        assert len(fine.text) == 5
        await engine.wait_idle()
        assert (engine.n_load, bool(taken)) == (0, True)


ADAPTERS = (Adapter(0, "lora.gguf", scale=0.0),)


class NoNumbers(FakeRunner):
    """Has no numbers for a token for which `lacks` says so."""

    def __init__(self, lacks: Callable[[FakeRunner], bool], **options: Any) -> None:
        super().__init__(**options)
        self._lacks = lacks

    def sample(self, output: int, sampler: FakeSampler) -> int:
        if self._lacks(self):
            raise NotNumbers
        return super().sample(output, sampler)

    def logprobs(self, output: int, token: int, n_top: int) -> TokenLogprob:
        if self._lacks(self):
            raise NotNumbers
        return super().logprobs(output, token, n_top)


class Spoilt(NoNumbers):
    """Has no numbers from a state of `bad` on."""

    def __init__(self) -> None:
        super().__init__(lambda _: self.is_bad, n_seq=1)
        self.bad: set[bytes] = set()
        self.is_bad = False

    def seq_load(self, seq: int, state: bytes, n_pos: int) -> bool:
        self.is_bad |= state in self.bad
        return super().seq_load(seq, state, n_pos)

    def wipe(self) -> None:
        super().wipe()
        self.is_bad = False


async def test_a_kept_state_that_spoils_is_not_used_again() -> None:
    runner = Spoilt()
    first, other = request("a" * 100), request("b" * 100)
    async with engine_over(runner, cache_ram=1) as engine:
        await run(engine, first)
        await run(engine, other)  # the first one's cells go to RAM
        (kept,) = engine._ram
        runner.bad = {kept.state}
        (reply,) = await run(engine, first)
        assert (reply.error, reply.text, runner.n_wipes) == (None, alone(first), 1)
        assert kept not in engine._ram


async def test_a_prompt_that_is_being_read_is_not_at_fault_for_others() -> None:
    """An adapter makes no numbers. However often others' cells are wiped meanwhile, the prompt is computed anew."""
    runner = NoNumbers(lambda runner: bool(runner.adapters_now), n_seq=2, adapters=ADAPTERS, n_batch=16, n_ctx_seq=1000)
    long = request("a" * 400)
    async with engine_over(runner) as engine:
        replies = await run(engine, long, *(bad(i) for i in range(6)))
        assert [type(reply.error) for reply in replies] == [type(None)] + [NotNumbers] * 6
        assert replies[0].text == alone(long)
        assert runner.n_wipes > 2


def bad(i: int) -> Any:
    return request(f"{i}" * 20, adapters=((0, 9.0),))


def for_the_first(n: int) -> Callable[[FakeRunner], bool]:
    left = iter(range(n))
    return lambda _: next(left, None) is not None


@pytest.mark.parametrize(
    ("loaded", "used", "most"),
    [((), None, MAX_FAULTS), (ADAPTERS, None, MAX_NOT_FINITE), (ADAPTERS, ((0, 9.0),), 1)],
)
async def test_a_sequence_without_numbers_is_recomputed_a_few_times_an_adapters_once(
    loaded: tuple[Adapter, ...], used: Any, most: int
) -> None:
    for n_faults in (most, most + 1):
        runner = NoNumbers(for_the_first(n_faults), n_seq=1, adapters=loaded)
        async with engine_over(runner) as engine:
            (reply,) = await run(engine, request("a" * 20, adapters=used))
        assert isinstance(reply.error, NotNumbers) == (n_faults > most)
        assert runner.n_wipes == n_faults


async def test_a_sequence_that_gets_on_survives_any_number_of_wiped_cells() -> None:
    """Others' values in its cells, again and again, ended a long reply."""
    turns = itertools.cycle([False, True, False])  # a token, none, and the check of its recomputation
    runner, wanted = NoNumbers(lambda _: next(turns), n_seq=1), request("a" * 20, max_tokens=2 * MAX_NOT_FINITE)
    async with engine_over(runner) as engine:
        (reply,) = await run(engine, wanted)
    assert (reply.error, reply.text) == (None, alone(wanted))
    assert runner.n_wipes == 2 * MAX_NOT_FINITE - 1


async def test_a_long_prompt_without_numbers_fails_alone() -> None:
    """Before its first token, its cells take the numbers from others' logits."""
    runner = NoNumbers(lambda runner: any(ord("!") in cells for cells in runner.cells.values()), n_seq=3, n_batch=16)
    wanted = [request("a" * 20, max_tokens=60), request("b" * 50, max_tokens=60)]
    async with engine_over(runner) as engine:
        *others, faulty = await run(engine, *wanted, request("!" * 100))
    assert [(reply.error, reply.text) for reply in others] == [(None, alone(each)) for each in wanted]
    assert isinstance(faulty.error, NotNumbers)


class HalfDone(FakeRunner):
    """Refuses the first `left` batches in which each sequence has `n_least` tokens already, and keeps the first token
    of each run. Only whole sequences can be removed.
    """

    def __init__(self, left: int, *, n_seq: int) -> None:
        super().__init__(n_seq=n_seq, partial_removal=False)
        self.left = left
        self.refused_at: list[list[int]] = []  # positions of each refused batch
        self.in_one_batch: list[list[int]] = []  # and, later, of each batch of several sequences

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        positions = [entry.pos for entry in entries]
        if self.left and len(entries) == self.info.n_seq and min(positions) > 0:
            self.left -= 1
            self.refused_at.append(positions)
            for entry in entries:
                super().decode([BatchEntry(entry.seq, entry.pos, entry.tokens[:1])])
            raise InternalError("llama_decode returned -3")
        if self.refused_at and len(entries) > 1:
            self.in_one_batch.append(positions)
        return super().decode(entries)


@pytest.mark.parametrize(("n_faults", "fails"), [(MAX_FAULTS, False), (MAX_FAULTS + 1, True)])
async def test_a_sequence_that_cannot_be_rolled_back_is_recomputed_a_few_times(n_faults: int, *, fails: bool) -> None:
    wanted = request("a" * 20)
    async with engine_over(HalfDone(n_faults, n_seq=1)) as engine:
        (reply,) = await run(engine, wanted)
    assert isinstance(reply.error, InternalError) == fails
    assert fails or reply.text == alone(wanted)


async def test_sequences_of_a_refused_batch_are_recomputed_alone_until_they_are_past_it() -> None:
    runner, wanted = HalfDone(1, n_seq=2), [request("a" * 20), request("b" * 20)]
    async with engine_over(runner) as engine:
        replies = await run(engine, *wanted)
    assert [reply.text for reply in replies] == [alone(each) for each in wanted]
    (refused,) = runner.refused_at
    assert min(runner.in_one_batch[0]) > max(refused)


async def test_a_sequence_of_a_refused_batch_computes_alone_what_it_had_in_it() -> None:
    tried: list[list[int]] = []

    def refuse(entries: Sequence[BatchEntry]) -> None:
        tried.append(sorted([len(entry.tokens) for entry in entries]))
        if sum(tried[-1]) > 56:
            raise InternalError("no memory for so many")

    wanted = [request(letter * n) for letter, n in (("a", 20), ("b", 20), ("c", 60))]
    async with engine_over(FakeRunner(n_seq=3, n_batch=64, on_decode=refuse)) as engine:
        replies = await run(engine, *wanted)
    assert tried[:5] == [[21, 21, 22], [21], [21], [22], [1, 1, 39]]
    assert [reply.text for reply in replies] == [alone(each) for each in wanted]


async def test_quarantine_does_not_last_for_drafts() -> None:
    machine, tried = Machine(), list[tuple[tuple[int, int], ...]]()
    runner = drafted(machine, wrong=100, n_seq=2)

    def refuse_one(entries: Sequence[BatchEntry]) -> None:
        machine.step(entries)
        is_drafted = len(entries) == 2 and all(entry.n_outputs > 1 for entry in entries)
        if tried or is_drafted:
            tried.append(tuple((entry.seq, len(entry.tokens)) for entry in entries))
        if len(tried) == 1:
            raise InternalError("llama_decode returned -3")

    runner.on_decode = refuse_one
    wanted = [request("a" * 20), request("b" * 20)]
    async with engine_over(runner, clock=machine, spec_type="draft-simple") as engine:
        replies = await run(engine, *wanted)
    assert tried[1:3] == [((0, 1),), ((1, 1),)]
    assert [[seq for seq, _ in runs] for runs in (tried[0], tried[3])] == [[0, 1], [0, 1]]
    assert [reply.text for reply in replies] == [alone(each) for each in wanted]
