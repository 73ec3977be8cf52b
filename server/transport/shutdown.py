"""What SIGTERM does: the first one begins the drain, the second one ends the process.

uvicorn's own handler closes the listening sockets and then waits for the open connections; by itself it tells
nobody that their time is limited, and a second SIGTERM changes nothing.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from uvicorn import Server

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Stands before uvicorn's handlers, which uvicorn itself removes when it ends. Does nothing under others."""

    def __init__(self, begin: Callable[[], object], end: Callable[[int], object] = os._exit) -> None:
        self._begin = begin
        self._end = end
        self._n = 0
        self._next: dict[int, Callable[[int, FrameType | None], object]] = {}

    def install(self) -> None:
        """To be called in the lifespan's start, on the running loop."""
        if threading.current_thread() is not threading.main_thread():
            return  # signals belong to the main thread
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and isinstance(getattr(handler, "__self__", None), Server):
                self._next[number] = handler
                signal.signal(number, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: the first call drains, any later one ends the process with 128 + number."""
        self._n += 1
        if self._n > 1:
            # A step thread may be in the middle of a long native call: an orderly exit would wait for it.
            logger.warning("second signal: ending at once")
            logging.shutdown()
            self._end(128 + number)
            return
        self._loop.call_soon_threadsafe(self._begin)
        self._next[number](number, frame)
