"""Compute embeddings of media in one thread for all instances of a model, and cache them by key.

Steps never wait for this thread: a sequence requests its media when it gets a slot, and other sequences decode until
the embeddings are ready. Requests for the same medium share one computation. Media that no sequence needs any more are
skipped.

The cache is in RAM and on disk under one limit. With a disk, each of the two gets half of the limit, and embeddings are
written to both. Embeddings that RAM has dropped are read from disk, also after a restart of the server.
"""

import hashlib
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from server.engine.instances import yield_to_steps
from server.engine.media import Encoding, MediaChunk
from server.engine.runner_api import MediaEncoder
from server.errors import InternalError, LlamapoolError

log = logging.getLogger(__name__)


class EmbeddingFiles(Protocol):
    """File storage; `server.pool` implements it. Every method blocks and may raise `LlamapoolError`."""

    def limit_to(self, n_bytes: int) -> int:
        """Remove the least recently used data beyond `n_bytes`; return the bytes that are left."""

    def read(self, key: bytes) -> bytes | None:
        """Return the data, None if it is absent or damaged."""

    def write(self, key: bytes, data: bytes) -> None: ...


class EmbeddingCache:
    """Media embeddings of at most `limit` bytes. Thread-safe; only the encoder thread uses the disk."""

    def __init__(self, limit: int) -> None:
        self.ram_limit = limit
        self._lock = threading.RLock()
        self._in_ram: dict[bytes, bytes] = {}  # least recently used first
        self._own_limit = limit  # configured limit of RAM; `limit_ram_to` may set a lower one
        self._disk_limit = 0
        self._disk_bytes = 0
        self._files: EmbeddingFiles | None = None
        self.n_hits = 0

    @property
    def size(self) -> int:
        """Bytes in RAM and on disk."""
        with self._lock:
            return sum(map(len, self._in_ram.values())) + self._disk_bytes

    def use_disk(self, files: EmbeddingFiles) -> None:
        """Also store copies in `files`. Blocks; call once, before anything is computed."""
        half = self._own_limit // 2
        try:
            self._disk_bytes = files.limit_to(half)
        except LlamapoolError as error:
            log.warning(
                "embeddings of media are not kept on disk; fix cache_disk_path and load the model again: %s", error
            )
            return
        with self._lock:
            self._own_limit -= half
            self._disk_limit = half
            self._files = files
        self.limit_ram_to(self.ram_limit)

    def limit_ram_to(self, n_bytes: int) -> int:
        """Limit RAM to `n_bytes` within its own limit (negative: its own limit); return the new limit."""
        with self._lock:
            self.ram_limit = self._own_limit if n_bytes < 0 else min(n_bytes, self._own_limit)
            self._shrink()
            return self.ram_limit

    def get(self, key: bytes) -> bytes | None:
        """Return the data from RAM."""
        with self._lock:
            data = self._in_ram.pop(key, None)
            if data is not None:
                self._in_ram[key] = data
                self.n_hits += 1
            return data

    def read(self, key: bytes) -> bytes | None:
        """Return the data from disk."""
        data = None
        try:
            data = None if self._files is None else self._files.read(key)
        except LlamapoolError as error:
            log.warning("embeddings could not be read, they are computed again; check cache_disk_path: %s", error)
        if data is not None:
            self.n_hits += 1
            self.keep(key, data)
        return data

    def keep(self, key: bytes, data: bytes) -> None:
        """Store `data` in RAM."""
        with self._lock:
            self._in_ram.pop(key, None)
            self._in_ram[key] = data
            self._shrink()

    def write(self, key: bytes, data: bytes) -> None:
        """Store `data` on disk, if there is one."""
        if self._files is None or len(data) > self._disk_limit:
            return
        try:
            self._files.write(key, data)
            self._disk_bytes = self._files.limit_to(self._disk_limit)
        except LlamapoolError as error:
            log.warning("embeddings could not be written; check the free space of cache_disk_path: %s", error)

    def _shrink(self) -> None:
        """Remove the least recently used data beyond the RAM limit."""
        size = sum(map(len, self._in_ram.values()))
        while size > self.ram_limit:
            size -= len(self._in_ram.pop(next(iter(self._in_ram))))


MAX_BATCH = 64
"""Media offered to the projector at once; it decides how many it takes."""


def scoped_key(key: bytes, scope: str) -> bytes:
    """Return a chunk's key within a cache namespace; in the shared one the chunk's own key."""
    return hashlib.blake2b(key + b"\0" + scope.encode(), digest_size=32).digest() if scope else key


class Encoder:
    """Computes embeddings for step threads, in a separate thread that `stop` ends."""

    def __init__(self, projector: MediaEncoder, cache: EmbeddingCache) -> None:
        self._projector = projector
        self.cache = cache
        self._changed = threading.Condition()
        self._open: dict[bytes, Encoding] = {}  # by key, in request order
        self._closing = False
        self.n_encoded = 0
        self._thread = threading.Thread(target=self._run, name="llamapool-encode", daemon=True)
        self._thread.start()

    def request(self, chunk: MediaChunk, wake: Callable[[], None], scope: str = "") -> Encoding:
        """Return the embeddings of `chunk`, possibly still pending. `wake` is called, possibly from another thread,
        when they arrive.

        They are shared within a cache namespace (`scope`), because timing would reveal that an image was sent before.
        """
        key = scoped_key(chunk.key, scope)
        with self._changed:
            encoding = self._open.get(key)
            if encoding is None:
                encoding = Encoding(chunk, key)
                if (cached := self.cache.get(key)) is not None:
                    encoding.set_result(cached)
                else:
                    self._open[key] = encoding
                    self._changed.notify_all()
            encoding.n_users += 1
            encoding.add_done_callback(lambda _: wake())
            return encoding

    def release(self, encoding: Encoding) -> None:
        """Release one request for `encoding`."""
        with self._changed:
            encoding.n_users -= 1

    def stop(self) -> None:
        """End the thread after what it computes now; `join` waits for that. Media that still wait are not encoded."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended; blocking. Return False if it is still alive after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        yield_to_steps()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._open or self._closing)
                if self._closing:
                    return
                self._open = {key: one for key, one in self._open.items() if one.n_users > 0}
                wanted = list(self._open.values())[:MAX_BATCH]
            try:
                if wanted:
                    self._encode_first(wanted)
            except BaseException:  # the thread must survive, otherwise all requests wait forever
                log.exception("media could not be encoded; this is a bug, please report it")
                for one in wanted:
                    if not one.done():
                        error = InternalError("the engine failed to encode this medium; see the server's log")
                        self._finish(one, error)
            wanted.clear()  # frees the pixels while this thread waits

    def _encode_first(self, wanted: list[Encoding]) -> None:
        """Read or encode the first of `wanted`, together with as many of the next as the projector takes."""
        first = wanted[0]
        cached = self.cache.read(first.key)
        if cached is not None:
            self._finish(first, cached)
            return
        try:
            found = self._projector.encode([one.chunk for one in wanted])
        except Exception as error:  # noqa: BLE001 - the requester logs unexpected errors
            if len(wanted) > 1:  # only one of them may be faulty
                self._encode_first(wanted[:1])
                return
            log.warning("a medium could not be encoded: %r", error)
            self._finish(first, error)
            return
        for one, embeddings in zip(wanted, found, strict=False):
            self.n_encoded += 1
            self.cache.keep(one.key, embeddings)  # before `_finish`, otherwise a new request would encode it again
            self._finish(one, embeddings)
        for one, embeddings in zip(wanted, found, strict=False):
            self.cache.write(one.key, embeddings)

    def _finish(self, encoding: Encoding, result: bytes | Exception) -> None:
        with self._changed:
            self._open.pop(encoding.key, None)
            if isinstance(result, bytes):
                encoding.set_result(result)
            else:
                encoding.set_exception(result)
