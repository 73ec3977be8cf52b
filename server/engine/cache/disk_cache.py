"""The disk tier (``cache_disk``): states evicted from RAM, loaded again when a prompt starts with them, also after a
restart.

Each state that waiting requests need is read once, in queue order, while other sequences run. A request waits for a
limited time.

Threads of this module read, write and hash files. Step threads only copy states from and to cells. Several step threads
may call `match`, `put` and `read`.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from math import inf
from typing import Protocol

from server.engine.cache.prefix_cache import MIB, MIN_TOKENS, CachedPrefix, CacheEntry, CacheTier
from server.engine.sequence import Sequence
from server.errors import CONTAINED, LlamapoolError

log = logging.getLogger(__name__)

MAX_PENDING = 512 * MIB  # bytes waiting to be written; further states are dropped
CLOSE_S = 5.0  # longest time to write states when the model is unloaded
_DESCRIPTION_BYTES = 4096  # upper bound of a file's size besides tokens and states


class StateFiles(Protocol):
    """File storage; `server.pool` implements it. Every method blocks and may raise `LlamapoolError`."""

    @property
    def shared(self) -> bool:
        """Whether states are written for other processes, too."""

    @property
    def follow_s(self) -> float:
        """Seconds between checks for files of other processes."""

    def others(self) -> tuple[Iterable[CacheEntry], Iterable[str]]:
        """Return entries written by others, and names of files removed, since `index` or the last call."""

    def index(self) -> Iterable[CacheEntry]:
        """Return the entries that exist and fit this model. ``last_used`` is minus the age in seconds."""

    def write(self, name: str, entry: CacheEntry, used: Collection[str]) -> int:
        """Write a file atomically; return its size in bytes. Files that are not `used` may be removed for it."""

    def read(self, name: str) -> CacheEntry:
        """Read a file. Raises unless every byte is as written, under the same model and settings."""

    def used(self, name: str) -> None:
        """Record the time of use for the next `index`."""

    def remove(self, name: str) -> None: ...


class DiskCache:
    """At most `limit` bytes in `files`, shared by the instances of a model; ``index`` has an entry for each file."""

    def __init__(
        self,
        files: StateFiles,
        limit: int,
        clock: Callable[[], float],
        wake: Callable[[], None],
        *,
        can_cut: bool,
        writer: Executor | None = None,
        reader: Executor | None = None,
    ) -> None:
        """Open the cache. `wake` is called from another thread when a read has ended. `writer` and `reader` are
        executors with one thread each, which by default are created.
        """
        self._files = files
        self.shared = files.shared
        self._clock = clock
        self._wake = wake
        self._can_cut = can_cut
        self._to_delete: list[CacheEntry] = []  # entries whose files the writer thread will delete
        self.index = CacheTier(limit, spill=self._to_delete.append)
        self._lock = threading.Condition()  # notified when less data waits to be written
        self._writer = writer or ThreadPoolExecutor(1, "llamapool-disk-write")
        self._reader = reader or ThreadPoolExecutor(1, "llamapool-disk-read")
        self._usable = True
        self.accepts = True  # new states are written
        self._closing = threading.Event()
        self._close_by = inf
        self._reading: dict[str, Future[CacheEntry | None]] = {}
        self._writing: list[CacheEntry] = []
        self._following = threading.Thread(target=self._follow, name="llamapool-disk-follow", daemon=True)
        self.n_dropped = 0  # damaged files
        self.ready = self._writer.submit(self._load_index)

    def wants(self, one: CachedPrefix) -> bool:
        """Return whether `one` is long enough, and neither on disk nor being written."""
        is_long = min(len(one.tokens), one.n_exact) >= MIN_TOKENS
        wanted = self._usable and is_long and not self.index.holds(one)
        with self._lock:
            return wanted and not any(
                s.adapter_set == one.adapter_set and s.tokens == one.tokens for s in self._writing
            )

    def takes(self, n_bytes: int) -> bool:
        """Return whether a state of `n_bytes` would be written: it fits, and not too much waits already."""
        with self._lock:
            can_write = self._usable and self.accepts and self._has_room(n_bytes)
            return can_write and self.index.fits(n_bytes, self._clock())

    def _has_room(self, n_bytes: int) -> bool:
        return not self._writing or sum(state.size for state in self._writing) + n_bytes <= MAX_PENDING

    def put(self, state: CacheEntry) -> None:
        """Write `state` soon, unless it is present, too large, or too much waits already."""
        with self._lock:
            if not self.takes(state.size) or self.index.holds(state):
                return
            self._writing.append(state)
        self._writer.submit(self._write, state)

    def drop(self, entry: CacheEntry) -> None:
        """Drop `entry` and delete its file soon."""
        self.index.remove(entry)
        self._to_delete.append(entry)
        self._writer.submit(self._delete_files)

    def drop_all(self) -> Future[int]:
        """Drop every state, also those that are being written; return a future of the number of their tokens."""
        with self._lock:
            unwritten, self._writing = self._writing, []
            self._lock.notify_all()
        return self._writer.submit(self._drop_all, unwritten)

    def read(self, entry: CacheEntry) -> Future[CacheEntry | None]:
        """Return a future of the state of `entry`; None if the file is damaged, in which case it is dropped."""
        with self._lock:
            future = self._reading.get(entry.name)
            if future is None:
                future = self._reading[entry.name] = self._reader.submit(self._read, entry)
        future.add_done_callback(lambda _: self._wake())
        return future

    def begin_close(self) -> None:
        """Start closing: states not written within `CLOSE_S` seconds are not written."""
        self._close_by = min(self._close_by, self._clock() + CLOSE_S)

    def wait_for_room(self, n_bytes: int) -> bool:
        """Block until `put` accepts a state of `n_bytes`. Return False if it never will. Call after `begin_close`."""
        with self._lock:
            left_s = self._close_by - self._clock()
            if left_s <= 0 or not self.index.fits(n_bytes, self._clock()):
                return False
            self._lock.wait_for(lambda: not self._usable or self._has_room(n_bytes), left_s)
            return self.takes(n_bytes)

    def close(self) -> None:
        """Block until pending writes are done."""
        self._closing.set()
        if self._following.is_alive():
            self._following.join()
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown()
        self._usable = False

    # ---- the writer and reader threads

    def _load_index(self) -> None:
        try:
            self._update_index(self._files.index(), ())
            self._following.start()
        except Exception as error:  # noqa: BLE001 - the server works without the disk tier
            self._turn_off(error)
        self._wake()

    def _update_index(self, entries: Iterable[CacheEntry], removed_names: Iterable[str]) -> None:
        """Add new `entries` to the index, except states that it has already, and drop entries of removed files."""
        now, removed = self._clock(), set(removed_names)
        for entry in [entry for entry in self.index if entry.name in removed]:
            self.index.remove(entry)
        for entry in sorted(entries, key=lambda e: e.last_used):
            if self.shared and self.index.holds(entry):
                continue
            entry.last_used += now
            entry.floor = 0 if self._can_cut else len(entry.tokens)
            self._add(entry, now)

    def _add(self, entry: CacheEntry, now: float) -> None:
        """Add `entry` to the index and delete the files it replaces."""
        self._to_delete += self.index.put(entry, now)
        self._delete_files()

    def _follow(self) -> None:
        """Check for files of other processes until closed. Runs in its own thread and waits for the writer thread."""
        while not self._closing.wait(self._files.follow_s):
            self._writer.submit(self._check_others).result()

    def _check_others(self) -> None:
        try:
            if self._usable:
                entries, removed_names = self._files.others()
                # Two processes that each replaced the other's equal state would lose both.
                self._update_index([each for each in entries if not self.index.holds(each)], removed_names)
        except LlamapoolError as error:  # the next check may succeed
            log.warning("the states of other processes on disk are unknown: %s", error)
        except Exception as error:  # noqa: BLE001 - as above
            self._turn_off(error)

    def _drop_all(self, unwritten: Iterable[CacheEntry]) -> int:
        n_unwritten = sum(len(state.tokens) for state in unwritten if not self.index.holds(state))
        dropped = self.index.remove_all()
        self._to_delete += dropped
        self._delete_files()
        return n_unwritten + sum(len(entry.tokens) for entry in dropped)

    def _write(self, state: CacheEntry) -> None:
        try:
            now = self._clock()
            is_pending = state in self._writing and now < self._close_by  # `drop_all` clears `_writing`
            is_new = self._usable and is_pending and not self.index.holds(state)
            if is_new and self.index.make_room(state.size + _DESCRIPTION_BYTES, now):
                self._delete_files()
                name = f"{secrets.token_hex(8)}.state"
                n_bytes = self._files.write(name, state, {entry.name for entry in self.index})
                self._add(state.in_file(name, n_bytes), now)
        except CONTAINED as error:
            log.warning(
                "a prompt state could not be written to disk; check the free space of cache_disk_path: %r", error
            )
        except Exception as error:  # noqa: BLE001 - as above
            self._turn_off(error)
        finally:
            with self._lock:
                self._writing = [other for other in self._writing if other is not state]
                self._lock.notify_all()

    def _read(self, entry: CacheEntry) -> CacheEntry | None:
        try:
            found = self._files.read(entry.name)
            if (found.tokens, found.adapter_set) == (entry.tokens, entry.adapter_set):
                self.index.touch(entry, self._clock())
                self._files.used(entry.name)
                found.last_used, found.floor = entry.last_used, entry.floor
                return found
            fault = "its tokens differ from those in the index"
        except LlamapoolError as error:
            fault = str(error)
        except MemoryError:  # the file is intact
            log.warning("%s: there is no memory for its %d bytes", entry.name, entry.size)
            return None
        except Exception as error:  # noqa: BLE001 - as above
            self._turn_off(error)
            return None
        finally:
            with self._lock:
                self._reading.pop(entry.name, None)
        if entry in self.index:  # otherwise it was evicted meanwhile
            log.warning("%s: %s; it is dropped", entry.name, fault)
            self.n_dropped += 1
            self.drop(entry)
        return None

    def _delete_files(self) -> None:
        """Delete the files of entries that were dropped from the index, in the writer thread."""
        while self._to_delete:
            self._files.remove(self._to_delete.pop().name)

    def _turn_off(self, error: Exception) -> None:
        """Log `error` and use the disk no more."""
        expected = isinstance(error, LlamapoolError)
        log.error(
            "prompt states are no longer kept on disk; fix cache_disk_path and load the model again: %s",
            error,
            exc_info=None if expected else error,
        )
        with self._lock:
            self._usable = False
            self.index = CacheTier(0)
            self._lock.notify_all()


def wait_s(waiting: Iterable[Sequence], now: float) -> float | None:
    """Return the seconds until the first waiting sequence gives up its read; None if none waits for one."""
    reading = [s.fetch for s in waiting if s.fetch is not None and s.fetch.future is not None and s.fetch.pending(now)]
    return min((fetch.wait_until - now for fetch in reading), default=None)
