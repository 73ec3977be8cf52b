"""Events of the pool for any number of subscribers."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Self

from server.pool.protocols import FileProgress, ModelInfo
from server.pool.state import Status

EVERY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """A model went from one state to another."""

    model: str
    status: Status
    reason: str = ""  # why it failed
    info: ModelInfo | None = None  # on READY, except when the model woke up (as llama-server)


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A part of the weights was read: `value` is 0..1."""

    model: str
    value: float


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """A part of a model's files was received; every file so far."""

    model: str
    files: tuple[FileProgress, ...]

    @property
    def done(self) -> int:
        """Bytes of all files that are there."""
        return sum(file.done for file in self.files)

    @property
    def total(self) -> int:
        """Bytes of those files, as far as they have begun."""
        return sum(file.total for file in self.files)


@dataclass(frozen=True, slots=True)
class DownloadEnded:
    """A model's files are there, or won't be."""

    model: str
    ok: bool


@dataclass(frozen=True, slots=True)
class ListChanged:
    """A model's files were deleted, on request; or the list was reloaded (`EVERY_MODEL`)."""

    model: str


PoolEvent = StatusChanged | LoadProgress | DownloadProgress | DownloadEnded | ListChanged
_Progress = (LoadProgress, DownloadProgress)


class Subscription(AbstractContextManager["Subscription"]):
    """An async iterator over the events since it was made; ends when the pool closes or `close` is called.

    Holds at most `limit` events. A listener that is slower loses the oldest progress first, then states that a
    later state of the same model has replaced; never the latest state of a model. To be used on the event loop.
    """

    def __init__(self, limit: int, hears: Callable[[str], bool]) -> None:
        """Hold only events of models that it `hears` of."""
        self.closed = False
        self._limit = limit
        self._hears = hears
        self._events: deque[PoolEvent] = deque()
        self._wake = asyncio.Event()

    def put(self, event: PoolEvent) -> None:
        """Keep one more event; make room first."""
        if not self._hears(event.model):
            return
        self._events.append(event)
        if len(self._events) > self._limit:
            latest = {each.model: each for each in self._events}
            progress = (each for each in self._events if isinstance(each, _Progress))
            replaced = (each for each in self._events if latest[each.model] is not each)
            if (victim := next(chain(progress, replaced), None)) is not None:
                self._events.remove(victim)
        self._wake.set()

    def close(self) -> None:
        """Stop listening. Received events can still be read; then the iterator ends."""
        self.closed = True
        self._wake.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PoolEvent:
        while not self._events:
            if self.closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._events.popleft()

    def __exit__(self, *_: object) -> None:
        self.close()


class FanOut:
    """Copies each event to every subscription."""

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._subscriptions: list[Subscription] = []
        self._closed = False

    def subscribe(self, hears: Callable[[str], bool] = lambda model: True) -> Subscription:
        """Return a new subscription to the models that it `hears` of; one that ends at once after `close`."""
        subscription = Subscription(self._limit, hears)
        self._subscriptions.append(subscription)
        if self._closed:
            subscription.close()
        return subscription

    def publish(self, event: PoolEvent) -> None:
        """Hand on one event; never waits."""
        self._subscriptions = [each for each in self._subscriptions if not each.closed]
        for subscription in self._subscriptions:
            subscription.put(event)

    def close(self) -> None:
        """End every subscription after its queued events."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.close()
