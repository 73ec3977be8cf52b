"""Prompt states on disk (``cache_disk``): what RAM gave up, back when a prompt begins with it, also after a
restart.

States that waiting requests want are read once each, while others go on, and for a bounded time: in the order of the
queue, as many at a time as there are slots, of at most `READ_AHEAD` bytes.

Files are read, written and hashed by threads of this module's; a step thread only takes states out of cells and puts
them there. `match`, `put` and `read` may be called by several step threads.
"""

import logging
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from server.engine.kv.cost import MoveCost
from server.engine.kv.ram_cache import MIB, KeptState, StateCache, in_ram
from server.engine.kv.state import SlotState
from server.errors import CONTAINED, InternalError, LlamapoolError

if TYPE_CHECKING:  # a sequence knows its fetch
    from server.engine.sequence import Sequence, Slot

log = logging.getLogger(__name__)

MAX_PENDING = 512 * MIB  # bytes that wait to be written; what comes then is lost
RETRY_S = 1.0
CLOSE_S = 5.0  # longest time to write what is still in RAM when the model is unloaded
LEAST_S = 0.05
UNKNOWN_S = 2.0  # longest wait where nobody knows yet how long computing would take
READ_AHEAD = 512 * MIB  # of the states that are read or held for an instance's queue, where that are more than two
_DESCRIPTION_BYTES = 4096  # more than a file has beside tokens and states


class FolderInUse(InternalError):
    """Another process uses these files now; it may end soon."""


class StateFiles(Protocol):
    """Where they are kept; `server.pool` implements it. Every method blocks and may raise `LlamapoolError`."""

    @property
    def follow_s(self) -> float | None:
        """Seconds after which others may have written something; None: nobody else does."""

    def others(self) -> tuple[Iterable[KeptState], Iterable[str]]:
        """States that others have written since `index` or this was called, and names of files that are gone."""

    def index(self) -> Iterable[KeptState]:
        """What is there and fits this model. ``used_at`` is minus the age in seconds. Raises `FolderInUse`."""

    def write(self, name: str, saved: SlotState) -> int:
        """Whole or not at all; its bytes."""

    def read(self, name: str) -> SlotState:
        """Raises unless every byte is what was written, under the same model and settings."""

    def used(self, name: str) -> None:
        """Remember the time, for the next `index`."""

    def remove(self, name: str) -> None: ...

    def close(self) -> None: ...


class DiskCache:
    """At most `limit` bytes in `files`, shared by the instances of a model; ``kept`` is what is there."""

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
        """`wake` is called, from another thread, when a read has ended. `writer` and `reader` do one thing at a time;
        by default they are threads."""
        self._files = files
        self._clock = clock
        self._wake = wake
        self._can_cut = can_cut
        self.kept = StateCache(limit)
        self._lock = threading.Condition()  # told when less waits to be written
        self._writer = writer or ThreadPoolExecutor(1, "llamapool-disk-write")
        self._reader = reader or ThreadPoolExecutor(1, "llamapool-disk-read")
        self._usable = True
        self._closing = threading.Event()
        self._close_by: float | None = None
        self._reading: dict[str, Future[KeptState | None]] = {}
        self._writing: list[KeptState] = []
        self._following = threading.Thread(target=self._follow, name="llamapool-disk-follow", daemon=True)
        self.n_dropped = 0  # files that were damaged, or not this model's
        self.ready: Future[None] = Future()  # it was looked what is there
        self._writer.submit(self._begin)

    @property
    def shared(self) -> bool:
        """Whether other processes find what is written here."""
        return self._files.follow_s is not None

    def wants(self, one: "Slot | KeptState", n_lost: int) -> bool:
        """As `StateCache.wants`; what is being written is there already."""
        wanted = self._usable and self.kept.wants(one, n_lost)
        with self._lock:
            return wanted and not any(s.tuning == one.tuning and s.tokens == one.tokens for s in self._writing)

    def takes(self, n_bytes: int) -> bool:
        """Whether a state of so many bytes would be written: it is not too large, and not too much waits already."""
        with self._lock:
            return self._usable and self._has_room(n_bytes) and self.kept.fits(n_bytes)

    def _has_room(self, n_bytes: int) -> bool:
        return not self._writing or sum(state.size for state in self._writing) + n_bytes <= MAX_PENDING

    def put(self, state: KeptState) -> None:
        """Write `state` soon, unless it is there, too large, or too much waits already."""
        with self._lock:
            if not self.takes(state.size) or self.kept.holds(state):
                return
            self._writing.append(state)
        self._writer.submit(self._write, state)

    def drop(self, entry: KeptState) -> None:
        """Forget `entry`; its file goes soon."""
        self.kept.remove(entry)
        self._writer.submit(self._remove, [entry])

    def read(self, entry: KeptState) -> "Future[KeptState | None]":
        """The state of `entry`; None when its file is not what was written, it is dropped then."""
        with self._lock:
            future = self._reading.get(entry.name)
            if future is None:
                future = self._reading[entry.name] = self._reader.submit(self._read, entry)
        future.add_done_callback(lambda _: self._wake())
        return future

    def begin_close(self) -> None:
        """From now on what is not written within `CLOSE_S` seconds is not written at all."""
        if self._close_by is None:
            self._close_by = self._clock() + CLOSE_S

    def wait_for_room(self, n_bytes: int) -> bool:
        """After `begin_close`: wait until `put` takes a state of so many bytes; blocking. False: it never will."""
        assert self._close_by is not None
        with self._lock:
            while self._usable and self.kept.fits(n_bytes) and (left_s := self._close_by - self._clock()) > 0:
                if self._has_room(n_bytes):
                    return True
                self._lock.wait(left_s)
        return False

    def close(self) -> None:
        """Wait for what is being written; blocking."""
        self._closing.set()
        if self._following.is_alive():
            self._following.join()
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown()
        self._usable = False
        self._files.close()

    # ---- the threads of files

    def _begin(self) -> None:
        """Take up what is there. While another process uses the files, nothing is written or read; once it has ended,
        they are this one's."""
        while not self._closing.is_set():
            try:
                self._take_up(self._files.index(), ())
                self._usable = True
                if self.shared:
                    self._following.start()
            except FolderInUse as error:
                if self._usable:
                    log.warning("%s; prompt states are kept on disk once it has ended", error)
                self._usable = False
                self._has_looked()
                self._closing.wait(RETRY_S)
                continue
            except Exception as error:  # noqa: BLE001 - the server works without it
                self._give_up(error)
            break
        self._has_looked()
        self._wake()

    def _has_looked(self) -> None:
        if not self.ready.done():
            self.ready.set_result(None)

    def _take_up(self, entries: Iterable[KeptState], names_gone: Iterable[str]) -> None:
        """What is there now, and is no longer; equal states of several processes count once."""
        now, gone = self._clock(), set(names_gone)
        for entry in [entry for entry in self.kept if entry.name in gone]:
            self.kept.remove(entry)
        for entry in sorted(entries, key=lambda e: e.used_at):
            if self.shared and self.kept.holds(entry):
                continue
            entry.used_at += now
            entry.can_cut = self._can_cut
            self._keep(entry, now)

    def _keep(self, entry: KeptState, now: float) -> None:
        """`entry` is there; the files of those that have to go for it are removed."""
        replaced = self.kept.replace(entry)
        self._remove([*replaced, *self.kept.put(entry, now)])

    def _follow(self) -> None:
        """See what others have written, until this is closed. Its own thread asks the writer's, and waits for it."""
        while not self._closing.wait(self._files.follow_s):
            self._writer.submit(self._look).result()

    def _look(self) -> None:
        try:
            if self._usable:
                self._take_up(*self._files.others())
        except LlamapoolError as error:  # another look may do better
            log.warning("what others keep on disk is not known: %s", error)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def _write(self, state: KeptState) -> None:
        try:
            if self._usable and (self._close_by is None or self._clock() < self._close_by):
                self._write_file(state)
        except CONTAINED as error:
            log.warning("a prompt state could not be written to disk; look at the room in cache_disk_path: %r", error)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)
        finally:
            with self._lock:
                self._writing.remove(state)
                self._lock.notify_all()

    def _write_file(self, state: KeptState) -> None:
        if self.kept.holds(state):
            return
        now = self._clock()
        self._remove(self.kept.make_room(state.size + _DESCRIPTION_BYTES, now))
        name = f"{secrets.token_hex(8)}.state"
        size = self._files.write(name, state.saved)
        hashes = state.hashes.copy()
        self._keep(KeptState(state.saved.without_bytes, size, state.used_at, state.can_cut, name, hashes=hashes), now)

    def _read(self, entry: KeptState) -> KeptState | None:
        try:
            saved = self._files.read(entry.name)
            if (saved.tokens, saved.tuning) == (entry.tokens, entry.tuning):
                self.kept.touch(entry, self._clock())
                self._files.used(entry.name)
                return in_ram(saved, entry.used_at, can_cut=self._can_cut, hashes=entry.hashes)
            fault = "it has other tokens than when it was found"
        except LlamapoolError as error:
            fault = str(error)
        except MemoryError:  # the file is as good as it was
            log.warning("%s: there is no memory for its %d bytes", entry.name, entry.size)
            return None
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)
            return None
        finally:
            with self._lock:
                self._reading.pop(entry.name, None)
        if entry in self.kept:  # else it had to go for another one meanwhile
            log.warning("%s: %s; it is dropped", entry.name, fault)
            self.n_dropped += 1
            self.kept.remove(entry)
            self._remove([entry])
        return None

    def _remove(self, entries: Seq[KeptState]) -> None:
        for entry in entries:
            self._files.remove(entry.name)

    def _give_up(self, error: Exception) -> None:
        expected = isinstance(error, LlamapoolError)
        log.error(
            "prompt states are no longer kept on disk; mend cache_disk_path and load the model again: %s",
            error,
            exc_info=None if expected else error,
        )
        with self._lock:
            self._usable = False
            self.kept = StateCache(0)
            self._lock.notify_all()


# ---- who waits for a file


@dataclass(eq=False, slots=True)
class Fetch:
    """What one sequence waits for: ``n`` tokens of ``entry``. It has no ``future`` until its turn comes."""

    entry: KeptState
    n: int
    future: Future[KeptState | None] | None = None
    wait_until: float = 0.0
    given_up: bool = False

    @property
    def pending(self) -> bool:
        """It may still come."""
        return not self.given_up and (self.future is None or not self.future.done())

    @property
    def found(self) -> KeptState | None:
        """The state, once it is there."""
        if self.given_up or self.future is None or not self.future.done() or self.future.cancelled():
            return None
        return self.future.result()


def start_reading(queue: "Iterable[Sequence]", disk: DiskCache, cost: MoveCost, now: float, most: int) -> None:
    """Begin to read what the scheduler has found on disk: as long as computing would take, or less.

    `queue` is in the order of placement; of at most `most` states at a time. What its first and its oldest want comes
    before what others have, which is read again when their turn comes: whatever the order does, nobody starves.
    """
    wanted: dict[KeptState, list[Fetch]] = {}
    first, oldest, oldest_at = None, None, math.inf
    for sequence in queue:
        fetch = sequence.fetch
        if fetch is None or not (fetch.pending or fetch.found is not None):
            continue
        wanted.setdefault(fetch.entry, []).append(fetch)
        first = first or fetch.entry
        if sequence.ticket.submitted_at < oldest_at:
            oldest, oldest_at = fetch.entry, sequence.ticket.submitted_at
    urgent = [entry for entry in (first, oldest) if entry is not None]
    held = [entry for entry, fetches in wanted.items() if any(fetch.future is not None for fetch in fetches)]
    n = size = 0
    for entry in dict.fromkeys([*urgent, *held, *wanted]):
        n, size, fetches = n + 1, size + entry.size, wanted[entry]
        if n > 1 and (n > most or size > READ_AHEAD) and entry not in urgent:
            for fetch in fetches:
                fetch.future = None
            continue
        future = next((fetch.future for fetch in fetches if fetch.future is not None), None) or disk.read(entry)
        for fetch in fetches:
            if fetch.future is None:
                fetch.future = future
                fetch.wait_until = now + max(cost.compute_s(fetch.n) or UNKNOWN_S, LEAST_S)


def wait_s(waiting: "Iterable[Sequence]", now: float) -> float | None:
    """Seconds until somebody has waited long enough; None when nobody waits."""
    return min((max(fetch.wait_until - now, 0.0) for fetch in _reading(waiting)), default=None)


def give_up_late(waiting: "Iterable[Sequence]", now: float) -> None:
    """Who has waited long enough goes on without it."""
    for fetch in _reading(waiting):
        if now >= fetch.wait_until:
            fetch.given_up, fetch.future = True, None  # what still comes is not kept


def _reading(waiting: "Iterable[Sequence]") -> "Iterator[Fetch]":
    for sequence in waiting:
        fetch = sequence.fetch
        if fetch is not None and fetch.future is not None and fetch.pending:
            yield fetch
