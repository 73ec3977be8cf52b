"""Faults in a step: as few requests as possible fail, each once, and nothing of them is left. Uses faulty runners."""

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
from tests.unit.engine.builders import engine_over, expected_text, request, run
from tests.unit.engine.speculate.fake_draft import Machine, runner_with_draft

pytestmark = pytest.mark.timeout(60)


class PanicException(BaseException):
    """An error that is no `Exception`, like a panic of a Rust library."""


async def test_other_instances_continue_after_a_panic_in_one() -> None:
    def panic(_: object) -> None:
        raise PanicException("index out of bounds")

    async with engine_over(FakeRunner(n_seq=1, on_decode=panic), FakeRunner(n_seq=1)) as engine:
        ended = await run(engine, request("one"), request("two"))
        assert InternalError in [type(reply.error) for reply in ended]
        assert engine.failure
        assert engine.serves
        requests = [request(f"request {i}") for i in range(6)]
        replies = await run(engine, *requests)
        assert [reply.text for reply in replies] == [expected_text(one) for one in requests]


async def test_preempted_sequence_that_cannot_resume_fails_and_its_sampler_is_closed() -> None:
    runner = FakeRunner(n_seq=2, n_ctx_seq=1000, n_cells=1000, unified=True, n_batch=512)
    async with engine_over(runner) as engine:
        (instance,) = engine._instances
        prepare = instance.cells.prepare

        def fail_to_resume(placement: Placement, now: float) -> None:
            if placement.sequence.n_cached >= 0:
                raise InternalError("injected")
            prepare(placement, now)

        instance.cells.prepare = fail_to_resume  # type: ignore[method-assign]
        replies = await run(engine, *(request(letter * 400, max_tokens=300) for letter in "ab"))
        assert engine.stats.n_preempted == 1
        assert sorted(str(reply.error) for reply in replies) == ["None", "injected"]
        assert all(sampler.closed for sampler in runner.samplers)


async def test_request_whose_slot_cannot_be_cleared_fails_and_later_ones_work() -> None:
    class FailingRemoval(FakeRunner):
        n_faults = 0

        def seq_remove(self, seq: int, pos: int) -> bool:
            if self.n_faults:
                self.n_faults -= 1
                raise InternalError("injected")
            return super().seq_remove(seq, pos)

    runner = FailingRemoval(n_seq=1)
    async with engine_over(runner, gather_ms=0.0) as engine, asyncio.timeout(10):
        await run(engine, request("abc"))
        runner.n_faults = 3  # during the placement, after its failure, and when that is reported
        (failed,) = await run(engine, request("xyz"))
        assert "the engine failed" in str(failed.error)
        await engine.wait_idle()
        (later,) = await run(engine, request("xyz"))
        assert later.text == expected_text(request("xyz"))


async def test_failing_sink_affects_no_other_request_and_leaves_none_open() -> None:
    received: list[Event] = []

    def failing_sink(events: list[Event]) -> None:
        received.extend(events)
        raise ZeroDivisionError("a bug")

    async with engine_over(FakeRunner(n_seq=2)) as engine:
        engine.submit(request("broken", max_tokens=5), failing_sink)
        (fine,) = await run(engine, request("fine", max_tokens=5))
        assert len(fine.text) == 5
        await engine.wait_idle()
        assert (engine.n_load, bool(received)) == (0, True)


# ---- logits that are not finite

ADAPTERS = (Adapter(0, "lora.gguf", scale=0.0),)


class NonFiniteRunner(FakeRunner):
    """Raises `NotNumbers` instead of reading logits while `is_faulty` returns True."""

    def __init__(self, is_faulty: Callable[[FakeRunner], bool], **options: Any) -> None:
        super().__init__(**options)
        self._is_faulty = is_faulty

    def sample(self, output: int, sampler: FakeSampler) -> int:
        if self._is_faulty(self):
            raise NotNumbers
        return super().sample(output, sampler)

    def logprobs(self, output: int, token: int, n_top: int) -> TokenLogprob:
        if self._is_faulty(self):
            raise NotNumbers
        return super().logprobs(output, token, n_top)


class FaultyStates(NonFiniteRunner):
    """Logits are not finite after one of the states `faulty` was loaded, until cells are wiped."""

    def __init__(self) -> None:
        super().__init__(lambda _: self._has_loaded, n_seq=1)
        self.faulty: set[bytes] = set()
        self._has_loaded = False

    def seq_load(self, seq: int, state: bytes, n_pos: int) -> bool:
        self._has_loaded |= state in self.faulty
        return super().seq_load(seq, state, n_pos)

    def wipe(self) -> None:
        super().wipe()
        self._has_loaded = False


async def test_cached_state_that_gives_non_finite_logits_is_dropped() -> None:
    runner = FaultyStates()
    first, second = request("a" * 100), request("b" * 100)
    async with engine_over(runner, cache_ram=1) as engine:
        await run(engine, first)
        await run(engine, second)  # offloads the state of the first
        (entry,) = engine._ram
        runner.faulty = {entry.state}
        (reply,) = await run(engine, first)
        assert (reply.error, reply.text, runner.n_wipes) == (None, expected_text(first), 1)
        assert entry not in engine._ram


async def test_prompt_whose_cells_are_wiped_for_faults_of_others_does_not_fail() -> None:
    """Every request with the adapter gives non-finite logits, so the prompt is recomputed several times."""
    options: dict[str, Any] = {"n_seq": 2, "adapters": ADAPTERS, "n_batch": 16, "n_ctx_seq": 1000}
    runner = NonFiniteRunner(lambda runner: bool(runner.adapters_now), **options)
    long, faulty = request("a" * 400), [request(f"{i}" * 20, adapters=((0, 9.0),)) for i in range(6)]
    async with engine_over(runner) as engine:
        replies = await run(engine, long, *faulty)
        assert [type(reply.error) for reply in replies] == [type(None)] + [NotNumbers] * 6
        assert replies[0].text == expected_text(long)
        assert runner.n_wipes > 2


def is_faulty_for(n: int) -> Callable[[FakeRunner], bool]:
    """Return a function that returns True `n` times, then False."""
    faults = iter([True] * n)
    return lambda _: next(faults, False)


@pytest.mark.parametrize(
    ("loaded", "used", "n_allowed"),
    [((), None, MAX_FAULTS), (ADAPTERS, None, MAX_NOT_FINITE), (ADAPTERS, ((0, 9.0),), 1)],
    ids=["no adapter", "adapter loaded", "adapter used"],
)
async def test_sequence_with_non_finite_logits_is_recomputed_a_few_times(
    loaded: tuple[Adapter, ...], used: Any, n_allowed: int
) -> None:
    for n_faults in (n_allowed, n_allowed + 1):
        runner = NonFiniteRunner(is_faulty_for(n_faults), n_seq=1, adapters=loaded)
        async with engine_over(runner) as engine:
            (reply,) = await run(engine, request("a" * 20, adapters=used))
        assert isinstance(reply.error, NotNumbers) == (n_faults > n_allowed)
        assert runner.n_wipes == n_faults


async def test_sequence_that_makes_progress_survives_any_number_of_wipes() -> None:
    """Non-finite values that others left in its cells, again and again, ended a long reply."""
    faults = itertools.cycle([False, True, False])  # a token, a fault, and the check of the recomputed run
    runner, req = NonFiniteRunner(lambda _: next(faults), n_seq=1), request("a" * 20, max_tokens=2 * MAX_NOT_FINITE)
    async with engine_over(runner) as engine:
        (reply,) = await run(engine, req)
    assert (reply.error, reply.text) == (None, expected_text(req))
    assert runner.n_wipes == 2 * MAX_NOT_FINITE - 1


async def test_long_prompt_with_non_finite_cells_fails_alone() -> None:
    """During its prefill, its cells make the logits of the other sequences non-finite."""
    runner = NonFiniteRunner(lambda r: any(ord("!") in cells for cells in r.cells.values()), n_seq=3, n_batch=16)
    requests = [request("a" * 20, max_tokens=60), request("b" * 50, max_tokens=60)]
    async with engine_over(runner) as engine:
        *others, faulty = await run(engine, *requests, request("!" * 100))
    assert [(reply.error, reply.text) for reply in others] == [(None, expected_text(each)) for each in requests]
    assert isinstance(faulty.error, NotNumbers)


# ---- rejected batches


class PartialDecodes(FakeRunner):
    """Rejects `n_faults` batches that contain every sequence, after its first token, but leaves the first token of each
    run in the cells. Sequences cannot be truncated.
    """

    def __init__(self, n_faults: int, *, n_seq: int) -> None:
        super().__init__(n_seq=n_seq, partial_removal=False)
        self._n_faults = n_faults
        self.rejected: list[list[int]] = []  # positions of each rejected batch
        self.later_shared: list[list[int]] = []  # positions of each later batch of several sequences

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        positions = [entry.pos for entry in entries]
        if self._n_faults and len(entries) == self.info.n_seq and min(positions) > 0:
            self._n_faults -= 1
            self.rejected.append(positions)
            for entry in entries:
                super().decode([BatchEntry(entry.seq, entry.pos, entry.tokens[:1])])
            raise InternalError("llama_decode returned -3")
        if self.rejected and len(entries) > 1:
            self.later_shared.append(positions)
        return super().decode(entries)


@pytest.mark.parametrize(("n_faults", "fails"), [(MAX_FAULTS, False), (MAX_FAULTS + 1, True)])
async def test_sequence_that_cannot_be_truncated_is_recomputed_a_few_times(n_faults: int, *, fails: bool) -> None:
    req = request("a" * 20)
    async with engine_over(PartialDecodes(n_faults, n_seq=1)) as engine:
        (reply,) = await run(engine, req)
    assert isinstance(reply.error, InternalError) == fails
    assert fails or reply.text == expected_text(req)


async def test_sequences_of_a_rejected_batch_decode_alone_until_past_it() -> None:
    runner, requests = PartialDecodes(1, n_seq=2), [request("a" * 20), request("b" * 20)]
    async with engine_over(runner) as engine:
        replies = await run(engine, *requests)
    assert [reply.text for reply in replies] == [expected_text(each) for each in requests]
    (rejected,) = runner.rejected
    assert min(runner.later_shared[0]) > max(rejected)


async def test_sequences_of_a_rejected_batch_retry_their_runs_alone() -> None:
    run_lengths: list[list[int]] = []

    def reject_large(entries: Sequence[BatchEntry]) -> None:
        run_lengths.append(sorted([len(entry.tokens) for entry in entries]))
        if sum(run_lengths[-1]) > 56:
            raise InternalError("no memory for so many")

    requests = [request(letter * n) for letter, n in (("a", 20), ("b", 20), ("c", 60))]
    async with engine_over(FakeRunner(n_seq=3, n_batch=64, on_decode=reject_large)) as engine:
        replies = await run(engine, *requests)
    assert run_lengths[:5] == [[21, 21, 22], [21], [21], [22], [1, 1, 39]]
    assert [reply.text for reply in replies] == [expected_text(each) for each in requests]


async def test_quarantine_covers_the_next_token_but_not_draft_tokens() -> None:
    machine, batches = Machine(), list[tuple[tuple[int, int], ...]]()  # from the first with drafts of both sequences
    texts = {"a" * 20: "first reply " * 9, "b" * 20: "second reply " * 9}
    runner = runner_with_draft(machine, n_seq=2, replies=texts)

    def reject_first(entries: Sequence[BatchEntry]) -> None:
        machine.step(entries)
        has_drafts = len(entries) == 2 and all(entry.n_outputs > 1 for entry in entries)
        if batches or has_drafts:
            batches.append(tuple((entry.seq, len(entry.tokens)) for entry in entries))
        if len(batches) == 1:
            raise InternalError("llama_decode returned -3")

    runner.on_decode = reject_first
    async with engine_over(runner, clock=machine, spec_type="draft-simple") as engine:
        replies = await run(engine, *(request(prompt, max_tokens=90) for prompt in texts))
    assert batches[1:3] == [((0, 1),), ((1, 1),)]
    assert [[seq for seq, _ in runs] for runs in (batches[0], batches[3])] == [[0, 1], [0, 1]]
    assert [reply.text for reply in replies] == [text[:90] for text in texts.values()]
