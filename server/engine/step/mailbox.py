"""What crosses between the event loop and one step thread: commands in, events out, once per step. Tickets come from
the `ModelQueue`."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable

from server.engine.request import Event, Failed
from server.engine.sequence import Ticket
from server.engine.step.commands import Command
from server.errors import LlamapoolError

log = logging.getLogger(__name__)


Outlet = Callable[[list[tuple[Ticket, list[Event]]], bool], None]
"""Where a step's events go instead of the sinks, from the step thread itself; and whether any request has ended."""


class Mailbox:
    """`on_ended` is called on the event loop with the tickets that have ended."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_ended: Callable[[list[Ticket]], None],
        outlet: Outlet | None = None,
    ) -> None:
        self._outlet = outlet
        self._loop = loop
        self._on_ended = on_ended
        self._commands: deque[Command] = deque()
        self._outbox: dict[int, tuple[Ticket, list[Event]]] = {}
        self._ended: list[Ticket] = []
        self.woken_by = threading.Event()
        self._gone: LlamapoolError | None = None  # the step thread does not come back

    # ---- on the event loop

    def command(self, command: Command) -> None:
        """Ask something of a slot."""
        if self._gone is not None:
            command.refuse(self._gone)
            return
        self._commands.append(command)
        self.woken_by.set()

    def wake(self) -> None:
        """Make the step thread look: something came, was cancelled, stopped, or is no longer being prepared."""
        self.woken_by.set()

    def give_up(self, error: LlamapoolError, open_: list[Ticket]) -> None:
        """The step thread does not come back: everybody is told, and what it may still say is for nobody."""
        self._gone = error
        while self._commands:
            self._commands.popleft().refuse(error)
        for ticket in open_:
            if not ticket.cancelled:
                ticket.sink([Failed(error)])
                ticket.cancelled = True
        self._on_ended(open_)

    def _deliver(self, batch: list[tuple[Ticket, list[Event]]], ended: list[Ticket]) -> None:
        if self._gone is not None:
            return
        for ticket, events in batch:
            if not ticket.cancelled:
                ticket.sink(events)
        if ended:
            self._on_ended(ended)

    # ---- on the step thread

    def forget_wake(self) -> None:
        """From now on, `wait` returns at the next wake."""
        self.woken_by.clear()

    def wait(self, timeout_s: float | None = None) -> None:
        """Sleep until woken."""
        self.woken_by.wait(timeout_s)

    def take_command(self) -> Command | None:
        """The next thing that is asked of a slot."""
        return self._commands.popleft() if self._commands else None

    @property
    def woken(self) -> bool:
        """Whether there was a wake since the last `forget_wake`."""
        return self.woken_by.is_set()

    def emit(self, ticket: Ticket, *events: Event) -> None:
        """Add events to this step's post."""
        if not ticket.cancelled:
            self._outbox.setdefault(id(ticket), (ticket, []))[1].extend(events)

    def ended(self, ticket: Ticket) -> None:
        """Every choice of `ticket` has ended and holds nothing any more."""
        self._ended.append(ticket)

    def post(self) -> None:
        """One call into the event loop for all that happened in this step."""
        if not (self._outbox or self._ended):
            return
        batch, self._outbox = list(self._outbox.values()), {}
        ended, self._ended = self._ended, []
        if self._outlet is not None:
            if batch:
                self._outlet(batch, bool(ended))
                batch = []
            if not ended:
                return
        try:
            self._loop.call_soon_threadsafe(self._deliver, batch, ended)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            log.debug("the event loop is closed; %d requests get no more events", len(batch))
