"""A request whose placement fails ends there: told once, never tried again, with nothing left behind."""

import pytest

from harness.fakes import FakeRunner
from server.engine.prefix.find import Placement
from server.engine.request import Failed
from server.errors import InternalError
from tests.unit.engine.builders import engine_over, request, run


@pytest.mark.timeout(60)
async def test_one_that_many_had_passed_is_told_once_and_not_placed_again() -> None:
    tried = 0
    async with engine_over(FakeRunner(n_seq=2, n_cells=4000, unified=True)) as engine:
        (instance,) = engine._instances
        prepare, room = instance._cells.prepare, instance.scheduler.room

        def fails(placement: Placement, now: float) -> None:
            nonlocal tried
            if placement.sequence.request.id != "broken":
                return prepare(placement, now)
            tried += 1
            room.due.append(placement.sequence)
            raise InternalError("it broke")

        instance._cells.prepare = fails  # type: ignore[method-assign]
        broken, fine = await run(engine, request("broken"), request("fine"))
        (later,) = await run(engine, request("later"))
        assert [type(event) for event in broken.events] == [Failed]
        assert (fine.error, later.error, tried) == (None, None, 1)


@pytest.mark.timeout(60)
async def test_a_parked_one_that_cannot_come_back_leaves_no_sampler_open() -> None:
    runner = FakeRunner(n_seq=2, n_ctx_seq=1000, n_cells=1000, unified=True, n_batch=512)
    async with engine_over(runner) as engine:
        (instance,) = engine._instances
        prepare = instance._cells.prepare

        def fails(placement: Placement, now: float) -> None:
            if placement.sequence.n_cached >= 0:
                raise InternalError("it broke")
            prepare(placement, now)

        instance._cells.prepare = fails  # type: ignore[method-assign]
        replies = await run(engine, *(request(letter * 400, max_tokens=300) for letter in "ab"))
        assert engine.stats.n_parked == 1
        assert sorted(str(reply.error) for reply in replies) == ["None", "it broke"]
        assert all(sampler.closed for sampler in runner.samplers)
