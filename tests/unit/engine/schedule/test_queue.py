"""Whose turn it is for a slot, and which requests may join a full queue."""

import threading

import pytest

from server.engine.queue import MAX_BYPASSES, Queue, TokenCounters, has_place
from server.engine.request import Request
from server.engine.sequence import Sequence, Ticket
from server.errors import QueueFull
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import ask, engine_over, request, sequence


class Named:
    """A queue whose requests are named by their prompts."""

    def __init__(self, most: int = 100) -> None:
        self.counters = TokenCounters(most)
        self.waiting: Queue[Sequence] = Queue(self.counters)
        self.n = 0

    def ask(self, client: str = "", *, priority: int = 0) -> Sequence:
        self.n += 1
        self.counters.asks(client, again=not self.waiting.has(client))
        self.waiting.append(made := sequence([self.n], at=float(self.n), client=client, priority=priority))
        return made

    def take(self, cost: float = 0.0) -> Sequence:
        """Place who is first; its client is charged."""
        first = next(self.waiting.candidates())
        self.waiting.place(first)
        self.counters.chose(first.request.client)
        self.counters.serve(first.request.client, cost)
        return first

    def drain(self, cost: float = 0.0) -> list[Sequence]:
        return [self.take(cost) for _ in range(len(self.waiting))]


def test_one_client_without_priorities_has_a_plain_queue() -> None:
    q = Named()
    asked = [q.ask() for _ in range(20)]
    assert list(q.waiting.candidates()) == asked
    assert q.drain(cost=100.0) == asked
    assert not len(q.waiting)


def test_who_floods_the_queue_shares_with_who_comes_later() -> None:
    q = Named()
    flood = [q.ask("flood") for _ in range(50)]
    assert [q.take(100.0) for _ in range(10)] == flood[:10]
    few = [q.ask("few") for _ in range(3)]
    taken = [q.take(100.0) for _ in range(6)]
    assert [s for s in taken if s.request.client == "few"] == few


def test_a_preempted_choice_resumes_before_others_of_its_priority() -> None:
    q = Named()
    preempted = q.ask("a")
    q.take(1000.0)
    other, urgent = q.ask("b"), q.ask("b", priority=-1)
    q.waiting.requeue(preempted)
    assert preempted in q.waiting
    assert q.drain() == [urgent, preempted, other]


def test_urgent_requests_without_end_do_not_starve_the_rest() -> None:
    q = Named()
    patient = q.ask(priority=100)
    preempted = q.ask(priority=100)
    q.waiting.remove(preempted)
    q.waiting.requeue(preempted)
    taken = []
    for _ in range(2 * MAX_BYPASSES):
        q.ask(priority=-100)
        taken.append(q.take(1.0))
    assert {patient, preempted} <= set(taken)
    assert len([s for s in taken if s.request.priority == 100]) == 2


def test_a_request_that_does_not_fit_when_priorities_do_not_count_stays_first() -> None:
    q = Named()
    large = q.ask(priority=100)
    for _ in range(MAX_BYPASSES - 1):
        q.ask()
        assert q.take() is not large
    for _ in range(2):
        urgent = q.ask()
        assert next(q.waiting.candidates()) is large
        q.waiting.place(urgent)


def test_a_request_that_cannot_be_placed_starves_no_other_and_priority_counts_again_after_one_placement() -> None:
    q = Named()
    q.ask("stuck", priority=5)
    for _ in range(MAX_BYPASSES):
        q.ask("later", priority=5)
    n_later = 0
    for _ in range(2 * MAX_BYPASSES):
        q.ask("urgent")
        first = next(s for s in q.waiting.candidates() if s.request.client != "stuck")
        q.waiting.place(first)
        q.counters.serve(first.request.client, 1.0)
        n_later += first.request.client == "later"
    assert n_later == 2


@pytest.mark.parametrize("n", [5, 500])
def test_clients_are_remembered_up_to_a_bound(n: int) -> None:
    q = Named(most=100)
    for i in range(n):
        q.ask(f"client {i}")
    assert len(q.counters) == min(n, 100)
    assert len(q.drain(1.0)) == n


def test_who_comes_back_begins_now() -> None:
    counters = TokenCounters()
    counters.serve("pauses", 10.0)
    counters.serve("works", 100.0)
    counters.chose("works")
    counters.asks("pauses", again=True)
    assert counters.served("pauses") == counters.served("works") == counters.served("new") == 100.0
    counters.asks("works", again=True)
    assert counters.served("works") == 100.0


def asked(client: str = "a", *, priority: int = 0, n: int = 1) -> Request:
    return Request("r", [1], client=client, priority=priority, n=n)


def queue(*requests: Request) -> list[Ticket]:
    return [Ticket(one, lambda events: None, 0.0) for one in requests]


def test_choices_count_not_requests() -> None:
    assert not has_place(asked(), queue(asked(n=7), asked(n=3)), n_slots=2, max_queue=8)


@pytest.mark.parametrize(
    ("more", "n", "later"),
    [(asked("b"), 5, asked("c")), (asked(priority=-1), 4, asked("b", priority=5))],
    ids=["another client", "an urgent request"],
)
def test_who_gets_into_a_queue_that_one_client_has_filled_leaves_places(more: Request, n: int, later: Request) -> None:
    waiting = queue(*[asked()] * 10)
    n_admitted = 0
    while has_place(more, waiting, n_slots=2, max_queue=8):
        waiting += queue(more)
        n_admitted += 1
    assert n_admitted == n
    assert has_place(later, waiting, n_slots=2, max_queue=8)
    assert not has_place(asked("a"), waiting, n_slots=2, max_queue=8)


def test_twice_the_queue_is_the_end_for_everybody() -> None:
    waiting = queue(*(asked(f"{i}") for i in range(18)))
    assert not has_place(asked("new", priority=-10), waiting, n_slots=2, max_queue=8)
    assert has_place(asked("new"), waiting[1:], n_slots=2, max_queue=8)


async def test_a_flood_of_one_client_is_refused_and_others_are_served() -> None:
    runner = FakeRunner(n_seq=1, steps=threading.Semaphore(0))
    async with engine_over(runner, max_queue=6) as engine:
        streams = [ask(engine, request(f"{i}", client="flood")) for i in range(7)]
        with pytest.raises(QueueFull, match=r"\(6 waiting, limited by max_queue\)") as full:
            ask(engine, request("one too many", client="flood"))
        assert full.value.retry_after_s >= 1
        streams += [ask(engine, request(name, client=name)) for name in ("other", "third")]
        streams.append(ask(engine, request("urgent", client="flood", priority=-10)))
        assert runner.steps is not None
        runner.steps.release(10_000)
        for stream in streams:
            await stream.ended.wait()
        assert not engine.busy
