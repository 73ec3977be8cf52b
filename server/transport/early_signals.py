"""Signals that arrive before the server has installed its handlers, which takes seconds at a start.

Imports nothing slow, because the command line installs these handlers before its other imports.
"""

import os
import signal
import sys
import threading
from types import FrameType

_hangup_came = threading.Event()


def handle_early_signals() -> None:
    """End the start cleanly at SIGTERM, with status 0 as later, and remember SIGHUP. Other handlers stay."""
    if _is_default("SIGTERM"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    reloads_at_hangup()


def reloads_at_hangup() -> bool:
    """Handle SIGHUP if nothing does, and return whether it is a request to reload, which `take_hangup` returns.

    Otherwise it reports the end of a terminal, which stops the server as SIGTERM does, or is ignored (nohup).
    """
    if _is_default("SIGHUP"):
        signal.signal(signal.SIGHUP, _end_with_terminal if _has_terminal() else _remember_hangup)
    return hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is _remember_hangup


def take_hangup() -> bool:
    """Return whether SIGHUP has arrived, and forget it."""
    came = _hangup_came.is_set()
    _hangup_came.clear()
    return came


def _is_default(name: str) -> bool:
    number = getattr(signal, name, None)
    in_main = threading.current_thread() is threading.main_thread()
    return number is not None and in_main and signal.getsignal(number) is signal.SIG_DFL


def _remember_hangup(_number: int, _frame: FrameType | None) -> None:
    _hangup_came.set()


def _end_with_terminal(_number: int, _frame: FrameType | None) -> None:
    """Stop the server. The system and the shell may both send SIGHUP, which must not count as a second signal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.raise_signal(signal.SIGTERM)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True
