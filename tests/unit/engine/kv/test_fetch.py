"""What is read ahead for a queue: in its order, bounded, and nobody starves."""

from concurrent.futures import Future
from typing import cast

from server.engine import disk_cache
from server.engine.costs import MoveCost
from server.engine.disk_cache import LEAST_S, DiskCache
from server.engine.lora import NEVER, NO_ADAPTERS
from server.engine.prefix_cache import CacheEntry, Fetch, SlotState, in_ram
from server.engine.sequence import Sequence
from tests.unit.engine.builders import sequence


class Disk:
    """Reads nothing until a test says that it is there."""

    def __init__(self) -> None:
        self.reading: dict[str, Future[CacheEntry | None]] = {}
        self.asked: list[str] = []

    def read(self, entry: CacheEntry) -> "Future[CacheEntry | None]":
        self.asked.append(entry.name)
        future = self.reading[entry.name] = Future()
        return future

    def arrival(self, name: str) -> None:
        self.reading[name].set_result(in_ram(SlotState([1], b"", NO_ADAPTERS, NEVER), 0.0))


class Queue:
    """Sequences that each want a state from `disk`, in the order of placement."""

    def __init__(self, *names: str) -> None:
        self.disk = Disk()
        self.entries: dict[str, CacheEntry] = {}
        self.sequences = [self.wants(name, float(at)) for at, name in enumerate(names)]

    def wants(self, name: str, at: float) -> Sequence:
        entry = self.entries.setdefault(name, CacheEntry(SlotState([1], b"", NO_ADAPTERS, NEVER), 100, 0.0, name=name))
        made = sequence([1], at=at, client=name)
        made.fetch = Fetch(entry, 100)
        return made

    def start(self, now: float = 0.0) -> list[str]:
        """Whose reading begins."""
        before = len(self.disk.asked)
        disk_cache.start_reading(self.sequences, cast(DiskCache, self.disk), MoveCost(), now)
        return self.disk.asked[before:]

    def held(self) -> list[str]:
        """Who has a state, or one that comes."""
        return [s.request.client for s in self.sequences if s.fetch and s.fetch.future]


def test_two_are_read_and_the_next_when_one_is_placed() -> None:
    queue = Queue("a", "b", "c", "d")
    assert queue.start() == ["a", "b"]
    queue.disk.arrival("a")
    assert queue.start() == []
    del queue.sequences[0]
    assert queue.start() == ["c"]


def test_the_first_in_the_queue_is_read_although_others_are_held() -> None:
    queue = Queue("a", "b", "c")
    queue.start()
    queue.disk.arrival("b")
    queue.sequences.insert(0, queue.wants("urgent", 9.0))
    assert queue.start() == ["urgent"]
    assert queue.held() == ["urgent", "a", "b"]
    del queue.sequences[:2]
    assert queue.start() == ["c"]


def test_what_was_waited_for_in_vain_is_let_go_and_makes_room() -> None:
    queue = Queue("a", "b", "c")
    queue.start()
    assert disk_cache.wait_s(queue.sequences, 1.0) == 1.0
    disk_cache.give_up_late(queue.sequences, 100.0)
    assert queue.held() == []
    assert queue.start(100.0) == ["c"]
    assert (disk_cache.wait_s(queue.sequences, 100.0) or 0.0) >= LEAST_S
