"""`StateFiles` in memory, for tests of the disk tier."""

from collections.abc import Collection
from dataclasses import replace

from server.engine.cache.prefix_cache import CacheEntry
from server.errors import InvalidRequest
from tests.unit.engine.builders import Gate

SIZE = 10_000  # of every file


class FakeFiles:
    """A folder in memory.

    Reads wait at ``read_gate``, which is open at first. ``failing``: the error that `write` and `index` raise.
    """

    def __init__(self) -> None:
        self.saved: dict[str, CacheEntry] = {}
        self.damaged: set[str] = set()
        self.read_gate = Gate()
        self.read_gate.opened.set()
        self.failing: Exception | None = None
        self.shared, self.follow_s = False, 60.0
        self._known: set[str] = set()

    def others(self) -> tuple[list[CacheEntry], set[str]]:
        found = {entry.name: entry for entry in self.index()}
        new, removed = found.keys() - self._known, self._known - found.keys()
        self._known = set(found)
        return [found[name] for name in new], removed

    def index(self) -> list[CacheEntry]:
        if self.failing:
            raise self.failing
        return [replace(entry.in_file(name, SIZE), last_used=-10.0) for name, entry in self.saved.items()]

    def write(self, name: str, entry: CacheEntry, used: Collection[str]) -> int:
        if self.failing:
            raise self.failing
        self.saved[name] = entry
        return SIZE

    def read(self, name: str) -> CacheEntry:
        self.read_gate()
        if name in self.damaged:
            raise InvalidRequest("it is damaged")
        return replace(self.saved[name])

    def used(self, name: str) -> None:
        assert name in self.saved

    def remove(self, name: str) -> None:
        self.saved.pop(name, None)
