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
    """The status of a model has changed."""

    model: str
    status: Status
    reason: str = ""  # why it failed
    info: ModelInfo | None = None  # on READY, except after sleep (as llama-server)


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A part of the weights was read: `value` is 0..1."""

    model: str
    value: float


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """Data of a model's files were received. ``files``: all files whose download has started."""

    model: str
    files: tuple[FileProgress, ...]

    @property
    def done(self) -> int:
        """Received bytes of all files."""
        return sum(file.done for file in self.files)

    @property
    def total(self) -> int:
        """Sizes of the files whose download has started."""
        return sum(file.total for file in self.files)


@dataclass(frozen=True, slots=True)
class DownloadEnded:
    """The download of a model has ended; ``ok``: with all files."""

    model: str
    ok: bool


@dataclass(frozen=True, slots=True)
class ListChanged:
    """A model's files were deleted on request, or the list of models was reloaded (`EVERY_MODEL`)."""

    model: str


PoolEvent = StatusChanged | LoadProgress | DownloadProgress | DownloadEnded | ListChanged
_Progress = (LoadProgress, DownloadProgress)


class Subscription(AbstractContextManager["Subscription"]):
    """An async iterator over events since its creation, until the pool is closed or `close` is called.

    It buffers at most `limit` events. A slow subscriber loses the oldest progress first, then statuses that a later one
    of the same model has replaced; never the latest status of a model. Used on the event loop.
    """

    def __init__(self, limit: int, accepts: Callable[[str], bool]) -> None:
        """Buffer only events of models that `accepts` returns True for."""
        self.closed = False
        self._limit = limit
        self._accepts = accepts
        self._events: deque[PoolEvent] = deque()
        self._wake = asyncio.Event()

    def put(self, event: PoolEvent) -> None:
        """Buffer an event. Drop another one if there are more than `limit`."""
        if not self._accepts(event.model):
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
        """End the subscription. Buffered events can still be read."""
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

    def subscribe(self, accepts: Callable[[str], bool] = lambda model: True) -> Subscription:
        """Return a new subscription to the models that `accepts` returns True for. After `close`, it has no events."""
        subscription = Subscription(self._limit, accepts)
        self._subscriptions.append(subscription)
        if self._closed:
            subscription.close()
        return subscription

    def publish(self, event: PoolEvent) -> None:
        """Add an event to every subscription; never waits."""
        self._subscriptions = [each for each in self._subscriptions if not each.closed]
        for subscription in self._subscriptions:
            subscription.put(event)

    def close(self) -> None:
        """End every subscription after its buffered events."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.close()
