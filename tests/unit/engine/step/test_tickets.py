"""What an instance answers when tickets are asked back from it."""

import asyncio

from server.engine.params import EngineParams
from server.engine.schedule.scheduler import Scheduler
from server.engine.sequence import Ticket
from server.engine.stats import EngineStats
from server.engine.step.mailbox import Mailbox, Recall
from server.engine.step.published import Publisher
from server.engine.step.requests import Tickets
from tests.fakes import FakeRunner
from tests.unit.engine.builders import request


class Desk:
    """The tickets of one instance without its thread: what crosses is delivered by the loop's next turn."""

    def __init__(self, n_seq: int = 1) -> None:
        self.n_room = 0
        self.recalled: list[Recall] = []
        self.mailbox = Mailbox(asyncio.get_running_loop(), self._count_room, self.recalled.append)
        self.scheduler = Scheduler(FakeRunner(n_seq=n_seq).info, EngineParams())
        self.tickets = Tickets(
            self.scheduler, self.mailbox, EngineStats(), lambda: 0.0, Publisher(self.scheduler, lambda: 0.0, 0)
        )

    def _count_room(self) -> None:
        self.n_room += 1

    def submit(self, text: str, *, n: int = 1, priority: int = 0) -> Ticket:
        ticket = Ticket(request(text, n=n, priority=priority), lambda events: None, 0.0, n_open=n)
        self.mailbox.submit(ticket)
        self.tickets.receive()
        return ticket

    def place(self) -> Ticket | None:
        placement = self.scheduler.place()
        if placement is None:
            return None
        self.scheduler.occupy(placement, 0.0)
        return placement.sequence.ticket

    async def ask(self, *tickets: Ticket, most: int = 1) -> list[Ticket]:
        recall = Recall(0, 1, list(tickets), most)
        self.mailbox.recall(recall)
        self.tickets.give_back()
        self.mailbox.post()
        await asyncio.sleep(0)
        assert self.recalled[-1] is recall
        return recall.given


async def test_who_would_be_next_is_given_and_is_here_no_longer() -> None:
    desk = Desk()
    runs, late, urgent = desk.submit("runs"), desk.submit("late"), desk.submit("urgent", priority=-1)
    assert desk.place() is urgent
    assert await desk.ask(runs, late) == [runs]
    assert list(desk.mailbox.open.values()) == [late, urgent]
    assert desk.mailbox.n_load == 2
    assert [sequence.ticket for sequence in desk.scheduler.waiting] == [late]
    assert await desk.ask(runs) == []


async def test_nobody_is_given_who_has_begun_or_could_begin_here() -> None:
    desk = Desk(n_seq=2)
    several, other = desk.submit("several", n=3), desk.submit("other")
    assert await desk.ask(several, other) == [], "two slots are idle"
    assert desk.place() is desk.place() is several
    assert await desk.ask(several, other, most=9) == [other]


async def test_a_large_request_that_was_passed_often_is_not_placed_after_it_was_given() -> None:
    desk = Desk()
    desk.submit("runs")
    desk.place()
    large = desk.submit("large")
    (sequence,) = desk.scheduler.waiting
    desk.scheduler._placer.room.due.append(sequence)
    assert await desk.ask(large) == [large]
    desk.scheduler.release(next(desk.scheduler.active()), 0.0)
    desk.submit("next")
    placed = desk.place()
    assert placed is not None
    assert placed is not large


async def test_an_answer_tells_that_there_may_be_room_also_when_the_request_was_cancelled_meanwhile() -> None:
    desk = Desk()
    desk.submit("runs")
    desk.place()
    waits = desk.submit("waits")
    recall = Recall(0, 1, [waits], 1)
    desk.mailbox.recall(recall)
    desk.tickets.give_back()
    waits.cancelled = True
    desk.mailbox.post()
    await asyncio.sleep(0)
    assert desk.recalled == [recall]
    assert (desk.n_room, desk.mailbox.n_load) == (1, 1)


async def test_a_cancelled_request_is_not_given() -> None:
    desk = Desk()
    desk.submit("runs")
    desk.place()
    waits = desk.submit("waits")
    waits.cancelled = True
    assert await desk.ask(waits) == []
    assert desk.mailbox.open[id(waits)] is waits
