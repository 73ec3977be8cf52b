"""Who may still join a queue that is full."""

import threading

import pytest

from server.engine.queue import admits
from server.engine.request import Request
from server.engine.sequence import Ticket
from server.errors import QueueFull
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request
from tests.unit.engine.events import events_of


def asked(client: str = "a", *, priority: int = 0, n: int = 1) -> Request:
    return Request("r", [1], client=client, priority=priority, n=n)


def queue(*requests: Request) -> list[Ticket]:
    return [Ticket(one, lambda events: None, 0.0) for one in requests]


def test_choices_count_not_requests() -> None:
    assert not admits(asked(), queue(asked(n=7), asked(n=3)), n_slots=2, max_queue=8)


def test_others_get_in_up_to_their_share_when_one_client_has_filled_the_queue() -> None:
    waiting = queue(*[asked()] * 10)
    n_admitted = 0
    while admits(asked("b"), waiting, n_slots=2, max_queue=8):
        waiting += queue(asked("b"))
        n_admitted += 1
    assert n_admitted == 5
    assert admits(asked("c"), waiting, n_slots=2, max_queue=8)
    assert not admits(asked("a"), waiting, n_slots=2, max_queue=8)


def test_twice_the_queue_is_the_end_for_everybody() -> None:
    waiting = queue(*(asked(f"{i}") for i in range(18)))
    assert not admits(asked("new", priority=-10), waiting, n_slots=2, max_queue=8)
    assert admits(asked("new"), waiting[1:], n_slots=2, max_queue=8)


def test_what_is_urgent_gets_in_beside_its_client_s_own_flood_and_leaves_a_place_for_others() -> None:
    waiting = queue(*[asked()] * 10)
    n_admitted = 0
    while admits(asked(priority=-1), waiting, n_slots=2, max_queue=8):
        waiting += queue(asked(priority=-1))
        n_admitted += 1
    assert n_admitted == 4
    assert admits(asked("b", priority=5), waiting, n_slots=2, max_queue=8)


async def test_a_flood_of_one_client_is_refused_and_others_are_served() -> None:
    runner = FakeRunner(n_seq=1, steps=threading.Semaphore(0))
    async with engine_over(runner, max_queue=6) as engine:
        streams = [events_of(engine, request(f"{i}", client="flood")) for i in range(7)]
        with pytest.raises(QueueFull) as full:
            events_of(engine, request("one too many", client="flood"))
        assert full.value.retry_after_s >= 1
        streams += [events_of(engine, request(name, client=name)) for name in ("other", "third")]
        streams.append(events_of(engine, request("urgent", client="flood", priority=-10)))
        assert runner.steps is not None
        runner.steps.release(10_000)
        for stream in streams:
            async for _ in stream:
                pass
        assert not engine.busy
