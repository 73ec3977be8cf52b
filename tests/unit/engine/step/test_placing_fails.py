"""What fails on a request's way in or out ends that request at most: told once, never tried again, with nothing left
behind."""

import pytest

from server.engine.placement import Placement
from server.engine.request import Event
from server.errors import InternalError
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run


@pytest.mark.timeout(60)
async def test_a_parked_one_that_cannot_come_back_leaves_no_sampler_open() -> None:
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


@pytest.mark.timeout(60)
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
