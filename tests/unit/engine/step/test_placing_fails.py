"""What fails on a request's way in or out ends that request at most: told once, never tried again, with nothing left
behind."""

from typing import cast

import pytest

from server.engine.placement import Placement
from server.engine.request import Event, Failed
from server.engine.snapshots import SnapshotPublisher
from server.errors import InternalError
from server.structured.constraint import Constraint
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run


@pytest.mark.timeout(60)
async def test_one_that_many_had_passed_is_told_once_and_not_placed_again() -> None:
    tried = 0
    async with engine_over(FakeRunner(n_seq=2, n_cells=4000, unified=True)) as engine:
        (instance,) = engine._instances
        prepare, room = instance.cells.prepare, instance.scheduler.kv_budget

        def fails(placement: Placement, now: float) -> None:
            nonlocal tried
            if placement.sequence.request.id != "broken":
                return prepare(placement, now)
            tried += 1
            room.due.append(placement.sequence)
            raise InternalError("it broke")

        instance.cells.prepare = fails  # type: ignore[method-assign]
        broken, fine = await run(engine, request("broken"), request("fine"))
        (later,) = await run(engine, request("later"))
        assert [type(event) for event in broken.events] == [Failed]
        assert (fine.error, later.error, tried) == (None, None, 1)
        outcomes = {choice.request: choice.outcome for choice in engine.ended()}
        assert outcomes == {"broken": "failed", "fine": "done", "later": "done"}


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


class Broken:
    """A constraint that has no second copy, by a fault of the program."""

    def fork(self) -> Constraint:
        raise ZeroDivisionError("a bug")


@pytest.mark.timeout(60)
async def test_one_that_can_not_be_queued_takes_nobody_along_who_came_with_it() -> None:
    async with engine_over(FakeRunner(n_seq=4)) as engine:
        asked = [request("broken", n=2, constraint=cast(Constraint, Broken())), request("fine")]
        broken, fine = await run(engine, *asked)
        assert [type(event) for event in broken.events] == [Failed]
        assert fine.error is None
        assert fine.finished


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


@pytest.mark.timeout(60)
async def test_who_looks_ends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def breaks(_self: SnapshotPublisher, slots: object) -> None:
        tried.append(slots)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(SnapshotPublisher, "_shared_prefixes", breaks)
    async with engine_over(FakeRunner(n_seq=2)) as engine:
        engine.watch(wanted=True)
        replies = await run(engine, request("one"), request("two"))
        assert [reply.error for reply in replies] == [None, None]
        assert tried
