"""A step that does not end takes its model away and nothing else: requests end, stacks are logged, the rest goes on."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.runner_api import BatchEntry
from server.errors import InternalError, Unavailable
from tests.support.fakes import FakeRunner
from tests.unit.clock import Clock
from tests.unit.engine.builders import Reply, alone, request, run

pytestmark = pytest.mark.timeout(60)
LIMIT_S = 10.0


class Hang:
    """Decodes that don't come back until the test ends; ``begun`` once one is there."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self, _entries: Sequence[BatchEntry]) -> None:
        self.begun.set()
        assert self.end.wait(60)


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    monkeypatch.setattr("server.engine.instances.JOIN_POLL_S", 0.01)
    made = Hang()
    yield made
    made.end.set()


@asynccontextmanager
async def hanging(hang: Hang, *others: FakeRunner) -> AsyncIterator[tuple[Engine, Clock, asyncio.Future[list[Reply]]]]:
    """An engine whose first instance hangs in its first step, and the clock that the watchdog reads."""
    clock = Clock()
    runner = FakeRunner(n_seq=1, on_decode=hang)
    params = EngineParams(gather_ms=0.0)
    engine = Engine((runner, *others), params, asyncio.get_running_loop(), clock)
    asked = asyncio.ensure_future(run(engine, request("one")))
    assert await asyncio.to_thread(hang.begun.wait, 60)
    for other in engine._instances[1:]:  # at rest from here on: it looked when the request came, and finds nobody now
        before = other.heartbeat
        other.wake()
        while not (other.at_rest and other.heartbeat > before):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
    try:
        yield engine, clock, asked
    finally:
        hang.end.set()
        for instance in engine._instances:
            instance.stop()
            assert await asyncio.to_thread(instance.join, 60)


async def test_a_step_that_hangs_ends_its_requests_and_fails_the_model(
    hang: Hang, caplog: pytest.LogCaptureFixture
) -> None:
    async with hanging(hang) as (engine, clock, asked):
        engine.check_progress(LIMIT_S)
        clock.now = LIMIT_S - 1
        engine.check_progress(LIMIT_S)
        assert engine.serves
        assert not asked.done()
        clock.now = LIMIT_S + 1
        engine.check_progress(LIMIT_S)
        (reply,) = await asked
        assert isinstance(reply.error, InternalError)
        assert "no step has ended for 11 s" in str(reply.error)
        assert engine.hangs
        assert not engine.serves
        assert not engine.busy
        assert (engine.stats.n_processing, engine.stats.n_deferred) == (0, 0)
        assert "in __call__" in caplog.text  # where the thread is
        assert "llamapool-step" in caplog.text
        with pytest.raises(Unavailable, match="no step has ended"):
            await run(engine, request("two"))
        with pytest.raises(InternalError, match="can't be freed"):
            await engine.close()


async def test_other_instances_go_on(hang: Hang) -> None:
    async with hanging(hang, FakeRunner(n_seq=1)) as (engine, clock, asked):
        for clock.now in (0.0, LIMIT_S + 1):
            engine.check_progress(LIMIT_S)
        await asked
        assert engine.serves
        (reply,) = await run(engine, request("two"))
        assert reply.text == alone(request("two"))
        assert await engine.reset_cache() > len("two")
        with pytest.raises(InternalError, match="no step has ended"):
            await run(engine, request("three", id_slot=0))  # to the one that hangs
