"""Load progress, as bars on a terminal and as lines elsewhere: one more listener of the pool's events."""

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm

from server.pool.events import DownloadProgress, LoadProgress, PoolEvent, StatusChanged, Subscription
from server.pool.state import Status

log = logging.getLogger(__name__)

LINE_INTERVAL_S = 10.0  # between two lines of one load; most loads are shorter


class _Bar(tqdm):  # type: ignore[type-arg]
    monitor_interval = 0  # no thread of tqdm's own: every update comes from an event


class LoadBars:
    """One bar for each model that is being loaded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bars: dict[str, _Bar] = {}

    def show(self, event: PoolEvent) -> None:
        """Begin, move or end a bar."""
        if isinstance(event, LoadProgress):
            self._move(event.model, f"loading {event.model}", "%", round(event.value * 100), 100)
        elif isinstance(event, DownloadProgress):
            self._move(event.model, f"fetching {event.model}", "B", event.done, event.total)
        elif isinstance(event, StatusChanged) and event.status not in (Status.LOADING, Status.DOWNLOADING):
            self._end(event.model)

    def _move(self, model: str, what: str, unit: str, n: int, total: int) -> None:
        bar = self._bars.get(model)
        if bar is None:
            bar = _Bar(total=total, desc=what, unit=unit, unit_scale=unit == "B", leave=False, file=self._stream)
            self._bars[model] = bar
        bar.total, bar.n = total, n
        bar.refresh()

    def _end(self, model: str) -> None:
        bar = self._bars.pop(model, None)
        if bar is not None:
            bar.close()

    def close(self) -> None:
        """End every bar."""
        for model in list(self._bars):
            self._end(model)


class LoadLines:
    """A line now and then for each model that takes its time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said_at: dict[str, float] = {}

    def show(self, event: PoolEvent) -> None:
        """Log how far a load is, if nothing was said of it for a while."""
        if not isinstance(event, LoadProgress | DownloadProgress):
            self._said_at.pop(event.model, None)
            return
        now = self._clock()
        if now - self._said_at.setdefault(event.model, now) < LINE_INTERVAL_S:
            return
        self._said_at[event.model] = now
        if isinstance(event, LoadProgress):
            log.info("loading '%s': %d%%", event.model, round(event.value * 100))
        else:
            log.info("fetching '%s': %d of %d MiB", event.model, event.done >> 20, event.total >> 20)


async def show_load_progress(
    events: Subscription, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> None:
    """Draw bars until the pool closes; where `stream` (default: stderr) is not a terminal, log lines instead."""
    target = sys.stderr if stream is None else stream
    with events:
        if not target.isatty():
            lines = LoadLines(clock)
            async for event in events:
                lines.show(event)
            return
        bars = LoadBars(target)
        try:
            async for event in events:
                bars.show(event)
        finally:
            bars.close()
