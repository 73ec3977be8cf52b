"""Who waits for a slot, or takes in all, longer than the server allows is told so, and nobody else notices."""

import asyncio
import threading

import pytest

from server.errors import TooLate
from tests.support.fakes import FakeRunner
from tests.unit.clock import Clock
from tests.unit.engine.builders import Reply, alone, engine_over, request, run
from tests.unit.engine.events import events_of

pytestmark = pytest.mark.timeout(60)


async def test_who_waits_too_long_for_a_slot_ends_and_who_has_one_does_not() -> None:
    clock, begun, goes_on = Clock(), threading.Event(), threading.Event()

    def decode(_entries: object) -> None:
        begun.set()
        assert goes_on.wait(60)

    async with engine_over(FakeRunner(n_seq=1, on_decode=decode), clock=clock, queue_timeout_s=5.0) as engine:
        first = asyncio.ensure_future(run(engine, request("first")))
        assert await asyncio.to_thread(begun.wait, 60)
        clock.now = 4.0
        second = asyncio.ensure_future(run(engine, request("second")))
        third = asyncio.ensure_future(run(engine, request("third")))
        await asyncio.sleep(0)
        clock.now = 9.1
        goes_on.set()
        for waiting in (second, third):
            (late,) = await waiting
            assert isinstance(late.error, TooLate)
            assert str(late.error) == "no slot was free within 5 s, retry in 5 s"
        (done,) = await first
        assert (done.error, done.text) == (None, alone(request("first")))


@pytest.mark.parametrize("n", [1, 3])
async def test_a_request_that_takes_too_long_ends_in_its_middle(n: int) -> None:
    clock, steps = Clock(), threading.Semaphore(0)
    async with engine_over(FakeRunner(n_seq=2, steps=steps), clock=clock, request_timeout_s=5.0) as engine:
        asked = asyncio.ensure_future(run(engine, request("x", max_tokens=200, n=n)))
        for _ in range(5):
            steps.release()
        await asyncio.sleep(0)
        clock.now = 5.1
        for _ in range(400):
            steps.release()
        (reply,) = await asked
        assert isinstance(reply.error, TooLate)
        assert "was not done within 5 s" in str(reply.error)
        assert not engine.busy
        clock.now = 6.0
        (after,) = await run(engine, request("after"))
        assert after.text == alone(request("after"))


async def test_a_request_shortens_the_limits_of_its_model_only_for_itself() -> None:
    clock = Clock()
    clock.now = 20.0

    async def outcome(**fields: float) -> str:
        """Return how a request ended that arrived eight seconds ago. The limits are checked ten times a second."""
        clock.now += 1.0
        (reply,) = await run(engine, request("x", arrived_at=clock.now - 8.0, **fields))
        return str(reply.error)

    async with engine_over(FakeRunner(), clock=clock, request_timeout_s=7.0) as engine:
        assert await outcome(request_timeout_s=5.0) == "the request was not done within 5 s, retry in 5 s"
        assert await outcome(request_timeout_s=15.0) == "the request was not done within 7 s, retry in 5 s"
    async with engine_over(FakeRunner(), clock=clock) as engine:
        assert await outcome() == "None"
        assert await outcome(request_timeout_s=5.0) == "the request was not done within 5 s, retry in 5 s"
        assert await outcome(first_token_timeout_s=6.0) == "there was no first token within 6 s, retry in 5 s"
        assert await outcome(first_token_timeout_s=9.0, request_timeout_s=9.0) == "None"


async def test_the_first_tokens_limit_does_not_end_a_request_that_generates() -> None:
    clock, steps = Clock(), threading.Semaphore(0)
    async with engine_over(FakeRunner(steps=steps), clock=clock) as engine:
        stream = events_of(engine, request("x", max_tokens=20, first_token_timeout_s=5.0))
        async with stream:
            steps.release(3)
            first = await anext(stream)
            clock.now = 50.0
            steps.release(100)
            reply = Reply()
            reply.add(first)
            async for events in stream:
                reply.add(events)
        assert (reply.error, reply.text) == (None, alone(request("x", max_tokens=20)))
