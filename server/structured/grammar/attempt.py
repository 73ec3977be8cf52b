"""Limits compilation of a client's grammar in the current thread: only if it is cheap, or while the client waits.

Compiling in the sandbox can take seconds, so a thread that serves many requests must not wait for it. Such a thread
runs ``within(None)``, where a grammar that needs the sandbox raises `CompileLater`. The caller then repeats the work in
another thread within an `Attempt`, which it cancels when the client disconnects.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from threading import Lock

MAX_SANDBOX_S = 10.0
"""Seconds in the sandbox for all grammars of one request together: each tool has one."""


class CompileLater(Exception):
    """A grammar is neither cached nor cheap to compile."""


class CompileCancelled(Exception):
    """The attempt was cancelled."""


class Attempt:
    """One request's work in the sandbox. `cancel` may be called from any thread, and sets ``cancelled``."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.cancelled = False
        self._end: Callable[[], None] | None = None
        self.left_s = MAX_SANDBOX_S

    def cancel(self) -> None:
        """Stop the current compilation and reject later ones."""
        with self._lock:
            self.cancelled = True
            end = self._end
            if end is not None:
                end()

    @contextlib.contextmanager
    def working(self, end: Callable[[], None]) -> Iterator[None]:
        """Run the block. On cancellation, another thread calls `end` to stop it. Raises `CompileCancelled`."""
        with self._lock:
            if self.cancelled:
                raise CompileCancelled
            self._end = end
        began = time.monotonic()
        try:
            yield
        finally:
            self.left_s -= time.monotonic() - began
            with self._lock:
                self._end = None


_ATTEMPT: ContextVar[Attempt | None] = ContextVar("attempt")


@contextlib.contextmanager
def within(attempt: Attempt | None) -> Iterator[None]:
    """Compile grammars in this thread until `attempt` is cancelled.

    None: a grammar that needs the sandbox raises `CompileLater`.
    """
    token = _ATTEMPT.set(attempt)
    try:
        yield
    finally:
        _ATTEMPT.reset(token)


def current() -> Attempt | None:
    """Return this thread's attempt; None if the thread must not wait for the sandbox.

    Outside of `within`, such as during a model's load, return a new attempt.
    """
    return _ATTEMPT.get(Attempt())
