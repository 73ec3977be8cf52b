"""The requests of one instance from arrival to end, and the messages between its step thread and the event loop:
commands in, events out once per step. Requests arrive through the `ModelQueue`.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from server.engine.cache.kv_store import Cells
from server.engine.encode import Encoder
from server.engine.instances import notify
from server.engine.queue import ModelQueue
from server.engine.request import Event, Failed, State
from server.engine.scheduler import Scheduler
from server.engine.sequence import Phase, Sequence, Slot, Ticket, log_fields
from server.engine.snapshots import Snapshots
from server.engine.stats import EngineStats
from server.errors import InternalError, LlamapoolError, TooLate

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
    _n_posted: int = 0  # posts in which a request ended
    _n_delivered: int = 0  # of these

    @property
    def is_delivering(self) -> bool:
        """Whether the event loop has not yet seen the end of a request."""
        return self._n_posted != self._n_delivered

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
            self._n_delivered += 1

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
        self._n_posted += bool(ended)
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


def _shorter(one_s: float, other_s: float) -> float:
    """Return the shorter of two limits; 0 is none."""
    return min(one_s, other_s) or max(one_s, other_s)


EXPIRY_CHECK_S = 0.1
"""Interval between checks for expired requests."""
RETRY_LATER_S = 5


@dataclass(eq=False)
class Requests:
    """Open requests, used by the step thread. `wake` is called when media of `encoder` are ready."""

    _scheduler: Scheduler
    _queue: ModelQueue
    _instance: int
    _mailbox: Mailbox
    _stats: EngineStats
    _clock: Callable[[], float]
    _snapshots: Snapshots
    _encoder: Encoder | None = None
    _wake: Callable[[], None] = lambda: None
    _open: dict[int, Ticket] = field(default_factory=dict)
    _look_at: float = -math.inf

    @property
    def due(self) -> bool:
        """Whether `receive` or `expire` may have work although nobody woke the thread."""
        return bool(self._queue) or self._clock() >= self._look_at

    def next_look_s(self, now: float) -> float | None:
        """Return the seconds until `expire` must run without a wake-up; None if it need not."""
        return max(self._look_at - now, 0.0) if self._open or self._queue else None

    def expire(self, now: float) -> None:
        """End requests that exceed their time limits."""
        if now < self._look_at:
            return
        self._look_at = now + EXPIRY_CHECK_S
        self._own(self._queue.late(self._instance, lambda ticket: bool(self._missed_limit(ticket, now))))
        for ticket in list(self._open.values()):
            if missed := self._missed_limit(ticket, now):
                self.fail(ticket, TooLate(missed, RETRY_LATER_S))

    def _missed_limit(self, ticket: Ticket, now: float) -> str:
        """Return the message of the time limit that `ticket` has exceeded; "" if none."""
        request, params, waited_s = ticket.request, self._scheduler.params, now - ticket.submitted_at
        total_s = _shorter(params.request_timeout_s, request.request_timeout_s)
        has_begun = any(choice.output for choice in ticket.choices)
        token_s = 0.0 if has_begun else _shorter(params.first_token_timeout_s, request.first_token_timeout_s)
        if 0 < total_s <= waited_s:
            return f"the request was not done within {total_s:g} s"
        has_slot = any(choice.n_cached >= 0 for choice in ticket.choices)
        if not has_slot and 0 < params.queue_timeout_s <= now - ticket.waits_since:
            return f"no slot was free within {params.queue_timeout_s:g} s"
        return f"there was no first token within {token_s:g} s" if 0 < token_s <= waited_s else ""

    def receive(self) -> None:
        """Take requests that there are slots for, and end cancelled ones."""
        scheduler = self._scheduler
        taken = self._queue.take(self._instance, scheduler.n_free)
        self._own(taken)
        for ticket in taken:
            try:
                self._enqueue(ticket)
            except Exception as error:  # noqa: BLE001 - `fail` logs what is not ours
                self.fail(ticket, error)
        for ticket in [ticket for ticket in self._open.values() if ticket.cancelled]:
            self._end_all(ticket, State.CANCELLED)

    def ask_for_media(self, sequence: Sequence) -> None:
        """Request the embeddings of the media of `sequence` that are not in the cells."""
        self._forget_media(sequence)
        if self._encoder is None:
            return
        for span in sequence.media:
            if span.start >= sequence.n_computed and span.chunk is not None:
                sequence.encodings[span.start] = self._encoder.ask(span.chunk, self._wake, sequence.adapter_set.scope)

    def _forget_media(self, sequence: Sequence) -> None:
        if self._encoder is not None:
            for encoding in sequence.encodings.values():
                self._encoder.leave(encoding)
        sequence.encodings = {}

    def fail_unencoded(self) -> None:
        """End requests whose media cannot be encoded."""
        if self._encoder is None:
            return
        for sequence in list(self._scheduler.active()):
            for encoding in sequence.encodings.values():
                if encoding.done() and isinstance(error := encoding.exception(), Exception):
                    self.fail(sequence.ticket, error)
                    break

    def end(self, sequence: Sequence, state: State = State.DONE) -> None:
        """Free what a choice holds; the caller emits events."""
        now = self._clock()
        self._forget_media(sequence)
        self._snapshots.end(sequence, now, state)
        self._scheduler.release(sequence, now)
        sequence.phase = Phase.ENDED
        if sequence.sampler is not None:
            sequence.sampler.close()
            sequence.sampler = None
        sequence.draft_state = None  # drop the index of the text; the slot still refers to its last sequence
        ticket = sequence.ticket
        if all(choice.phase is Phase.ENDED for choice in ticket.choices):
            self._close(ticket)
            if not ticket.cancelled:
                self._stats.request_duration.observe(now - ticket.submitted_at)

    def fail(self, ticket: Ticket, error: Exception) -> None:
        """End every choice of a request with one event. An unexpected error is logged and not shown to the client."""
        if not isinstance(error, LlamapoolError):
            log.error(
                "a request failed, other requests continue; this is a bug, please report it",
                exc_info=error,
                extra=log_fields(ticket.request),
            )
            error = InternalError("the engine failed on this request; see the server's log")
        self._end_all(ticket, State.FAILED)
        self._close(ticket)
        self._mailbox.emit(ticket, Failed(error))

    def _end_all(self, ticket: Ticket, state: State) -> None:
        for choice in ticket.choices:
            if choice.phase is not Phase.ENDED:
                self.end(choice, state)

    def _own(self, tickets: Iterable[Ticket]) -> None:
        self._open.update((id(ticket), ticket) for ticket in tickets)

    def take_no_more(self) -> None:
        """Stop taking requests; those that wait for this instance alone become its own."""
        self._own(self._queue.close(self._instance))

    def fail_all(self, error: LlamapoolError) -> None:
        for ticket in list(self._open.values()):
            try:
                self.fail(ticket, error)
            except Exception:  # fail it and the others in any case
                log.exception(
                    "a request could not be ended in order; this is a bug, please report it",
                    extra=log_fields(ticket.request),
                )
                self._close(ticket)
                self._mailbox.emit(ticket, Failed(error))

    def _enqueue(self, ticket: Ticket) -> None:
        request = ticket.request
        for index in range(request.n):
            constraint = request.constraint
            if constraint is not None and index:
                constraint = constraint.fork()
            sequence = Sequence(ticket, index, constraint=constraint)
            ticket.choices.append(sequence)
            self._scheduler.waiting.append(sequence)

    def _close(self, ticket: Ticket) -> None:
        """Report once that `ticket` holds nothing here, also if it never had sequences."""
        if self._open.pop(id(ticket), None) is not None:
            ticket.choices, ticket.ended = [], True
            self._mailbox.ended(ticket)
