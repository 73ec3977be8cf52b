"""Requests from arrival to end, between the event loop and the step threads: requests in, events out once per step.

Until an instance takes it, a request waits in the `ModelQueue`. The event loop adds requests, and step threads take as
many as they have slots for, in the order of `queue`. A request prefers the instance where it costs least
(`preferred_instance`). Other instances take it while that one has no free slot. A single instance takes every request
immediately. `Requests` has the requests that an instance has taken.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from server.engine.encode import Encoder
from server.engine.queue import Queue, TokenCounters
from server.engine.request import BACKGROUND_PRIORITY, Event, Failed, State
from server.engine.scheduler import Scheduler
from server.engine.sequence import Phase, Sequence, Ticket, log_fields
from server.engine.snapshots import Snapshots
from server.engine.stats import EngineStats
from server.errors import InternalError, LlamapoolError

log = logging.getLogger(__name__)

Events: TypeAlias = list[tuple[Ticket, list[Event]]]
Outlet: TypeAlias = Callable[[Events, bool], None]
"""Receives a step's events on the step thread, instead of the sinks; the flag says whether a request has ended."""


class ModelQueue:
    """The requests of all instances of a model, and the delivery of their events. ``open`` are the requests that wait
    or run; ``n_load`` counts their choices. Both change on the event loop only.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        n_instances: int = 1,
        n_slots: int = 0,
        wake: Callable[[], None] = lambda: None,
        on_ended: Callable[[], None] = lambda: None,
        outlet: Outlet | None = None,
    ) -> None:
        """Create the queue of instances with `n_slots` slots each. `wake` makes all of them call `take` again.
        `on_ended` is called on the event loop after requests have ended.
        """
        self.counters = TokenCounters()
        self.open: dict[int, Ticket] = {}
        self.n_load = 0
        self._waiting: Queue[Ticket] = Queue(self.counters)
        self._loop = loop
        self._n_slots = n_slots
        self._wake, self._on_ended, self._outlet = wake, on_ended, outlet
        self._n_instances = n_instances
        self._closed: set[int] = set()  # instances that take no more requests
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def __bool__(self) -> bool:
        return bool(self._waiting.lines)  # called in every step

    @property
    def n_waiting(self) -> int:
        """Choices of the waiting requests."""
        return sum([ticket.request.n for ticket in self._waiting])

    # ---- on the event loop

    def add(self, ticket: Ticket) -> bool:
        """Add a request. Return False, without adding it, if no instance can take it."""
        with self._lock:
            if not self._has_taker(ticket):
                return False
            self.counters.record_request(ticket.request.client)
            self._waiting.append(ticket)
            self.open[id(ticket)] = ticket
        self.n_load += ticket.request.n
        return True

    def fail(self, ticket: Ticket, error: LlamapoolError) -> None:
        """Send the last event of a request now; the instance that has it frees its slots at the next step."""
        _send_to_sink(ticket, [Failed(error)])
        ticket.cancelled = ticket.cancelled or State.FAILED

    def left(self, tickets: Iterable[Ticket]) -> None:
        """Record that `tickets`, which an instance had taken, have ended. Tickets that are not open are ignored."""
        for ticket in tickets:
            if self.open.pop(id(ticket), None) is not None:
                self.n_load -= ticket.request.n
        self._on_ended()

    def give_up(self, instance: int, error: LlamapoolError) -> None:
        """Fail the requests of `instance`, whose step thread does not return."""
        self.close(instance)
        taken = [ticket for ticket in self.open.values() if ticket.taken and ticket.instance == instance]
        for ticket in taken:
            self.fail(ticket, error)
        self.left(taken)

    def _deliver(self, batch: Events, ended: list[Ticket]) -> None:
        for ticket, events in batch:
            _send_to_sink(ticket, events)
        if ended:
            self.left(ended)

    # ---- on step threads

    def take(self, instance: int, n_free: int) -> list[Ticket]:
        """Take requests for `n_free` slots of `instance`, and cancelled ones. A single instance takes every request."""
        if not self._waiting:
            return []
        with self._lock:
            if self._n_instances == 1:
                return self._take(self._waiting, instance)
            free = [0 if i in self._closed else self._n_slots for i in range(self._n_instances)]  # slots per instance
            background = [0] * self._n_instances  # minus the slots of background requests, free only for live ones
            for ticket in list(self.open.values()):
                if ticket.taken:
                    held_in = free if ticket.request.priority < BACKGROUND_PRIORITY else background
                    held_in[ticket.instance] -= ticket.request.n
            free[instance] = 0 if instance in self._closed else n_free
            taken: list[Ticket] = []
            ignores_priority = self._waiting.ignores_priority
            for ticket in self._waiting.candidates():
                if ticket.request.priority >= BACKGROUND_PRIORITY:  # all later ones are background requests, too
                    free = [n + m for n, m in zip(free, background, strict=True)]
                    background = [0] * self._n_instances
                preferred = ticket.instance
                may_go_elsewhere = ticket.request.id_slot < 0 and free[preferred] <= 0
                if ticket.cancelled or (free[instance] > 0 and (preferred == instance or may_go_elsewhere)):
                    taken.append(ticket)
                    free[instance] -= ticket.request.n
                    if ignores_priority:  # for one placement only
                        break
                else:
                    free[preferred] -= ticket.request.n
            self._take(taken, instance)
        if taken and ignores_priority:
            return taken + self.take(instance, n_free - taken[0].request.n)
        if taken and self._waiting:  # another instance may take requests that prefer this one
            self._wake()
        return taken

    def _take(self, tickets: Iterable[Ticket], instance: int) -> list[Ticket]:
        taken = list(tickets)
        for ticket in taken:
            self._waiting.place(ticket)
            ticket.instance, ticket.taken = instance, True
        return taken

    def close(self, instance: int) -> None:
        """Let `instance` take the requests that only it may take, and none after that. The caller fails them."""
        with self._lock:
            is_new = instance not in self._closed
            self._closed.add(instance)
            self._take([t for t in self._waiting if not self._has_taker(t)], instance)
        if is_new:
            self._wake()

    def expected(self, instance: int) -> list[Ticket]:
        """Return the waiting requests that prefer `instance`."""
        with self._lock:
            return [ticket for ticket in self._waiting if ticket.instance == instance]

    def _has_taker(self, ticket: Ticket) -> bool:
        takers = (ticket.instance,) if ticket.request.id_slot >= 0 else range(self._n_instances)
        return not self._closed.issuperset(takers)

    def post(self, batch: Events, ended: list[Ticket]) -> None:
        """Deliver the events of a step, and the requests that `ended` in it, with one call into the event loop."""
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
            log.debug("the event loop is closed; events of open requests are dropped")


def _send_to_sink(ticket: Ticket, events: list[Event]) -> None:
    """Send `events` to the sink unless the request was cancelled. An error of the sink affects no other request."""
    if not ticket.cancelled:
        try:
            ticket.sink(events)
        except Exception:
            about = log_fields(ticket.request)
            log.exception("events could not be taken; this is a bug, please report it", extra=about)


@dataclass(eq=False)
class Requests:
    """The requests that an instance has taken, and the events of its step. Used by its step thread. `wake` is called
    when media of `encoder` are ready.
    """

    _scheduler: Scheduler
    _queue: ModelQueue
    _instance: int
    _stats: EngineStats
    _clock: Callable[[], float]
    _snapshots: Snapshots
    _encoder: Encoder | None = None
    _wake: Callable[[], None] = lambda: None
    _outbox: dict[Ticket, list[Event]] = field(default_factory=dict)
    ended: list[Ticket] = field(default_factory=list)  # since the last `post`

    def emit(self, ticket: Ticket, event: Event) -> None:
        """Add an event to this step's `post`."""
        if not ticket.cancelled:
            self._outbox.setdefault(ticket, []).append(event)

    def post(self) -> None:
        """Deliver the events and ended requests of this step."""
        if self._outbox or self.ended:
            batch, ended = list(self._outbox.items()), self.ended
            self._outbox, self.ended = {}, []
            self._queue.post(batch, ended)

    def receive(self) -> None:
        """Take requests that there are slots for. End cancelled ones, and those whose media cannot be encoded."""
        for ticket in self._queue.take(self._instance, self._scheduler.n_free):
            try:
                self._enqueue(ticket)
            except Exception as error:  # noqa: BLE001 - `fail` logs unexpected errors
                self.fail(ticket, error)
        for sequence in self._all():
            ended = [one.exception() for one in sequence.encodings.values() if one.done()]
            if (state := sequence.ticket.cancelled) is not None:
                self.end(sequence, state)
            elif errors := [error for error in ended if isinstance(error, Exception)]:
                self.fail(sequence.ticket, errors[0])

    def request_media(self, sequence: Sequence) -> None:
        """Request the embeddings of all media of `sequence` that are not in the cells."""
        self._release_media(sequence)
        if self._encoder is None:
            return
        for span in sequence.media:
            if span.start >= sequence.n_computed and span.chunk is not None:
                encoding = self._encoder.request(span.chunk, self._wake, sequence.adapter_set.scope)
                sequence.encodings[span.start] = encoding

    def _release_media(self, sequence: Sequence) -> None:
        if self._encoder is not None:
            for encoding in sequence.encodings.values():
                self._encoder.release(encoding)
        sequence.encodings = {}

    def end(self, sequence: Sequence, state: State = State.DONE) -> None:
        """End a choice and free its resources; the caller emits events."""
        now = self._clock()
        if sequence.n_cached < 0:  # otherwise an overload that lets most requests time out would not show
            self._stats.queue_time.observe(now - sequence.ticket.waits_since)
        self._release_media(sequence)
        self._snapshots.end(sequence, now, state)
        self._scheduler.release(sequence, now)
        sequence.phase = Phase.ENDED
        if sequence.sampler is not None:
            sequence.sampler.close()
            sequence.sampler = None
        sequence.draft_state.lookup = None  # the slot still refers to its last sequence
        ticket = sequence.ticket
        if all(choice.phase is Phase.ENDED for choice in ticket.choices):
            self._close(ticket)
            if ticket.cancelled is not State.CANCELLED:
                self._stats.request_duration.observe(now - ticket.submitted_at)
        if sequence.request.media:  # otherwise `Slot.last` keeps the pixels of its media in memory
            sequence.media, sequence.request = (), replace(sequence.request, media=())
            sequence.ticket = replace(ticket, request=sequence.request, sink=lambda _: None, choices=[])

    def fail(self, ticket: Ticket, error: Exception) -> None:
        """End every choice of a request with one event. An unexpected error is logged and not shown to the client."""
        if not isinstance(error, LlamapoolError):
            log.error(
                "a request failed, other requests continue; this is a bug, please report it",
                exc_info=error,
                extra=log_fields(ticket.request),
            )
            error = InternalError("the engine failed on this request; see the server's log")
        try:
            for choice in ticket.choices:
                if choice.phase is not Phase.ENDED:
                    self.end(choice, State.FAILED)
        finally:
            self._close(ticket)
            self.emit(ticket, Failed(error))

    def _all(self) -> list[Sequence]:
        return [*self._scheduler.active(), *self._scheduler.waiting]

    def fail_all(self, error: LlamapoolError) -> None:
        """Fail the requests that this instance has taken, including those that `give_up` has removed from ``open``."""
        taken = [t for t in list(self._queue.open.values()) if t.taken and t.instance == self._instance and not t.ended]
        for ticket in dict.fromkeys((*taken, *(sequence.ticket for sequence in self._all()))):
            try:
                self.fail(ticket, error)
            except Exception:  # fail the others in any case
                about = log_fields(ticket.request)
                log.exception("a request could not be ended cleanly; this is a bug, please report it", extra=about)

    def _enqueue(self, ticket: Ticket) -> None:
        request = ticket.request
        for index in range(request.n):
            constraint = request.constraint
            if constraint is not None and index:
                constraint = constraint.fork()
            sequence = Sequence(ticket, index, constraint=constraint)
            ticket.choices.append(sequence)
            self._scheduler.enqueue(sequence)

    def _close(self, ticket: Ticket) -> None:
        """Report once that `ticket` has ended, also if it never had sequences."""
        if not ticket.ended:
            ticket.ended = True  # before its choices are removed, see `Engine._expire`
            ticket.choices = []
            self.ended.append(ticket)
