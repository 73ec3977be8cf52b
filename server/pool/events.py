"""Events of the pool for any number of subscribers, and the display of the progress of loads."""

import asyncio
import contextlib
import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NoReturn, Self, TextIO

from server.pool.protocols import FileProgress, ModelInfo
from server.pool.state import Status

if TYPE_CHECKING:
    from tqdm import tqdm

STAGES = ("text_model",)
"""llama-server's names of the loading stages, in order (tools/server/server-context.cpp, load_model)."""


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """A model went from one state to another."""

    model: str
    status: Status
    previous: Status
    reason: str = ""  # why it failed
    info: ModelInfo | None = None  # on READY, except when the model woke up (as llama-server)


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A part of the weights was read: `value` is 0..1 of stage `current`."""

    model: str
    value: float
    current: str = STAGES[0]
    stages: tuple[str, ...] = STAGES


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
class ModelRemoved:
    """A model's files were deleted, on request."""

    model: str


@dataclass(frozen=True, slots=True)
class ModelsReloaded:
    """The list of models was reloaded."""

    model: str = "*"


PoolEvent = StatusChanged | LoadProgress | DownloadProgress | DownloadEnded | ModelRemoved | ModelsReloaded
_Progress = (LoadProgress, DownloadProgress)


class Subscription:
    """An async iterator over the events since it was made; ends when the pool closes or `close` is called.

    Holds at most `limit` events. A listener that is slower loses the oldest progress first, then states that a
    later state of the same model has replaced; never the latest state of a model. To be used on the event loop.
    """

    def __init__(self, fan_out: "FanOut", limit: int) -> None:
        self._fan_out = fan_out
        self._limit = limit
        self._events: deque[PoolEvent] = deque()
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, event: PoolEvent) -> None:
        """Keep one more event; make room first."""
        self._events.append(event)
        if len(self._events) > self._limit:
            self._drop_one()
        self._wake.set()

    def _drop_one(self) -> None:
        victim = next((i for i, e in enumerate(self._events) if isinstance(e, _Progress)), None)
        if victim is None:
            latest = {e.model: i for i, e in enumerate(self._events)}
            victim = next((i for i, e in enumerate(self._events) if latest[e.model] != i), None)
        if victim is not None:
            del self._events[victim]

    def close(self) -> None:
        """Stop listening. Received events can still be read; then the iterator ends."""
        self._closed = True
        self._fan_out.forget(self)
        self._wake.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PoolEvent:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._events.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FanOut:
    """Copies each event to every subscription."""

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._subscriptions: list[Subscription] = []
        self._closed = False

    def subscribe(self) -> Subscription:
        """A new subscription; one that ends at once after `close`."""
        subscription = Subscription(self, self._limit)
        self._subscriptions.append(subscription)
        if self._closed:
            subscription.close()
        return subscription

    def publish(self, event: PoolEvent) -> None:
        """Hand on one event; never waits."""
        for subscription in self._subscriptions:
            subscription.put(event)

    def forget(self, subscription: Subscription) -> None:
        """Drop a subscription; nothing if it is gone."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def close(self) -> None:
        """End every subscription after its queued events."""
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close()


log = logging.getLogger(__name__)

LINE_INTERVAL_S = 5.0  # between two log lines of one load or download


@cache
def _bar_class() -> "type[tqdm[NoReturn]]":
    from tqdm import tqdm  # only a terminal needs it

    class Bar(tqdm):  # type: ignore[type-arg]
        monitor_interval = 0  # every update is an event: tqdm's own thread is not needed

    return Bar


async def show_load_progress(
    events: Subscription, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> None:
    """Draw a bar for each load and download until the pool closes; log lines if `stream` (stderr) is no terminal."""
    target = sys.stderr if stream is None else stream
    bars: dict[str, tqdm[NoReturn]] = {}
    logged_at: dict[str, float] = {}
    with events, contextlib.ExitStack() as stack:
        async for event in events:
            if not isinstance(event, LoadProgress | DownloadProgress):
                logged_at.pop(event.model, None)
                if event.model in bars:
                    bars.pop(event.model).close()
            elif target.isatty():
                _draw(event, bars, target, stack)
            elif (now := clock()) - logged_at.setdefault(event.model, now) >= LINE_INTERVAL_S:
                logged_at[event.model] = now
                if isinstance(event, LoadProgress):
                    log.info("loading '%s': %d%%", event.model, round(event.value * 100))
                else:
                    log.info("fetching '%s': %d of %d MiB", event.model, event.done >> 20, event.total >> 20)


def _draw(
    event: LoadProgress | DownloadProgress,
    bars: "dict[str, tqdm[NoReturn]]",
    stream: TextIO,
    stack: contextlib.ExitStack,
) -> None:
    loads = isinstance(event, LoadProgress)
    if event.model not in bars:
        what, unit = ("loading", "%") if loads else ("fetching", "B")
        bars[event.model] = bar = _bar_class()(
            desc=f"{what} {event.model}", unit=unit, unit_scale=not loads, leave=False, file=stream
        )
        stack.callback(bar.close)
    bar = bars[event.model]
    bar.n, bar.total = (round(event.value * 100), 100) if isinstance(event, LoadProgress) else (event.done, event.total)
    bar.refresh()
