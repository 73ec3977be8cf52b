"""What crosses between the event loop and one step thread: tickets in, events out, once per step."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from server.engine.request import Event, Failed
from server.engine.sequence import Ticket
from server.engine.step.commands import Command
from server.errors import LlamapoolError

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Recall:
    """Of `tickets`, those that have not begun are asked back, `most` choices or one ticket; ``given`` are those."""

    donor: int
    target: int
    tickets: list[Ticket]
    most: int
    given: list[Ticket] = field(default_factory=list)


class Mailbox:
    """``n_load`` counts the choices that wait or run; it changes on the event loop only, and so is exact there.

    So does ``open``: the requests that these are choices of. A ticket is in one mailbox's ``open``, or, once it was
    given back, with `on_recalled`, which is called for each answer; after that, and when tickets ended, `on_room` is.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_room: Callable[[], None],
        on_recalled: Callable[[Recall], None],
    ) -> None:
        self.n_load = 0
        self.open: dict[int, Ticket] = {}
        self._loop = loop
        self._on_room = on_room
        self._on_recalled = on_recalled
        self._inbox: deque[Ticket] = deque()
        self._commands: deque[Command] = deque()
        self._recalls: deque[Recall] = deque()
        self._answered: list[Recall] = []
        self._outbox: dict[int, tuple[Ticket, list[Event]]] = {}
        self._ended: list[Ticket] = []
        self._wake = threading.Event()
        self._gone: LlamapoolError | None = None  # the step thread does not come back

    # ---- on the event loop

    def submit(self, ticket: Ticket) -> None:
        """Hand a checked request to the step thread."""
        if self._gone is not None:
            gone: list[Event] = [Failed(self._gone)]
            self._loop.call_soon(ticket.sink, gone)
            return
        self.n_load += ticket.request.n
        self.open[id(ticket)] = ticket
        self._inbox.append(ticket)
        self._wake.set()

    def command(self, command: Command) -> None:
        """Ask something of a slot."""
        if self._gone is not None:
            command.refuse(self._gone)
            return
        self._commands.append(command)
        self._wake.set()

    def recall(self, recall: Recall) -> None:
        """Ask for tickets that have not begun; the step thread answers once it knows whom it has no slot for."""
        self._recalls.append(recall)
        self._wake.set()

    def wake(self) -> None:
        """Make the step thread look: something was cancelled, stopped, or is no longer being prepared."""
        self._wake.set()

    def give_up(self, error: LlamapoolError) -> None:
        """The step thread does not come back: everybody is told, and what it may still say is for nobody."""
        self._gone = error
        open_, self.open, self.n_load = list(self.open.values()), {}, 0
        while self._commands:
            self._commands.popleft().refuse(error)
        for ticket in open_:
            if not ticket.cancelled:
                ticket.sink([Failed(error)])
                ticket.cancelled = True
        self._on_room()

    def _deliver(self, batch: list[tuple[Ticket, list[Event]]], ended: list[Ticket], answered: list[Recall]) -> None:
        if self._gone is not None:
            return
        for ticket, events in batch:
            if not ticket.cancelled:
                ticket.sink(events)
        for ticket in ended:
            self._leave(ticket)
        for recall in answered:
            for ticket in recall.given:
                self._leave(ticket)
            self._on_recalled(recall)
        if ended or answered:
            self._on_room()

    def _leave(self, ticket: Ticket) -> None:
        self.n_load -= ticket.request.n
        del self.open[id(ticket)]

    # ---- on the step thread

    def forget_wake(self) -> None:
        """From now on, `wait` returns at the next wake."""
        self._wake.clear()

    def wait(self, timeout_s: float | None = None) -> None:
        """Sleep until woken."""
        self._wake.wait(timeout_s)

    def take(self) -> Ticket | None:
        """The next new ticket."""
        return self._inbox.popleft() if self._inbox else None

    def take_command(self) -> Command | None:
        """The next thing that is asked of a slot."""
        return self._commands.popleft() if self._commands else None

    def take_recall(self) -> Recall | None:
        """The next question for tickets; what is in its ``given`` at the next `post` is its answer."""
        if not self._recalls:
            return None
        recall = self._recalls.popleft()
        self._answered.append(recall)
        return recall

    @property
    def empty(self) -> bool:
        """Nothing new is there."""
        return not self._inbox and not self._commands and not self._recalls

    def emit(self, ticket: Ticket, *events: Event) -> None:
        """Add events to this step's post."""
        if not ticket.cancelled:
            self._outbox.setdefault(id(ticket), (ticket, []))[1].extend(events)

    def ended(self, ticket: Ticket) -> None:
        """Every choice of `ticket` has ended and holds nothing any more."""
        self._ended.append(ticket)

    def post(self) -> None:
        """One call into the event loop for all that happened in this step."""
        if not (self._outbox or self._ended or self._answered):
            return
        batch, self._outbox = list(self._outbox.values()), {}
        ended, self._ended = self._ended, []
        answered, self._answered = self._answered, []
        try:
            self._loop.call_soon_threadsafe(self._deliver, batch, ended, answered)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            log.debug("the event loop is closed; %d requests get no more events", len(batch))
