"""A request's events as an async iterator, for tests; the server's own reader is `server.serving.session`."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from server.engine.engine import Engine
from server.engine.request import Event, Failed, Finished, Request
from server.engine.sequence import Ticket


def events_of(engine: Engine, request: Request) -> "EventStream":
    """Submit `request` and read its events; raises what `Engine.submit` raises."""
    stream = EventStream(engine, request.n)
    stream.ticket = engine.submit(request, stream.put)
    return stream


class EventStream:
    """The events of one request; ends after the last choice. Leaving it early cancels the request."""

    def __init__(self, engine: Engine, n: int) -> None:
        self.ticket: Ticket | None = None
        self._engine = engine
        self._n_open = n
        self._events: list[Event] = []
        self._arrived = asyncio.Event()

    def put(self, events: list[Event]) -> None:
        """Take the events of one step."""
        self._events.extend(events)
        self._arrived.set()

    def cancel(self) -> None:
        """Stop the request; harmless when it has ended."""
        if self.ticket is not None and self._n_open:
            self._engine.cancel(self.ticket)

    async def __aenter__(self) -> "EventStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self

    async def __anext__(self) -> list[Event]:
        """All events since the last call: those of one step, or of several when the reader is slow."""
        if not self._n_open and not self._events:
            raise StopAsyncIteration
        try:
            await self._arrived.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._arrived.clear()
        events, self._events = self._events, []
        for event in events:
            if isinstance(event, Finished):
                self._n_open -= 1
            elif isinstance(event, Failed):
                self._n_open = 0
        return events
