"""Responses that are generated in the background: they continue when their client disconnects.

The events of a run are kept in memory while it lasts, so that any number of readers can follow it. When it has ended,
its events are stored with the response, compressed, and read from there.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import orjson

_SEPARATOR = b"\n\n"


class BackgroundRun:
    """One response under way: its events so far, and the task that generates it."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._is_done = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_cancelled = False

    def start(self, work: AsyncIterator[bytes], settle: Callable[["BackgroundRun"], Awaitable[None]]) -> None:
        """Collect the events of `work` in a task. `settle` is awaited at the end, however `work` ended."""
        self._task = asyncio.create_task(self._collect(work, settle), name="background response")

    async def _collect(self, work: AsyncIterator[bytes], settle: Callable[["BackgroundRun"], Awaitable[None]]) -> None:
        try:
            async for event in work:
                self._events += split_events(event)
                self._notify()
        finally:
            try:
                await settle(self)
            finally:
                self._is_done = True
                self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def read(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Yield the events with a sequence number greater than `after`: those so far, then those that follow."""
        n_read = 0
        while True:
            changed = self._changed
            while n_read < len(self._events):
                event = self._events[n_read]
                n_read += 1
                if sequence_number(event) > after:
                    yield event
            if self._is_done:
                return
            await changed.wait()

    def packed(self) -> bytes:
        """Return all events, compressed, as `unpacked` reads them. Blocking, for a worker thread."""
        return zlib.compress(b"".join(self._events))

    async def cancel(self) -> None:
        """Stop generating and wait until the slot is free."""
        self.is_cancelled = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))


def unpacked(data: bytes, after: int = -1) -> list[bytes]:
    """Return the stored events with a sequence number greater than `after`. Blocking, for a worker thread."""
    return [event for event in split_events(zlib.decompress(data)) if sequence_number(event) > after]


def split_events(chunk: bytes) -> list[bytes]:
    """Split server-sent events that were written together."""
    return [part + _SEPARATOR for part in chunk.split(_SEPARATOR) if part]


def sequence_number(event: bytes) -> int:
    """Return an event's ``sequence_number``."""
    number: int = orjson.loads(event.partition(b"\ndata: ")[2]).get("sequence_number", -1)
    return number


@dataclass(slots=True)
class BackgroundRuns:
    """The runs of all owners. Used on the event loop."""

    _runs: dict[tuple[str, str], BackgroundRun] = field(default_factory=dict)

    def start(
        self,
        owner: str,
        response_id: str,
        work: AsyncIterator[bytes],
        settle: Callable[[BackgroundRun], Awaitable[None]],
    ) -> BackgroundRun:
        """Start a run. It can be found until it has settled."""

        async def settle_and_forget(run: BackgroundRun) -> None:
            try:
                await settle(run)
            finally:
                del self._runs[owner, response_id]

        run = self._runs[owner, response_id] = BackgroundRun()
        run.start(work, settle_and_forget)
        return run

    @property
    def n_running(self) -> int:
        """How many responses are under way."""
        return len(self._runs)

    def find(self, owner: str, response_id: str) -> BackgroundRun | None:
        """Return a response's run, None if there is none under way."""
        return self._runs.get((owner, response_id))
