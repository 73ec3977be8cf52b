"""Embeddings that were computed, by their key, in RAM and on disk under one limit.

With a disk, each of the two has half of it, and whatever is computed goes to both: what RAM had to drop is read, and a
server that was started again reads what it needs. Safe in any thread; what uses the disk is the encoder thread's.
"""

import logging
import threading
from collections.abc import Iterable
from typing import Protocol

from server.errors import LlamapoolError

log = logging.getLogger(__name__)


class EmbeddingFiles(Protocol):
    """Where they are kept; `server.pool` implements it. Every method blocks and may raise `LlamapoolError`."""

    def index(self) -> Iterable[tuple[bytes, int]]:
        """Keys and bytes of what is there, what was used last at the end."""

    def read(self, key: bytes) -> bytes | None:
        """None for what is not there, or not what was written."""

    def write(self, key: bytes, data: bytes) -> None: ...

    def remove(self, key: bytes) -> None: ...


class _Sizes:
    """Bytes by key, what was used last at the end."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._by_key: dict[bytes, int] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def touch(self, key: bytes) -> None:
        self._by_key[key] = self._by_key.pop(key)

    def add(self, key: bytes, n_bytes: int) -> list[bytes]:
        """Who has to go for it; it itself where it is larger than all room."""
        self.drop(key)
        self._by_key[key] = n_bytes
        self.total += n_bytes
        return self.shrink()

    def shrink(self) -> list[bytes]:
        gone: list[bytes] = []
        while self.total > self.limit:
            gone.append(next(iter(self._by_key)))
            self.drop(gone[-1])
        return gone

    def drop(self, key: bytes) -> None:
        self.total -= self._by_key.pop(key, 0)


class EmbeddingCache:
    """At most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._data: dict[bytes, bytes] = {}
        self._own_limit = limit  # of RAM, whatever else there is
        self._in_ram = _Sizes(limit)
        self._on_disk = _Sizes(0)
        self._files: EmbeddingFiles | None = None
        self.n_hits = 0

    @property
    def size(self) -> int:
        """Bytes of both."""
        return self._in_ram.total + self._on_disk.total

    def use_disk(self, files: EmbeddingFiles) -> None:
        """Keep a copy in `files`, too; blocking, once, before anything is computed."""
        try:
            found = list(files.index())
        except LlamapoolError as error:
            log.warning(
                "embeddings of media are not kept on disk; mend cache_disk_path and load the model again: %s", error
            )
            return
        with self._lock:
            half = self._own_limit // 2
            self._own_limit -= half
            self._in_ram.limit = min(self._in_ram.limit, self._own_limit)
            self._on_disk.limit = half
            gone = [key for known, n_bytes in found for key in self._on_disk.add(known, n_bytes)]
            self._files = files
        self._remove(gone)

    def limit_ram_to(self, n_bytes: int) -> int:
        """Keep no more than `n_bytes` of its own limit in RAM (negative: all of it); returns what it may keep."""
        with self._lock:
            self._in_ram.limit = self._own_limit if n_bytes < 0 else min(n_bytes, self._own_limit)
            for gone in self._in_ram.shrink():
                del self._data[gone]
            return self._in_ram.limit

    def get(self, key: bytes) -> bytes | None:
        """What RAM has."""
        with self._lock:
            data = self._data.get(key)
            if data is not None:
                self._in_ram.touch(key)
                self.n_hits += 1
            return data

    def read(self, key: bytes) -> bytes | None:
        """What the disk has."""
        files = self._files
        with self._lock:
            if files is None or key not in self._on_disk:
                return None
            self._on_disk.touch(key)
        data = None
        try:
            data = files.read(key)
        except LlamapoolError as error:
            log.warning("embeddings could not be read, they are computed again; look at cache_disk_path: %s", error)
        with self._lock:
            if data is None:
                self._on_disk.drop(key)
                return None
            self.n_hits += 1
            self._keep(key, data)
        return data

    def put(self, key: bytes, data: bytes) -> None:
        """Keep `data`."""
        with self._lock:
            self._keep(key, data)
        files = self._files
        if files is None or len(data) > self._on_disk.limit:
            return
        try:
            files.write(key, data)
        except LlamapoolError as error:
            log.warning("embeddings could not be written; look at the room in cache_disk_path: %s", error)
            return
        with self._lock:
            gone = self._on_disk.add(key, len(data))
        self._remove(gone)

    def _keep(self, key: bytes, data: bytes) -> None:
        """In RAM; under the lock."""
        self._data[key] = data
        for gone in self._in_ram.add(key, len(data)):
            del self._data[gone]

    def _remove(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            try:
                if self._files is not None:
                    self._files.remove(key)
            except LlamapoolError as error:
                log.warning("embeddings could not be removed; look at cache_disk_path: %s", error)
