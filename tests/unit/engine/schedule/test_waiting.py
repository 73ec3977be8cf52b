"""Whose turn it is for a slot: priorities, and shares between clients."""

import pytest

from server.engine.queue import MAX_BYPASSES, Queue, TokenCounters
from server.engine.sequence import Sequence
from tests.unit.engine.builders import sequence


class Named:
    """A queue whose requests are named by their prompts."""

    def __init__(self, most: int = 100) -> None:
        self.counters = TokenCounters(most)
        self.waiting = Queue(self.counters)
        self.n = 0

    def ask(self, client: str = "", *, priority: int = 0) -> Sequence:
        self.n += 1
        self.waiting.append(made := sequence([self.n], at=float(self.n), client=client, priority=priority))
        return made

    def take(self, cost: float = 0.0) -> Sequence:
        """Place who is first; its client is charged."""
        first = next(self.waiting.candidates())
        self.waiting.place(first)
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


def test_a_lower_number_goes_first() -> None:
    q = Named()
    late, normal, urgent = q.ask(priority=5), q.ask(), q.ask(priority=-1)
    assert q.drain() == [urgent, normal, late]


def test_who_floods_the_queue_shares_with_who_comes_later() -> None:
    q = Named()
    flood = [q.ask("flood") for _ in range(50)]
    assert [q.take(100.0) for _ in range(10)] == flood[:10]
    few = [q.ask("few") for _ in range(3)]
    taken = [q.take(100.0) for _ in range(6)]
    assert [s for s in taken if s.request.client == "few"] == few


def test_a_pause_saves_up_nothing() -> None:
    q = Named()
    q.ask("pauses")
    q.take(1.0)
    for _ in range(10):
        q.ask("works")
        q.take(100.0)
    works, back = [q.ask("works") for _ in range(4)], [q.ask("pauses") for _ in range(4)]
    taken = [q.take(100.0) for _ in range(4)]
    assert {works[0], works[1], back[0], back[1]} == set(taken)


def test_a_parked_choice_comes_back_before_others_of_its_priority() -> None:
    q = Named()
    preempted = q.ask("a")
    q.take(1000.0)
    other, urgent = q.ask("b"), q.ask("b", priority=-1)
    q.waiting.come_back(preempted)
    assert preempted in q.waiting
    assert q.drain() == [urgent, preempted, other]


def test_urgent_requests_without_end_do_not_starve_the_rest() -> None:
    q = Named()
    patient = q.ask(priority=100)
    preempted = q.ask(priority=100)
    q.waiting.remove(preempted)
    q.waiting.come_back(preempted)
    taken = []
    for _ in range(2 * MAX_BYPASSES):
        q.ask(priority=-100)
        taken.append(q.take(1.0))
    assert {patient, preempted} <= set(taken)
    assert len([s for s in taken if s.request.priority == 100]) == 2


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
