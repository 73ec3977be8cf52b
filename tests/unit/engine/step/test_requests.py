"""Which requests an instance takes from the `ModelQueue` (without step threads), and time limits (with engines)."""

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
from tests.unit.engine.builders import Gate, engine_over, expected_text, request, run, submit

pytestmark = pytest.mark.timeout(60)


class FirstInstance:
    """The queue and the requests of the first of two instances, without step threads."""

    def __init__(self, n_seq: int = 1) -> None:
        self.queue = ModelQueue(asyncio.get_running_loop(), 2, n_seq)
        self.scheduler = Scheduler(FakeRunner(n_seq=n_seq).info, EngineParams(), self.queue.counters)
        snapshots = Snapshots(self.scheduler, lambda: 0.0, 0)
        self.requests = Requests(self.scheduler, self.queue, 0, EngineStats(), lambda: 0.0, snapshots)

    def add(self, text: str, *, instance: int = 0, **options: Any) -> Ticket:
        """Queue a request that prefers `instance`."""
        ticket = Ticket(request(text, **options), lambda events: None, 0.0, instance=instance)
        assert self.queue.add(ticket)
        return ticket

    def receive(self) -> list[Ticket]:
        """Receive requests, and return the tickets that this took from the queue."""
        waiting = [ticket for ticket in self.queue.open.values() if not ticket.taken]
        self.requests.receive()
        return [ticket for ticket in waiting if ticket.taken]


async def test_request_is_taken_with_all_its_choices_although_they_exceed_the_free_slots() -> None:
    instance = FirstInstance(n_seq=2)
    several, other = instance.add("several", n=3), instance.add("other")
    assert instance.receive() == [several]
    assert (instance.scheduler.n_free, len(instance.scheduler.waiting), instance.queue.n_load) == (-1, 3, 4)
    assert instance.queue.expected(0) == [other]


async def test_request_is_taken_by_another_instance_when_its_preferred_one_is_full() -> None:
    instance = FirstInstance()
    first, second = (instance.add(f"cached in the other {i}", instance=1) for i in range(2))
    assert instance.receive() == [second]
    assert instance.queue.take(1, 1) == [first]


async def test_background_requests_use_all_instances_and_their_slots_are_free_for_live_ones() -> None:
    instance = FirstInstance()
    first, second = (instance.add(f"background {i}", priority=BACKGROUND_PRIORITY) for i in range(2))
    assert instance.receive() == [first]
    assert instance.receive() == []
    assert instance.queue.take(1, 1) == [second]
    live = instance.add("live")
    assert instance.receive() == [live]


async def test_background_request_is_never_taken_before_a_live_one() -> None:
    instance = FirstInstance()
    instance.add("background", priority=BACKGROUND_PRIORITY)
    for i in range(2 * MAX_BYPASSES):  # one placement in `MAX_BYPASSES` ignores priority
        live = instance.add(f"live {i}")
        assert instance.queue.take(0, 1) == [live]
        instance.queue.left([live])


async def test_urgent_requests_taken_in_pairs_do_not_starve_others() -> None:
    instance = FirstInstance(n_seq=2)
    low = instance.add("low", priority=5)
    for _ in range(MAX_BYPASSES):
        instance.add("urgent")
        instance.add("urgent")
        instance.queue.left(instance.queue.take(0, 2))
    assert low.taken


async def test_only_one_of_the_requests_taken_together_ignores_priority() -> None:
    instance = FirstInstance(n_seq=4)
    low = [instance.add("low", client="low", priority=10) for _ in range(4)]
    for _ in range(MAX_BYPASSES - 1):
        urgent = instance.add("urgent", client="urgent")
        instance.queue.counters.serve("urgent", 1.0)
        assert instance.queue.take(0, 1) == [urgent]
    urgents = [instance.add("urgent", client="urgent") for _ in range(3)]
    assert instance.queue.take(0, 4) == [low[0], *urgents]


async def test_closed_instance_keeps_queued_requests_for_its_slots_and_new_ones_are_refused() -> None:
    instance = FirstInstance()
    bound, free = instance.add("bound", id_slot=0), instance.add("free")
    instance.queue.close(0)
    assert bound.taken
    assert not instance.queue.add(Ticket(request("late", id_slot=0), lambda events: None, 0.0))
    assert instance.receive() == []
    assert instance.queue.take(1, 1) == [free]
    assert instance.queue.n_load == 2


# ---- time limits


async def test_queue_timeout_ends_waiting_requests_during_a_step_but_not_running_ones() -> None:
    clock, gate = Clock(), Gate()
    async with engine_over(FakeRunner(n_seq=1, on_decode=gate), clock=clock, queue_timeout_s=5.0) as engine:
        running = submit(engine, request("first"))
        await gate.wait_entered()
        clock.now = 4.0
        waiting = [submit(engine, request(name)) for name in ("second", "third")]
        clock.now = 9.1
        for reply in waiting:
            await reply.ended.wait()
            assert isinstance(reply.error, TooLate)
            assert str(reply.error) == "no slot was free within 5 s, retry in 5 s"
        gate.opened.set()
        await running.ended.wait()
        await engine.wait_idle()
        waited = engine.stats.queue_time
        assert sum(waited.counts) == 3
        assert waited.sum == pytest.approx(2 * 5.1)
        assert (running.error, running.text) == (None, expected_text(request("first")))


@pytest.mark.parametrize("n", [1, 3])
async def test_request_timeout_ends_a_running_request(n: int) -> None:
    clock, steps = Clock(), threading.Semaphore(0)
    async with engine_over(FakeRunner(n_seq=2, steps=steps), clock=clock, request_timeout_s=5.0) as engine:
        late = submit(engine, request("x", max_tokens=200, n=n))
        steps.release(5)
        clock.now = 5.1
        await late.ended.wait()
        assert isinstance(late.error, TooLate)
        assert "was not done within 5 s" in str(late.error)
        steps.release(400)
        await engine.wait_idle()
        assert sum(engine.stats.request_duration.counts) == 1
        clock.now = 6.0
        (next_reply,) = await run(engine, request("next"))
        assert next_reply.text == expected_text(request("next"))


async def test_request_can_only_shorten_the_time_limits_of_its_model() -> None:
    clock = Clock(20.0)

    async def outcome(**fields: float) -> str:
        """Return the error, or "None", of a request that arrived 8 seconds ago."""
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


async def test_first_token_timeout_does_not_end_a_request_that_generates() -> None:
    clock, steps = Clock(), threading.Semaphore(0)
    async with engine_over(FakeRunner(steps=steps), clock=clock) as engine:
        reply = submit(engine, request("x", max_tokens=20, first_token_timeout_s=5.0))
        steps.release(3)
        await reply.next_step()
        clock.now = 50.0
        engine._expire()  # normally called ten times a second
        steps.release(100)
        await reply.ended.wait()
        assert (reply.error, reply.text) == (None, expected_text(request("x", max_tokens=20)))
