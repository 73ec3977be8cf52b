"""States that waiting requests want from disk: each is read once, while others go on, and for a bounded time.

They are read in the order of the queue: as many at a time as there are slots, of at most `READ_AHEAD` bytes.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server.engine.kv.cost import Worth
from server.engine.kv.ram_cache import MIB, Stored

if TYPE_CHECKING:  # both know a fetch
    from server.engine.kv.disk_cache import DiskTier, OnDisk
    from server.engine.sequence import Sequence

LEAST_S = 0.05
UNKNOWN_S = 2.0  # longest wait where nobody knows yet how long computing would take
READ_AHEAD = 512 * MIB  # of the states that are read or held for an instance's queue, where that are more than two


@dataclass(eq=False, slots=True)
class Fetch:
    """What one sequence waits for: ``n`` tokens of ``entry``. It has no ``future`` until its turn comes."""

    entry: "OnDisk"
    n: int
    future: "Future[Stored | None] | None" = None
    wait_until: float = 0.0
    given_up: bool = False

    @property
    def pending(self) -> bool:
        """It may still come."""
        return not self.given_up and (self.future is None or not self.future.done())

    @property
    def found(self) -> Stored | None:
        """The state, once it is there."""
        if self.given_up or self.future is None or not self.future.done() or self.future.cancelled():
            return None
        return self.future.result()


def start(queue: "Iterable[Sequence]", disk: "DiskTier", worth: Worth, now: float, most: int) -> None:
    """Begin to read what the scheduler has found on disk: as long as computing would take, or less.

    `queue` is in the order of placement; of at most `most` states at a time. For its first and its oldest, what is held
    for the last gives way, and is read again when their turn comes: whatever the order does, nobody starves.
    """
    live = _live(queue)
    held = [entry for entry, fetches in live.items() if any(f.future is not None for _, f in fetches)]
    oldest = min(live, key=lambda entry: min(at for at, _ in live[entry]), default=None)
    urgent, full = {*list(live)[:1], oldest}, False
    for entry, fetches in live.items():
        if entry not in held:
            full = full or not _has_room(held, entry, most)
            if full and entry not in urgent:
                continue
            while not _has_room(held, entry, most) and (last := _last(live, held, urgent)) is not None:
                held.remove(last)
                for _, fetch in live[last]:
                    fetch.future = None
            held.append(entry)
        future = next((f.future for _, f in fetches if f.future is not None), None) or disk.read(entry)
        for _, fetch in fetches:
            if fetch.future is None:
                fetch.future = future
                fetch.wait_until = now + max(worth.compute_s(fetch.n) or UNKNOWN_S, LEAST_S)


def _live(queue: "Iterable[Sequence]") -> "dict[OnDisk, list[tuple[float, Fetch]]]":
    """What may come or is there, in the order of `queue`, with the time at which each who wants it was submitted."""
    live: dict[OnDisk, list[tuple[float, Fetch]]] = {}
    for sequence in queue:
        fetch = sequence.fetch
        if fetch is not None and (fetch.pending or fetch.found is not None):
            live.setdefault(fetch.entry, []).append((sequence.ticket.submitted_at, fetch))
    return live


def _has_room(held: "list[OnDisk]", entry: "OnDisk", most: int) -> bool:
    return not held or (len(held) < most and sum(e.size for e in held) + entry.size <= READ_AHEAD)


def _last(live: "Iterable[OnDisk]", held: "list[OnDisk]", urgent: "set[OnDisk | None]") -> "OnDisk | None":
    """What is held for the last in the queue."""
    late = [entry for entry in live if entry in held and entry not in urgent]
    return late[-1] if late else None


def wait_s(waiting: "Iterable[Sequence]", now: float) -> float | None:
    """Seconds until somebody has waited long enough; None when nobody waits."""
    return min((max(fetch.wait_until - now, 0.0) for fetch in _reading(waiting)), default=None)


def wanted(waiting: "Iterable[Sequence]") -> bool:
    """Whether there is something to read."""
    return any(s.fetch is not None and s.fetch.future is None and not s.fetch.given_up for s in waiting)


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
