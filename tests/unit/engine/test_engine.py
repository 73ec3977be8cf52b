"""The engine over the fake runner: what a client gets, and what is left behind."""

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
from tests.unit.engine.builders import alone, ask, engine_over, request, run, ticking


async def test_a_sequence_whose_token_can_not_be_sampled_fails_alone() -> None:
    class Faulty(FakeRunner):
        def sample_together(self, wanted: Sequence[tuple[int, FakeSampler]]) -> dict[int, int | Exception]:
            drawn = super().sample_together(wanted)
            return drawn | {min(drawn): InternalError("no number")} if len(drawn) == 3 else drawn

    async with engine_over(Faulty(together=True)) as engine:
        replies = await run(engine, *(request(f"prompt {i}") for i in range(3)))
    assert [reply.error is None for reply in replies] == [False, True, True]


async def test_generation_past_its_deadline_ends_with_the_line() -> None:
    runner = FakeRunner(replies={"sing": "row row row\nyour boat\n"})
    async with engine_over(runner, clock=ticking()) as engine:
        (reply,) = await run(engine, request("sing", max_tokens=40, deadline_s=0.001))
    assert (reply.text, reply.finished[0].reason) == ("row row row\n", FinishReason.LIMIT)


async def test_a_long_prompt_does_not_stall_running_slots() -> None:
    runner = FakeRunner(n_seq=2, n_ctx_seq=4096, n_batch=2048, steps=threading.Semaphore(0))
    async with engine_over(runner, min_chunk=16) as engine:
        first = ask(engine, request("abc", max_tokens=400))
        assert runner.steps is not None
        runner.steps.release(2)
        assert await first.step()
        second = ask(engine, request("x" * 2000, max_tokens=1))
        runner.steps.release(1000)
        await first.ended.wait()
        await second.ended.wait()
    mixed = [batch for batch in runner.batches if len(batch) == 2]
    assert mixed, "the prompt was never computed beside the running slot"
    assert len(mixed) > 1, "the whole prompt went into one step"
    assert all(1 in dict(batch).values() for batch in mixed)


async def test_requests_of_neighbouring_turns_of_the_event_loop_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, n_wakes, wake = FakeRunner(n_seq=4), 0, Instance.wake

    def counted(instance: Instance) -> None:
        nonlocal n_wakes
        n_wakes += threading.current_thread() is threading.main_thread()
        wake(instance)

    monkeypatch.setattr(Instance, "wake", counted)
    async with engine_over(runner) as engine:
        for i in range(3):
            engine.submit(request(f"prompt {i}", max_tokens=1), lambda events: None)
            for _ in range(2):
                await asyncio.sleep(0)  # a turn
        assert n_wakes == 0
        await engine.wait_idle()
        assert n_wakes == 1
    assert len(runner.batches[0]) == 3


async def test_requests_that_follow_replies_join_those_that_already_wait() -> None:
    runs, gate, follows = threading.Event(), threading.Event(), asyncio.Event()

    def hold(entries: Sequence[BatchEntry]) -> None:
        runs.set()
        assert gate.wait(100), "nobody opened the gate"

    runner = FakeRunner(on_decode=hold)
    async with engine_over(runner) as engine, asyncio.timeout(30):

        def follow(events: list[Event]) -> None:
            engine.submit(request("its client's next", max_tokens=1), lambda events: follows.set())

        with engine.preparing():
            engine.submit(request("first", max_tokens=1), follow)
        await asyncio.to_thread(runs.wait)
        engine.submit(request("waits", max_tokens=1), lambda events: None)
        gate.set()
        await follows.wait()
        await engine.wait_idle()
    assert [len(batch) for batch in runner.batches] == [1, 2]


async def test_requests_that_are_refused_in_every_turn_keep_nobody_waiting() -> None:
    async with engine_over(FakeRunner(), gather_ms=1.0) as engine, asyncio.timeout(30):
        reply = asyncio.ensure_future(run(engine, request("one")))
        while not reply.done():
            with engine.preparing():
                pass
            await asyncio.sleep(0)
        assert [one.text for one in await reply] == [alone(request("one"))]


async def test_eight_cold_requests_compute_a_shared_prefix_once() -> None:
    runner = FakeRunner(n_seq=8, n_ctx_seq=1024)
    prefix = "p" * 500
    requests = [request(f"{prefix} {i} and its own part") for i in range(8)]
    async with engine_over(runner) as engine:
        replies = await run(engine, *requests)
        assert engine.stats.prompt_tokens_cached > 7 * 400
    assert [r.text for r in replies] == [alone(r) for r in requests]
    computed = sum(n for batch in runner.batches for _, n in batch)
    assert computed < 501 + 8 * 64, "the prefix was computed more than once"


async def test_n_choices_come_from_one_prefill() -> None:
    runner = FakeRunner(n_seq=4, n_ctx_seq=1024)
    async with engine_over(runner) as engine:
        (reply,) = await run(
            engine, request("q" * 300, n=3, sampling=SamplingParams(temperature=1.0, seed=5), max_tokens=6)
        )
    assert sorted(reply.texts) == [0, 1, 2]
    assert len(set(reply.texts.values())) == 3, "every choice must have a seed of its own"
    assert sum(n for batch in runner.batches for _, n in batch) < 301 + 3 * 8 + 3


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"prompt": []}, InvalidRequest),
        ({"prompt": [0] * 256}, ContextExceeded),
        ({"prompt": [260]}, InvalidRequest),
        ({"prompt": [-1]}, InvalidRequest),
        ({"id_slot": 4}, InvalidRequest),
        ({"n": 0}, InvalidRequest),
    ],
)
async def test_a_bad_request_is_refused_before_it_reaches_the_library(
    options: dict[str, Any], error: type[Exception]
) -> None:
    req = replace(request("fine"), **options)
    async with engine_over(FakeRunner()) as engine:
        with pytest.raises(error):
            ask(engine, req)
        assert not engine.busy


async def test_a_batch_that_the_library_refuses_fails_only_the_request_at_fault() -> None:
    poison = ord("!")

    def refuse(entries: object) -> None:
        if any(poison in e.tokens for e in entries):  # type: ignore[attr-defined]
            raise InternalError("llama_decode failed (-1)")

    runner = FakeRunner(n_seq=4, on_decode=refuse)
    good = [request(f"good {i}", max_tokens=20) for i in range(3)]
    async with engine_over(runner) as engine:
        bad, *replies = await run(engine, request("ba!d"), *good)
    assert isinstance(bad.error, InternalError)
    assert [r.text for r in replies] == [alone(r) for r in good]


async def test_closing_fails_what_is_open() -> None:
    runner = FakeRunner(n_ctx_seq=100_000)
    async with engine_over(runner) as engine:
        reply = ask(engine, request("abc", max_tokens=90_000))
        await reply.step()
        await engine.close()
        await reply.ended.wait()
        assert isinstance(reply.error, ShuttingDown)
        with pytest.raises(ShuttingDown):
            ask(engine, request("abc"))


async def test_an_unexpected_exception_ends_requests_but_not_the_engine() -> None:
    broken = [True]

    def explode(entries: object) -> None:
        if broken:
            broken.pop()
            raise ZeroDivisionError("a bug")

    async with engine_over(FakeRunner(on_decode=explode)) as engine:
        (reply,) = await run(engine, request("abc"))
        assert isinstance(reply.error, InternalError)
        assert "ZeroDivision" not in reply.error.message
        (reply,) = await run(engine, request("abc"))
        assert reply.text == alone(request("abc"))


@pytest.mark.parametrize("partial_removal", [True, False])
async def test_a_request_with_several_choices_at_fault_fails_alone_and_once(partial_removal: bool) -> None:
    def refuse(entries: Sequence[BatchEntry]) -> None:
        said = [e.sequence for e in entries if isinstance(e, TokenRun) and e.sequence.request.id == "bad"]
        if any(len(sequence.output) > 2 for sequence in said):
            raise InternalError("llama_decode failed (-1)")

    runner = FakeRunner(n_seq=4, on_decode=refuse, partial_removal=partial_removal)
    good = request("good", max_tokens=60)
    async with engine_over(runner) as engine:
        bad, reply = await run(engine, request("bad", n=3, max_tokens=60), good)
    assert [type(event) for event in bad.events].count(Failed) == 1
    assert reply.text == alone(good)
