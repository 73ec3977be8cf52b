"""`Engine` from `submit` to the last event, with fake runners: batching, shared prefills, refusals and faults."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from server.engine.loop import Instance
from server.engine.request import Event, Failed, FinishReason, SamplingParams
from server.engine.runner_api import BatchEntry
from server.engine.scheduler import TokenRun
from server.errors import ContextExceeded, InternalError, InvalidRequest, ShuttingDown
from tests.support.fakes import FakeRunner, FakeSampler
from tests.unit.engine.builders import Gate, engine_over, expected_text, request, run, submit, ticking_clock


async def test_sampling_error_of_one_sequence_fails_only_its_request() -> None:
    class FaultySampling(FakeRunner):
        def sample_together(self, wanted: Sequence[tuple[int, FakeSampler]]) -> dict[int, int | Exception]:
            drawn = super().sample_together(wanted)
            return drawn | {min(drawn): InternalError("injected")} if len(drawn) == 3 else drawn

    async with engine_over(FaultySampling(together=True)) as engine:
        replies = await run(engine, *(request(f"prompt {i}") for i in range(3)))
    assert [reply.error is None for reply in replies] == [False, True, True]


async def test_generation_past_its_deadline_ends_at_the_next_line_break() -> None:
    runner = FakeRunner(replies={"sing": "row row row\nyour boat\n"})
    async with engine_over(runner, clock=ticking_clock()) as engine:
        (reply,) = await run(engine, request("sing", max_tokens=40, deadline_s=0.001))
    assert (reply.text, reply.finished[0].reason) == ("row row row\n", FinishReason.LIMIT)


async def test_long_prompt_is_prefilled_in_chunks_that_do_not_stall_decoding() -> None:
    runner = FakeRunner(n_seq=2, n_ctx_seq=4096, n_batch=2048, steps=threading.Semaphore(0))
    async with engine_over(runner, min_chunk=16) as engine:
        decoding = submit(engine, request("abc", max_tokens=400))
        assert runner.steps is not None
        runner.steps.release(2)
        assert await decoding.next_step()
        prefilling = submit(engine, request("x" * 2000, max_tokens=1))
        runner.steps.release(1000)
        await decoding.ended.wait()
        await prefilling.ended.wait()
    mixed = [batch for batch in runner.batches if len(batch) == 2]
    assert mixed, "no batch had prefill tokens and a decode token"
    assert len(mixed) > 1, "the whole prompt was prefilled in one step"
    assert all(1 in dict(batch).values() for batch in mixed)


async def test_requests_of_adjacent_event_loop_turns_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, n_wakes, wake = FakeRunner(n_seq=4), 0, Instance.wake

    def count_wake(instance: Instance) -> None:
        nonlocal n_wakes
        n_wakes += threading.current_thread() is threading.main_thread()
        wake(instance)

    monkeypatch.setattr(Instance, "wake", count_wake)
    async with engine_over(runner) as engine:
        for i in range(3):
            engine.submit(request(f"prompt {i}", max_tokens=1), lambda events: None)
            for _ in range(2):
                await asyncio.sleep(0)  # one turn of the event loop
        assert n_wakes == 0
        await engine.wait_idle()
        assert n_wakes == 1
    assert len(runner.batches[0]) == 3


async def test_follow_up_of_a_reply_shares_the_batch_of_a_request_that_waits() -> None:
    gate, followed = Gate(), asyncio.Event()
    runner = FakeRunner(on_decode=gate)
    async with engine_over(runner) as engine, asyncio.timeout(30):

        def follow_up(events: list[Event]) -> None:
            engine.submit(request("follow-up", max_tokens=1), lambda events: followed.set())

        with engine.preparing():
            engine.submit(request("first", max_tokens=1), follow_up)
        await gate.wait_entered()
        engine.submit(request("waiting", max_tokens=1), lambda events: None)
        gate.opened.set()
        await followed.wait()
        await engine.wait_idle()
    assert [len(batch) for batch in runner.batches] == [1, 2]


async def test_preparations_that_submit_nothing_do_not_delay_others_forever() -> None:
    async with engine_over(FakeRunner(), gather_ms=1.0) as engine, asyncio.timeout(30):
        replies = asyncio.ensure_future(run(engine, request("one")))
        while not replies.done():
            with engine.preparing():
                pass
            await asyncio.sleep(0)
        assert [reply.text for reply in await replies] == [expected_text(request("one"))]


async def test_eight_cold_requests_compute_a_shared_prefix_once() -> None:
    runner = FakeRunner(n_seq=8, n_ctx_seq=1024)
    prefix = "p" * 500
    requests = [request(f"{prefix} {i} and its own part") for i in range(8)]
    async with engine_over(runner) as engine:
        replies = await run(engine, *requests)
        assert engine.stats.prompt_tokens_cached > 7 * 400
    assert [r.text for r in replies] == [expected_text(r) for r in requests]
    computed = sum(n for batch in runner.batches for _, n in batch)
    assert computed < 501 + 8 * 64, "the prefix was computed more than once"


async def test_n_choices_share_one_prefill_and_have_different_seeds() -> None:
    runner = FakeRunner(n_seq=4, n_ctx_seq=1024)
    async with engine_over(runner) as engine:
        sampling = SamplingParams(temperature=1.0, seed=5)
        (reply,) = await run(engine, request("q" * 300, n=3, sampling=sampling, max_tokens=6))
    assert sorted(reply.texts) == [0, 1, 2]
    assert len(set(reply.texts.values())) == 3
    assert sum(n for batch in runner.batches for _, n in batch) < 301 + 3 * 8 + 3


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt": []}, InvalidRequest),
        ({"prompt": [0] * 256}, ContextExceeded),
        ({"prompt": [260]}, InvalidRequest),
        ({"prompt": [-1]}, InvalidRequest),
        ({"id_slot": 4}, InvalidRequest),
        ({"n": 0}, InvalidRequest),
    ],
)
async def test_submit_refuses_requests_that_exceed_the_bounds(fields: dict[str, Any], error: type[Exception]) -> None:
    async with engine_over(FakeRunner()) as engine:
        with pytest.raises(error):
            submit(engine, replace(request("fine"), **fields))
        assert not engine.busy


async def test_close_fails_open_requests_and_refuses_new_ones() -> None:
    async with engine_over(FakeRunner(n_ctx_seq=100_000)) as engine:
        reply = submit(engine, request("abc", max_tokens=90_000))
        await reply.next_step()
        await engine.close()
        await reply.ended.wait()
        assert isinstance(reply.error, ShuttingDown)
        with pytest.raises(ShuttingDown):
            submit(engine, request("abc"))


async def test_unexpected_exception_in_a_step_fails_its_requests_but_not_the_engine() -> None:
    faults = [ZeroDivisionError("a bug")]

    def fail_once(_: object) -> None:
        if faults:
            raise faults.pop()

    async with engine_over(FakeRunner(on_decode=fail_once)) as engine:
        (reply,) = await run(engine, request("abc"))
        assert isinstance(reply.error, InternalError)
        assert "ZeroDivision" not in reply.error.message
        (reply,) = await run(engine, request("abc"))
        assert reply.text == expected_text(request("abc"))


@pytest.mark.parametrize(("n", "partial_removal"), [(1, True), (3, True), (3, False)])
async def test_rejected_batch_fails_only_the_faulty_request_and_only_once(n: int, partial_removal: bool) -> None:
    def reject(entries: Sequence[BatchEntry]) -> None:
        bad = [e.sequence for e in entries if isinstance(e, TokenRun) and e.sequence.request.id == "bad"]
        if any(len(sequence.output) > 2 for sequence in bad):
            raise InternalError("llama_decode failed (-1)")

    runner = FakeRunner(n_seq=4, on_decode=reject, partial_removal=partial_removal)
    good = request("good", max_tokens=60)
    async with engine_over(runner) as engine:
        bad, reply = await run(engine, request("bad", n=n, max_tokens=60), good)
    assert isinstance(bad.error, InternalError)
    assert [type(event) for event in bad.events].count(Failed) == 1
    assert reply.text == expected_text(good)
