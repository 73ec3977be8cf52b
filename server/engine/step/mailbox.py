"""Messages between the event loop and one step thread: commands in, events out once per step. Requests arrive through
the `ModelQueue`.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from server.engine.instances import notify
from server.engine.kv.cells import Cells
from server.engine.request import Event, Failed
from server.engine.sequence import Slot, Ticket, log_fields
from server.errors import LlamapoolError

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Command(Generic[T]):
    """An operation on a slot, executed by the step thread once the slot is idle. ``done`` gets the result."""

    slot: int  # index within its instance
    work: Callable[[Cells, Slot, float], T]
    done: "Future[T]" = field(default_factory=Future)

    def carry_out(self, cells: Cells, slot: Slot, now: float) -> None:
        """Execute it unless nobody waits for the result."""
        if self.done.done():
            return
        try:
            result = self.work(cells, slot, now)
        except Exception as error:  # noqa: BLE001 - the caller handles it
            self.refuse(error)
        else:
            with suppress(InvalidStateError):  # it was cancelled or refused meanwhile
                self.done.set_result(result)

    def refuse(self, error: Exception) -> None:
        """Fail it unless it has ended."""
        with suppress(InvalidStateError):
            self.done.set_exception(error)


Outlet = Callable[[list[tuple[Ticket, list[Event]]], bool], None]
"""Receives a step's events on the step thread instead of the sinks; the flag says whether a request has ended."""


@dataclass(eq=False)
class Mailbox:
    """Collects events; `on_ended` is called on the event loop with tickets that have ended."""

    _loop: asyncio.AbstractEventLoop
    _on_ended: Callable[[list[Ticket]], None]
    _outlet: Outlet | None = None
    _outbox: dict[int, tuple[Ticket, list[Event]]] = field(default_factory=dict)
    _ended: list[Ticket] = field(default_factory=list)
    _given_up: bool = False  # the step thread does not return

    # ---- on the event loop

    def give_up(self, error: LlamapoolError, open_: list[Ticket]) -> None:
        """Fail `open_`, because the step thread does not return; later events are dropped."""
        self._given_up = True
        for ticket in open_:
            _hand(ticket, [Failed(error)])
            ticket.cancelled = True
        self._on_ended(open_)

    def _deliver(self, batch: list[tuple[Ticket, list[Event]]], ended: list[Ticket]) -> None:
        if self._given_up:
            return
        for ticket, events in batch:
            _hand(ticket, events)
        if ended:
            self._on_ended(ended)

    # ---- on the step thread

    def emit(self, ticket: Ticket, event: Event) -> None:
        """Add an event to this step's post."""
        if not ticket.cancelled:
            self._outbox.setdefault(id(ticket), (ticket, []))[1].append(event)

    def ended(self, ticket: Ticket) -> None:
        """Record that every choice of `ticket` has ended."""
        self._ended.append(ticket)

    def post(self) -> None:
        """Deliver everything of this step with one call into the event loop."""
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
        notify(self._loop, self._deliver, batch, ended)


def _hand(ticket: Ticket, events: list[Event]) -> None:
    """Give `events` to the sink unless the request was cancelled. An error of the sink affects nobody else."""
    if not ticket.cancelled:
        try:
            ticket.sink(events)
        except Exception:
            log.exception(
                "events could not be taken; this is a bug, please report it",
                extra=log_fields(ticket.request),
            )
