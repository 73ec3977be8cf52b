"""Signal handling: the first SIGTERM starts the drain, the second one ends the process; SIGHUP reloads settings.

uvicorn's own handler closes the listening sockets and waits for open connections without a time limit, and ignores a
second SIGTERM.
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
    """Wraps uvicorn's handlers, which uvicorn removes at exit. Does nothing under other servers. SIGTERM calls `leave`
    first and `begin` `delay_s` seconds later, so that load balancers notice. Ctrl-C does not wait.
    """

    def __init__(
        self,
        begin: Callable[[], object],
        end: Callable[[int], object] = os._exit,
        *,
        leave: Callable[[], object] = lambda: None,
        delay_s: float = 0.0,
    ) -> None:
        self._begin = begin
        self._leave = leave
        self._delay_s = delay_s
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
            if callable(handler) and serving(handler) is not None:
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
        self._loop.call_soon_threadsafe(self._leave)
        if self._delay_s and number == signal.SIGTERM:
            self._loop.call_soon_threadsafe(self._loop.call_later, self._delay_s, self._stop, number, None)
        else:
            self._stop(number, frame)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._begin)
        self._next[number](number, frame)


def serving(handler: object = None) -> Server | None:
    """The uvicorn that a signal handler belongs to, by default SIGTERM's; None under another server."""
    handler = signal.getsignal(signal.SIGTERM) if handler is None else handler
    owner = getattr(handler, "__self__", None)
    if isinstance(owner, StopSignals):
        return serving(owner._next.get(signal.SIGTERM, int))
    return owner if isinstance(owner, Server) else None


def on_hangup(reread: Callable[[], object]) -> bool:
    """Call `reread` on the running loop for each SIGHUP; whether that was done. Not where a terminal's end is meant by
    it, nor where it is ignored (nohup)."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
        return False
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL or _has_terminal():
        return False
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reread)
    return True


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True
