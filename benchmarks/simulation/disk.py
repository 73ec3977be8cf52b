"""An imagined disk behind RAM: what the engine asks of its `DiskCache`, whose files take time and hold nothing.

As there, one thread writes and one reads, each file whole, and hashes it (BLAKE2b). So no drive's data sheet is what
bounds it, but a core: 1 GB/s at 3 cycles a byte (blake2.net's measurement of Skylake) and 3 GHz.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from server.engine.kv.disk_cache import MAX_PENDING, DiskCache, DiskState
from server.engine.kv.ram_cache import RamState, StateCache, ram_state
from server.engine.lora import Tuning
from server.engine.prefix.hashes import PrefixHashes

HASHED = 1e9  # bytes per second


@dataclass(eq=False, slots=True)
class _Read:
    """What `Fetch` asks of a future."""

    state: RamState | None
    done_at: float
    clock: Callable[[], float]

    def done(self) -> bool:
        return self.clock() >= self.done_at

    def cancelled(self) -> bool:
        return False

    def result(self) -> RamState | None:
        return self.state


class Disk:
    """At most `limit` bytes, by the clock of the machine."""

    shared = False  # between processes: there is one

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._states: StateCache[DiskState] = StateCache(limit)
        self._clock = clock
        self._kept: dict[DiskState, RamState] = {}
        self._writing: deque[tuple[float, RamState]] = deque()
        self._pending = 0
        self._reading: dict[DiskState, _Read] = {}
        self._writer_free_at = self._reader_free_at = 0.0
        self.n_read = 0

    def as_cache(self) -> DiskCache:
        """For what looks there, reads and writes, and no more."""
        return cast(DiskCache, self)

    def next_read_at(self) -> float | None:
        """When the next read has ended; None while there is none under way."""
        now = self._clock()
        return min((read.done_at for read in self._reading.values() if read.done_at > now), default=None)

    def match(
        self,
        prompt: Sequence[int],
        wanted: Tuning,
        at_least: int,
        hashes: PrefixHashes | None = None,
        most: int | None = None,
    ) -> tuple[DiskState | None, int]:
        self._settle()
        return self._states.match(prompt, wanted, at_least, hashes, most)

    def wants(self, tokens: Sequence[int], tuning: Tuning, n_lost: int, hashes: PrefixHashes | None = None) -> bool:
        self._settle()
        return self._states.wants(tokens, tuning, n_lost, hashes)

    def takes(self, n_bytes: int) -> bool:
        self._settle()
        return (not self._pending or self._pending + n_bytes <= MAX_PENDING) and self._states.fits(n_bytes)

    def put(self, state: RamState) -> None:
        if not self.takes(state.size) or self._states.holds(state.tokens, state.tuning, state.hashes):
            return
        self._pending += state.size
        self._writer_free_at = max(self._writer_free_at, self._clock()) + state.size / HASHED
        self._writing.append((self._writer_free_at, state))

    def read(self, entry: DiskState) -> _Read:
        read = self._reading.get(entry)
        if read is None:
            kept = self._kept.get(entry)
            if kept is None:  # it had to go since it was found
                return _Read(None, 0.0, self._clock)
            self._reader_free_at = max(self._reader_free_at, self._clock()) + entry.size / HASHED
            saved = ram_state(kept.slot_state, entry.used_at, hashes=kept.hashes)
            read = self._reading[entry] = _Read(saved, self._reader_free_at, self._clock)
            self.n_read += 1
        return read

    def _settle(self) -> None:
        """What was written or read by now."""
        now = self._clock()
        while self._writing and self._writing[0][0] <= now:
            at, state = self._writing.popleft()
            self._pending -= state.size
            entry = DiskState(
                *(state.tokens, state.tuning, state.n_exact, state.size, state.used_at),
                hashes=state.hashes,
            )
            for group in self._states.put(entry, at):
                for gone in group:
                    self._kept.pop(gone, None)
            if entry in self._states:
                self._kept[entry] = state
        for entry in [entry for entry, read in self._reading.items() if read.done()]:
            if entry in self._states:
                self._states.touch(entry, now)
            del self._reading[entry]
