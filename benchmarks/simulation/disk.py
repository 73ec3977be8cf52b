"""A simulated disk tier: the engine's own `DiskCache` with empty files whose reads and writes take simulated time.

As in the server, one thread writes and one reads whole files, and hashes them (BLAKE2b). The bound is therefore a CPU
core instead of the drive: 1 GB/s at 3 cycles per byte (blake2.net, measured on Skylake) and 3 GHz.
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

HASH_BYTES_PER_S = 1e9


class Worker(Executor):
    """Queues work, which `settle` runs in order once its simulated time has passed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._free_at = 0.0
        self._due: deque[tuple[float, Callable[[], None]]] = deque()
        self.n_states = 0  # states read or written

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        size = sum(one.size for one in args if isinstance(one, CacheEntry))
        self.n_states += size > 0
        self._free_at = max(self._free_at, self._clock()) + size / HASH_BYTES_PER_S
        future: Future[Any] = Future()
        self._due.append((self._free_at, lambda: future.set_result(work(*args, **kwargs))))
        return future

    @property
    def next_at(self) -> float:
        """The time at which the next work ends; infinity if there is none."""
        return self._due[0][0] if self._due else math.inf

    def settle(self) -> None:
        """Run all work whose time has passed."""
        while self._due and self._due[0][0] <= self._clock():
            self._due.popleft()[1]()


class Files:
    """Replaces `StateFiles`; keeps the entries in memory."""

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
            raise InvalidRequest("it was evicted after it was found")
        return replace(self._saved[name])

    def used(self, name: str) -> None: ...

    def remove(self, name: str) -> None:
        self._saved.pop(name, None)


def disk_cache(limit: int, clock: Callable[[], float]) -> tuple[DiskCache, Worker, Worker]:
    """Return a disk tier of at most `limit` bytes, its writer and its reader."""
    writer, reader = Worker(clock), Worker(clock)
    return DiskCache(Files(), limit, clock, lambda: None, can_cut=True, writer=writer, reader=reader), writer, reader
