"""Requests of an instance: which ones it takes, and when they end."""

import asyncio
import threading
from typing import Any

import pytest

from server.engine.params import EngineParams
from server.engine.queue import MAX_BYPASSES
from server.engine.request import BACKGROUND_PRIORITY
from server.engine.scheduler import Scheduler
from server.engine.sequence import Ticket
from server.engine.snapshots import Snapshots
from server.engine.stats import EngineStats
from server.engine.tickets import ModelQueue, Requests
from server.errors import TooLate
from tests.support.fakes import FakeRunner
from tests.unit.clock import Clock
from tests.unit.engine.builders import alone, ask, engine_over, request, run

pytestmark = pytest.mark.timeout(60)


class Desk:
    """The tickets of the first of two instances, without its thread."""

    def __init__(self, n_seq: int = 1) -> None:
        self.queue = ModelQueue(asyncio.get_running_loop(), 2, n_seq)
        self.scheduler = Scheduler(FakeRunner(n_seq=n_seq).info, EngineParams(), self.queue.counters)
        snapshots = Snapshots(self.scheduler, lambda: 0.0, 0)
        self.requests = Requests(self.scheduler, self.queue, 0, EngineStats(), lambda: 0.0, snapshots)

    def ask(self, text: str, *, instance: int = 0, **options: Any) -> Ticket:
        ticket = Ticket(request(text, **options), lambda events: None, 0.0, instance=instance)
        assert self.queue.add(ticket)
        return ticket

    def receive(self) -> list[Ticket]:
        """Who is new here."""
        waiting = [ticket for ticket in self.queue.open.values() if not ticket.taken]
        self.requests.receive()
        return [ticket for ticket in waiting if ticket.taken]


async def test_choices_count_and_a_request_is_taken_whole() -> None:
    desk = Desk(n_seq=2)
    several, other = desk.ask("several", n=3), desk.ask("other")
    assert desk.receive() == [several]
    assert (desk.scheduler.n_free, len(desk.scheduler.waiting), desk.queue.n_load) == (-1, 3, 4)
    assert desk.queue.expected(0) == [other]


async def test_a_request_is_taken_elsewhere_once_the_instance_that_it_prefers_is_full() -> None:
    desk = Desk()
    first, second = (desk.ask(f"cached in the other {i}", instance=1) for i in range(2))
    assert desk.receive() == [second]
    assert desk.queue.take(1, 1) == [first]


async def test_a_batch_uses_all_instances_and_its_slots_are_free_for_live_requests() -> None:
    desk = Desk()
    first, second = (desk.ask(f"batch {i}", priority=BACKGROUND_PRIORITY) for i in range(2))
    assert desk.receive() == [first]
    assert desk.receive() == []
    assert desk.queue.take(1, 1) == [second]
    live = desk.ask("live")
    assert desk.receive() == [live]


async def test_a_batch_request_is_never_taken_before_a_live_one() -> None:
    desk = Desk()
    desk.ask("batch", priority=BACKGROUND_PRIORITY)
    for i in range(2 * MAX_BYPASSES):  # one placement in `MAX_BYPASSES` ignores priority
        live = desk.ask(f"live {i}")
        assert desk.queue.take(0, 1) == [live]
        desk.queue.left([live])


async def test_urgent_requests_that_are_taken_in_pairs_do_not_starve_the_rest() -> None:
    desk = Desk(n_seq=2)
    patient = desk.ask("patient", priority=5)
    for _ in range(MAX_BYPASSES):
        desk.ask("urgent")
        desk.ask("urgent")
        desk.queue.left(desk.queue.take(0, 2))
    assert patient.taken


async def test_priority_is_ignored_for_one_request_of_those_that_are_taken_together() -> None:
    desk = Desk(n_seq=4)
    patient = [desk.ask("patient", client="patient", priority=10) for _ in range(4)]
    for _ in range(MAX_BYPASSES - 1):
        urgent = desk.ask("urgent", client="urgent")
        desk.queue.counters.serve("urgent", 1.0)
        assert desk.queue.take(0, 1) == [urgent]
    urgents = [desk.ask("urgent", client="urgent") for _ in range(3)]
    assert desk.queue.take(0, 4) == [patient[0], *urgents]


async def test_who_names_an_instance_that_takes_no_more_is_its_own_or_refused() -> None:
    desk = Desk()
    bound, free = desk.ask("bound", id_slot=0), desk.ask("free")
    desk.queue.close(0)
    assert bound.taken
    assert not desk.queue.add(Ticket(request("late", id_slot=0), lambda events: None, 0.0))
    assert desk.receive() == []
    assert desk.queue.take(1, 1) == [free]
    assert desk.queue.n_load == 2


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
        for waiting in (second, third):  # also while a step runs
            (late,) = await waiting
            assert isinstance(late.error, TooLate)
            assert str(late.error) == "no slot was free within 5 s, retry in 5 s"
        goes_on.set()
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
        (reply,) = await asked
        assert isinstance(reply.error, TooLate)
        assert "was not done within 5 s" in str(reply.error)
        for _ in range(400):
            steps.release()
        await engine.wait_idle()
        assert sum(engine.stats.request_duration.counts) == 1
        clock.now = 6.0
        (after,) = await run(engine, request("after"))
        assert after.text == alone(request("after"))


async def test_a_request_shortens_the_limits_of_its_model_only_for_itself() -> None:
    clock = Clock()
    clock.now = 20.0

    async def outcome(**fields: float) -> str:
        """Return how a request ended that arrived eight seconds ago."""
        try:
            (reply,) = await run(engine, request("x", arrived_at=clock.now - 8.0, **fields))
        except TooLate as error:
            return str(error)
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
        reply = ask(engine, request("x", max_tokens=20, first_token_timeout_s=5.0))
        steps.release(3)
        await reply.step()
        clock.now = 50.0
        engine._expire()  # as ten times a second
        steps.release(100)
        await reply.ended.wait()
        assert (reply.error, reply.text) == (None, alone(request("x", max_tokens=20)))
