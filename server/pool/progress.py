"""Load progress as bars on a terminal: one more listener of the pool's events."""

import sys
from typing import TextIO

from tqdm import tqdm

from server.pool.events import LoadProgress, PoolEvent, Subscription
from server.pool.state import Status


class _Bar(tqdm):  # type: ignore[type-arg]
    monitor_interval = 0  # no thread of tqdm's own: every update comes from an event


class LoadBars:
    """One bar for each model that is being loaded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bars: dict[str, _Bar] = {}

    def show(self, event: PoolEvent) -> None:
        """Begin, move or end a bar."""
        if not isinstance(event, LoadProgress):
            if event.status is not Status.LOADING:
                self._end(event.model)
            return
        bar = self._bars.get(event.model)
        if bar is None:
            bar = self._bars[event.model] = _Bar(
                total=100, desc=f"loading {event.model}", unit="%", leave=False, file=self._stream
            )
        bar.n = round(event.value * 100)
        bar.refresh()

    def _end(self, model: str) -> None:
        bar = self._bars.pop(model, None)
        if bar is not None:
            bar.close()

    def close(self) -> None:
        """End every bar."""
        for model in list(self._bars):
            self._end(model)


async def show_load_progress(events: Subscription, stream: TextIO | None = None) -> None:
    """Draw bars until the pool closes; returns at once where `stream` (default: stderr) is not a terminal."""
    target = sys.stderr if stream is None else stream
    with events:
        if not target.isatty():
            return
        bars = LoadBars(target)
        try:
            async for event in events:
                bars.show(event)
        finally:
            bars.close()
