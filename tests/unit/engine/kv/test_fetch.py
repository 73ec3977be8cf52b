"""What is read ahead for a queue: in its order, bounded, and nobody starves."""

from concurrent.futures import Future
from typing import cast

from server.engine import disk_cache
from server.engine.costs import MoveCost
from server.engine.disk_cache import LEAST_S, READ_AHEAD, DiskCache
from server.engine.lora import NEVER, NO_ADAPTERS
from server.engine.prefix_cache import CacheEntry, Fetch, SlotState, in_ram
from server.engine.request import Request
from server.engine.sequence import Sequence, Ticket
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run
from tests.unit.engine.kv.test_disk import Files, still


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

    def __init__(self, *names: str, size: int = 100, most: int = 2) -> None:
        self.disk = Disk()
        self.most = most
        self.size = size
        self.entries: dict[str, CacheEntry] = {}
        self.sequences = [self.wants(name, float(at)) for at, name in enumerate(names)]

    def wants(self, name: str, at: float) -> Sequence:
        entry = self.entries.setdefault(
            name, CacheEntry(SlotState([1], b"", NO_ADAPTERS, NEVER), self.size, 0.0, name=name)
        )
        sequence = Sequence(Ticket(Request(name, [1]), lambda events: None, at), 0, [1])
        sequence.fetch = Fetch(entry, 100)
        return sequence

    def start(self, now: float = 0.0) -> list[str]:
        """Whose reading begins."""
        before = len(self.disk.asked)
        disk_cache.start_reading(self.sequences, cast(DiskCache, self.disk), MoveCost(), now, self.most)
        return self.disk.asked[before:]

    def held(self) -> list[str]:
        """Who has a state, or one that comes."""
        return [s.request.id for s in self.sequences if s.fetch and s.fetch.future]


def test_as_many_are_read_as_there_are_slots_and_the_next_when_one_is_placed() -> None:
    queue = Queue("a", "b", "c", "d")
    assert queue.start() == ["a", "b"]
    queue.disk.arrival("a")
    assert queue.start() == []
    del queue.sequences[0]
    assert queue.start() == ["c"]


def test_large_states_are_read_one_by_one() -> None:
    queue = Queue("a", "b", "c", size=READ_AHEAD * 2 // 3, most=8)
    assert queue.start() == ["a"]
    queue.disk.arrival("a")
    assert queue.start() == []
    del queue.sequences[0]
    assert queue.start() == ["b"]


def test_those_who_want_the_same_share_one_reading() -> None:
    queue = Queue("a", "a", "b", "a")
    assert queue.start() == ["a", "b"]
    queue.disk.arrival("a")
    queue.sequences.append(queue.wants("a", 5.0))
    assert queue.start() == []
    assert queue.held() == ["a", "a", "b", "a", "a"]


def test_for_the_first_in_the_queue_the_last_gives_way() -> None:
    queue = Queue("a", "b", "c")
    queue.start()
    queue.disk.arrival("b")
    queue.sequences.insert(0, queue.wants("urgent", 9.0))
    assert queue.start() == ["urgent"]
    assert queue.held() == ["urgent", "a"]
    del queue.sequences[:2]
    assert queue.start() == ["b", "c"]


def test_the_oldest_is_read_though_others_always_come_first() -> None:
    queue = Queue("b", "c")
    queue.start()
    queue.sequences.append(queue.wants("old", -1.0))
    assert queue.start() == ["old"]
    queue.sequences.insert(0, queue.wants("urgent", 9.0))
    assert queue.start() == ["urgent"]
    assert queue.held() == ["urgent", "old"]


def test_what_was_waited_for_in_vain_is_let_go_and_makes_room() -> None:
    queue = Queue("a", "b", "c", most=1)
    queue.start()
    assert disk_cache.wait_s(queue.sequences, 1.0) == 1.0
    disk_cache.give_up_late(queue.sequences, 100.0)
    assert queue.held() == []
    assert queue.start(100.0) == ["b"]
    assert (disk_cache.wait_s(queue.sequences, 100.0) or 0.0) >= LEAST_S


def test_a_file_that_was_damaged_holds_nothing() -> None:
    queue = Queue("a", "b", most=1)
    queue.start()
    queue.disk.reading["a"].set_result(None)
    assert queue.start() == ["b"]


async def test_a_crowd_comes_back_from_disk_a_few_at_a_time() -> None:
    files = Files()
    names = "abcdefghij"
    async with engine_over(FakeRunner(n_seq=2, n_ctx_seq=1024), cache_ram=0, cache_disk=1, clock=still) as engine:
        await engine.use_disk(files)
        for name in names:
            await run(engine, request(name * 300))
    async with engine_over(FakeRunner(n_seq=2, n_ctx_seq=1024), cache_ram=0, cache_disk=1, clock=still) as engine:
        await engine.use_disk(files)
        replies = await run(engine, *(request(name * 300 + "!", priority=i % 3) for i, name in enumerate(names)))
    assert [r.started.n_cached for r in replies] == [301] * 10
