"""Limits how many requests are in preparation at once, before the engines' queues."""

from collections.abc import Iterator
from contextlib import contextmanager

from server.errors import QueueFull

RETRY_AFTER_S = 1


class ConcurrencyLimiter:
    """Counts requests that wait for a model, for linked media, or for a rendering and tokenizing thread; at most
    `limit`, 0 = unlimited. Used on the event loop.
    """

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self.n = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """While one is on its way to a queue. Raises `QueueFull`."""
        if 0 < self._limit <= self.n:
            raise QueueFull(self.n, RETRY_AFTER_S)
        self.n += 1
        try:
            yield
        finally:
            self.n -= 1
