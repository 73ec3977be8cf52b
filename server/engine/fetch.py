"""States that waiting requests want from disk: each is read once, while others go on, and for a bounded time."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server.engine.tier import Stored
from server.engine.worth import Worth

if TYPE_CHECKING:  # both know a fetch
    from server.engine.disk import DiskTier, OnDisk
    from server.engine.sequence import Sequence

LEAST_S = 0.05
UNKNOWN_S = 2.0  # longest wait where nobody knows yet how long computing would take


@dataclass(eq=False, slots=True)
class Fetch:
    """What one sequence waits for: ``n`` tokens of ``entry``."""

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


def start(waiting: "Iterable[Sequence]", disk: "DiskTier", worth: Worth, now: float) -> None:
    """Begin to read what the scheduler has found on disk: as long as computing would take, or less."""
    for sequence in waiting:
        fetch = sequence.fetch
        if fetch is not None and fetch.future is None:
            fetch.future = disk.read(fetch.entry)
            fetch.wait_until = now + max(worth.compute_s(fetch.n) or UNKNOWN_S, LEAST_S)


def wait_s(waiting: "Iterable[Sequence]", now: float) -> float | None:
    """Seconds until somebody has waited long enough; None when nobody waits."""
    return min((max(fetch.wait_until - now, 0.0) for fetch in _reading(waiting)), default=None)


def give_up_late(waiting: "Iterable[Sequence]", now: float) -> None:
    """Who has waited long enough goes on without it."""
    for fetch in _reading(waiting):
        fetch.given_up = now >= fetch.wait_until


def _reading(waiting: "Iterable[Sequence]") -> "Iterator[Fetch]":
    for sequence in waiting:
        fetch = sequence.fetch
        if fetch is not None and fetch.future is not None and fetch.pending:
            yield fetch
