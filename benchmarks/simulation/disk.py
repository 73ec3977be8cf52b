"""An imagined disk behind RAM: the engine's own `DiskCache`, whose files take time and hold nothing.

As there, one thread writes and one reads, each file whole, and hashes it (BLAKE2b). So no drive's data sheet is what
bounds it, but a core: 1 GB/s at 3 cycles a byte (blake2.net's measurement of Skylake) and 3 GHz.
"""

import math
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

from server.engine.cache.disk_cache import DiskCache
from server.engine.cache.prefix_cache import CacheEntry
from server.errors import InvalidRequest

HASHED = 1e9  # bytes per second


class Worker(Executor):
    """What is asked of it is done by `settle`, one after the other, when it would have ended."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._free_at = 0.0
        self._due: deque[tuple[float, Callable[[], None]]] = deque()
        self.n_states = 0  # read, or written

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> "Future[Any]":
        size = sum(one.size for one in args if isinstance(one, CacheEntry))
        self.n_states += size > 0
        self._free_at = max(self._free_at, self._clock()) + size / HASHED
        future: Future[Any] = Future()
        self._due.append((self._free_at, lambda: future.set_result(work(*args, **named))))
        return future

    @property
    def next_at(self) -> float:
        """When something ends next; never: infinity."""
        return self._due[0][0] if self._due else math.inf

    def settle(self) -> None:
        """Do what would have ended by now."""
        while self._due and self._due[0][0] <= self._clock():
            self._due.popleft()[1]()


class Files:
    """`StateFiles` in memory."""

    shared, follow_s = False, 3600.0

    def __init__(self) -> None:
        self._saved: dict[str, CacheEntry] = {}

    def index(self) -> list[CacheEntry]:
        return []

    def others(self) -> tuple[list[CacheEntry], list[str]]:
        return [], []

    def write(self, name: str, entry: CacheEntry, used: Collection[str]) -> int:
        self._saved[name] = entry
        return entry.size

    def read(self, name: str) -> CacheEntry:
        if name not in self._saved:
            raise InvalidRequest("it had to go since it was found")
        return replace(self._saved[name])

    def used(self, name: str) -> None: ...

    def remove(self, name: str) -> None:
        self._saved.pop(name, None)


def disk_cache(limit: int, clock: Callable[[], float]) -> tuple[DiskCache, Worker, Worker]:
    """Of at most `limit` bytes, by the clock of the machine; who writes for it, and who reads."""
    writer, reader = Worker(clock), Worker(clock)
    return DiskCache(Files(), limit, clock, lambda: None, can_cut=True, writer=writer, reader=reader), writer, reader
