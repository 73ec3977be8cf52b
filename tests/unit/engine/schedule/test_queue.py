"""The order of waiting requests (priority, fairness between clients) and admission to a full queue. Pure, except
for the last test.
"""

import threading

import pytest

from server.engine.queue import MAX_BYPASSES, Queue, TokenCounters, has_place
from server.engine.request import Request
from server.engine.sequence import Sequence, Ticket
from server.errors import QueueFull
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, sequence, submit


class QueueOfClients:
    """A queue with its virtual token counters; each request has its own prompt and arrives later than the others."""

    def __init__(self, max_clients: int = 100) -> None:
        self.counters = TokenCounters(max_clients)
        self.waiting: Queue[Sequence] = Queue(self.counters)
        self._n = 0

    def add(self, client: str = "", *, priority: int = 0) -> Sequence:
        self._n += 1
        self.counters.record_request(client, had_none=not self.waiting.has(client))
        self.waiting.append(made := sequence([self._n], at=float(self._n), client=client, priority=priority))
        return made

    def place(self, cost: float = 0.0) -> Sequence:
        """Place the first in the queue, and charge its client."""
        first = next(self.waiting.candidates())
        self.waiting.place(first)
        self.counters.record_placement(first.request.client)
        self.counters.serve(first.request.client, cost)
        return first

    def place_all(self, cost: float = 0.0) -> list[Sequence]:
        return [self.place(cost) for _ in range(len(self.waiting))]


def test_one_client_without_priorities_is_served_in_order_of_arrival() -> None:
    q = QueueOfClients()
    added = [q.add() for _ in range(20)]
    assert list(q.waiting.candidates()) == added
    assert q.place_all(cost=100.0) == added
    assert not len(q.waiting)


def test_client_that_floods_the_queue_shares_with_one_that_arrives_later() -> None:
    q = QueueOfClients()
    flood = [q.add("flood") for _ in range(50)]
    assert [q.place(100.0) for _ in range(10)] == flood[:10]
    few = [q.add("few") for _ in range(3)]
    placed = [q.place(100.0) for _ in range(6)]
    assert [s for s in placed if s.request.client == "few"] == few


def test_preempted_choice_resumes_before_others_of_its_priority() -> None:
    q = QueueOfClients()
    preempted = q.add("a")
    q.place(1000.0)
    other, urgent = q.add("b"), q.add("b", priority=-1)
    q.waiting.requeue(preempted)
    assert preempted in q.waiting
    assert q.place_all() == [urgent, preempted, other]


def test_urgent_requests_without_end_starve_neither_waiting_nor_preempted_ones() -> None:
    q = QueueOfClients()
    waiting = q.add(priority=100)
    preempted = q.add(priority=100)
    q.waiting.remove(preempted)
    q.waiting.requeue(preempted)
    placed = []
    for _ in range(2 * MAX_BYPASSES):
        q.add(priority=-100)
        placed.append(q.place(1.0))
    assert {waiting, preempted} <= set(placed)
    assert len([s for s in placed if s.request.priority == 100]) == 2


def test_request_that_does_not_fit_when_priority_is_ignored_stays_first() -> None:
    q = QueueOfClients()
    large = q.add(priority=100)
    for _ in range(MAX_BYPASSES - 1):
        q.add()
        assert q.place() is not large
    for _ in range(2):
        urgent = q.add()
        assert next(q.waiting.candidates()) is large
        q.waiting.place(urgent)


def test_one_placement_in_eight_ignores_priority_even_if_the_first_does_not_fit() -> None:
    q = QueueOfClients()
    q.add("unplaceable", priority=5)
    for _ in range(MAX_BYPASSES):
        q.add("low", priority=5)
    n_low = 0
    for _ in range(2 * MAX_BYPASSES):
        q.add("urgent")
        first = next(s for s in q.waiting.candidates() if s.request.client != "unplaceable")
        q.waiting.place(first)
        q.counters.serve(first.request.client, 1.0)
        n_low += first.request.client == "low"
    assert n_low == 2


@pytest.mark.parametrize("n", [5, 500])
def test_number_of_remembered_clients_is_bounded(n: int) -> None:
    q = QueueOfClients(max_clients=100)
    for i in range(n):
        q.add(f"client {i}")
    assert len(q.counters) == min(n, 100)
    assert len(q.place_all(1.0)) == n


def test_client_that_returns_after_a_pause_starts_at_the_current_virtual_time() -> None:
    counters = TokenCounters()
    counters.serve("pauses", 10.0)
    counters.serve("continues", 100.0)
    counters.record_placement("continues")
    counters.record_request("pauses", had_none=True)
    assert counters.served("pauses") == counters.served("continues") == counters.served("new") == 100.0
    counters.record_request("continues", had_none=True)
    assert counters.served("continues") == 100.0


# ---- admission


def request_of(client: str = "a", *, priority: int = 0, n: int = 1) -> Request:
    return Request("r", [1], client=client, priority=priority, n=n)


def tickets(*requests: Request) -> list[Ticket]:
    return [Ticket(one, lambda events: None, 0.0) for one in requests]


def test_admission_counts_choices_not_requests() -> None:
    assert not has_place(request_of(), tickets(request_of(n=7), request_of(n=3)), n_slots=2, max_queue=8)


@pytest.mark.parametrize(
    ("new", "n", "later"),
    [(request_of("b"), 5, request_of("c")), (request_of(priority=-1), 4, request_of("b", priority=5))],
    ids=["another client", "an urgent request"],
)
def test_queue_filled_by_one_client_admits_a_bounded_number_of_others(new: Request, n: int, later: Request) -> None:
    open_ = tickets(*[request_of()] * 10)
    n_admitted = 0
    while has_place(new, open_, n_slots=2, max_queue=8):
        open_ += tickets(new)
        n_admitted += 1
    assert n_admitted == n
    assert has_place(later, open_, n_slots=2, max_queue=8)
    assert not has_place(request_of("a"), open_, n_slots=2, max_queue=8)


def test_no_request_is_admitted_beyond_twice_the_queue() -> None:
    open_ = tickets(*(request_of(f"{i}") for i in range(18)))
    assert not has_place(request_of("new", priority=-10), open_, n_slots=2, max_queue=8)
    assert has_place(request_of("new"), open_[1:], n_slots=2, max_queue=8)


async def test_engine_refuses_a_client_that_fills_the_queue_and_serves_others() -> None:
    runner = FakeRunner(n_seq=1, steps=threading.Semaphore(0))
    async with engine_over(runner, max_queue=6) as engine:
        replies = [submit(engine, request(f"{i}", client="flood")) for i in range(7)]
        with pytest.raises(QueueFull, match=r"\(6 waiting, limited by max_queue\)") as full:
            submit(engine, request("one too many", client="flood"))
        assert full.value.retry_after_s >= 1
        replies += [submit(engine, request(name, client=name)) for name in ("other", "third")]
        replies.append(submit(engine, request("urgent", client="flood", priority=-10)))
        assert runner.steps is not None
        runner.steps.release(10_000)
        for reply in replies:
            await reply.ended.wait()
        assert not engine.busy
