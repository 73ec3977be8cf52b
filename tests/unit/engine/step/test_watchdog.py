"""The watchdog gives up an instance whose step does not end: its requests fail, and other instances continue."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.errors import InternalError, Unavailable
from tests.support.fakes import FakeRunner
from tests.unit.clock import Clock
from tests.unit.engine.builders import Gate, Reply, expected_text, request, run

pytestmark = pytest.mark.timeout(60)
LIMIT_S = 10.0


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate at which decodes hang until the test ends."""
    monkeypatch.setattr("server.engine.instances.JOIN_POLL_S", 0.01)
    made = Gate()
    yield made
    made.opened.set()


@asynccontextmanager
async def hung_engine(
    gate: Gate, *others: FakeRunner
) -> AsyncIterator[tuple[Engine, Clock, asyncio.Task[list[Reply]]]]:
    """Open an engine whose first instance hangs in its first step. Yield it, its clock, and the request that hangs."""
    clock = Clock()
    runner = FakeRunner(n_seq=1, on_decode=gate)
    engine = Engine((runner, *others), EngineParams(gather_ms=0.0), asyncio.get_running_loop(), clock)
    hung = asyncio.create_task(run(engine, request("one")))
    await gate.wait_entered()
    for other in engine._instances[1:]:  # wait until each has looked for requests again and found none
        before = other.heartbeat
        other.wake()
        while not (other.at_rest and other.heartbeat > before):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    try:
        yield engine, clock, hung
    finally:
        gate.opened.set()
        for instance in engine._instances:
            instance.stop()
            assert await asyncio.to_thread(instance.join, 60)


async def test_hung_step_fails_its_requests_and_the_model(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    async with hung_engine(gate) as (engine, clock, hung):
        engine.check_progress(LIMIT_S)
        clock.now = LIMIT_S - 1
        engine.check_progress(LIMIT_S)
        assert engine.serves
        assert not hung.done()
        clock.now = LIMIT_S + 1
        engine.check_progress(LIMIT_S)
        (reply,) = await hung
        assert isinstance(reply.error, InternalError)
        assert "no step has ended for 11 s" in str(reply.error)
        assert engine.hangs
        assert not engine.serves
        assert not engine.busy
        assert (engine.stats.n_processing, engine.stats.n_deferred) == (0, 0)
        assert "in __call__" in caplog.text  # the stack of the step thread ends in `Gate`
        assert "llamapool-step" in caplog.text
        with pytest.raises(Unavailable, match="no step has ended"):
            await run(engine, request("two"))
        with pytest.raises(InternalError, match="can't be freed"):
            await engine.close()


async def test_other_instances_continue_after_one_hangs(gate: Gate) -> None:
    async with hung_engine(gate, FakeRunner(n_seq=1)) as (engine, clock, hung):
        for clock.now in (0.0, LIMIT_S + 1):
            engine.check_progress(LIMIT_S)
        await hung
        assert engine.serves
        (reply,) = await run(engine, request("two"))
        assert reply.text == expected_text(request("two"))
        assert await engine.reset_cache() > len("two")
        with pytest.raises(InternalError, match="no step has ended"):
            await run(engine, request("three", id_slot=0))  # the slot of the hung instance
