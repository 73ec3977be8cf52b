"""Prompt states on disk: written, found again, read ahead for a queue, and saved at the end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from server.engine.cache import disk_cache
from server.engine.cache.disk_cache import DiskCache
from server.engine.cache.kv_store import UNKNOWN_S, Cells
from server.engine.cache.prefix_cache import CacheEntry, Fetch
from server.engine.engine import Engine
from server.engine.lora import NO_ADAPTERS
from server.engine.params import EngineParams
from server.engine.scheduler import Scheduler
from server.engine.sequence import Sequence
from server.errors import InternalError, InvalidRequest, ShuttingDown
from tests.support.fakes import FakeRunner
from tests.support.waiting import wait_until
from tests.unit.engine.builders import alone, engine_over, request, run, sequence

TEXT = list(range(100))
SIZE = 10_000  # of every file


def still() -> float:
    """A clock that does: nothing is too slow to wait for, or to save."""
    return 0.0


class Files:
    """A folder in memory. ``gate``: every read waits for it; ``failing``: what the next write or index raises."""

    def __init__(self) -> None:
        self.saved: dict[str, CacheEntry] = {}
        self.damaged: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.reading = threading.Event()
        self.failing: Exception | None = None
        self.shared, self.follow_s = False, 60.0
        self.known: set[str] = set()

    def others(self) -> tuple[list[CacheEntry], set[str]]:
        found = {entry.name: entry for entry in self.index()}
        fresh, gone = found.keys() - self.known, self.known - found.keys()
        self.known = set(found)
        return [found[name] for name in fresh], gone

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
        self.reading.set()
        assert self.gate.wait(60)
        if name in self.damaged:
            raise InvalidRequest("it is damaged")
        return replace(self.saved[name])

    def used(self, name: str) -> None:
        assert name in self.saved

    def remove(self, name: str) -> None:
        self.saved.pop(name, None)


@contextmanager
def disk_over(files: Files, limit: int = 10 * SIZE) -> Iterator[DiskCache]:
    disk = DiskCache(files, limit, lambda: 100.0, lambda: None, can_cut=True)
    disk.ready.result(60)
    try:
        yield disk
    finally:
        disk.close()


def state(tokens: list[int], last_used: float = 0.0) -> CacheEntry:
    return CacheEntry(tokens, last_used=last_used, state=bytes(100))


def put(files: Files, *states: CacheEntry, limit: int = 10 * SIZE) -> None:
    """Write them, and wait until they are written."""
    with disk_over(files, limit) as disk:
        for one in states:
            disk.put(one)


def test_what_was_put_there_is_found_and_read() -> None:
    files = Files()
    with disk_over(files) as disk:
        disk.put(state(TEXT))
        disk._writer.submit(lambda: None).result(60)
        assert (len(disk.index), disk.index.size) == (1, SIZE)
        entry, n = disk.index.match([*TEXT, 7], NO_ADAPTERS, 0)
        assert entry is not None
        assert n == 100
        assert not disk.wants(state(TEXT))
        assert not disk.wants(replace(state([*TEXT, *range(200, 300)]), n_exact=100))  # nobody reuses the others
        found = disk.read(entry).result(60)
        assert found is not None
        assert (found.tokens, found.state) == (TEXT, state(TEXT).state)
        assert disk.index.n_hits == 1


def test_the_least_valuable_files_go_when_there_is_no_room() -> None:
    files = Files()
    put(files, *(state([i, *TEXT], float(i)) for i in range(5)), limit=3 * SIZE)
    assert sorted(s.tokens[0] for s in files.saved.values()) == [2, 3, 4]
    with disk_over(files, 2 * SIZE) as disk:
        assert len(disk.index) == 2
    assert len(files.saved) == 2


def test_a_file_that_holds_other_tokens_than_its_index_is_dropped() -> None:
    files = Files()
    put(files, state(TEXT))
    with disk_over(files) as disk:
        (name,) = files.saved
        files.saved[name] = replace(files.saved[name], tokens=TEXT[::-1])
        entry, _ = disk.index.match(TEXT, NO_ADAPTERS, 0)
        assert entry is not None
        assert disk.read(entry).result(60) is None
    assert not files.saved


@pytest.mark.parametrize("error", [InternalError("the folder is used by another process"), RuntimeError("a fault")])
def test_without_a_folder_it_keeps_nothing(error: Exception) -> None:
    files = Files()
    files.failing = error
    with disk_over(files) as disk:
        disk.put(state(TEXT))
        assert not disk.wants(state(TEXT))
        assert disk.index.match(TEXT, NO_ADAPTERS, 0) == (None, 0)


# ---- with an engine


@pytest.mark.parametrize("can_cut", [True, False])
@pytest.mark.parametrize("cache_ram", [0, -1])
async def test_conversations_outlive_their_engine(can_cut: bool, cache_ram: int) -> None:
    files = Files()
    histories = {name: name * 200 for name in "abc"}
    for n_start in range(3):
        runner = FakeRunner(n_seq=1, n_ctx_seq=1024, partial_removal=can_cut)
        async with engine_over(runner, cache_ram=cache_ram, cache_disk=1, clock=still) as engine:
            await engine.use_disk(files)
            for name, history in histories.items():
                wanted = request(history)
                (reply,) = await run(engine, wanted)
                assert reply.text == alone(wanted)
                assert (reply.started.n_cached >= 190) == (n_start > 0)
                histories[name] = history + reply.text + "and?"
            assert engine.stats.n_disk_hits == (3 if n_start else 0)
        assert len(files.saved) == 3


@asynccontextmanager
async def engine_on(files: Files) -> AsyncIterator[Engine]:
    """An engine whose states are in that folder."""
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=1024), cache_disk=1, clock=still) as engine:
        await engine.use_disk(files)
        yield engine


async def on_disk(prompt: str) -> Files:
    """A folder with the state of one conversation."""
    files = Files()
    async with engine_on(files) as engine:
        await run(engine, request(prompt))
    return files


async def test_a_damaged_file_costs_a_computation_and_no_more() -> None:
    files = await on_disk("a" * 300)
    files.damaged = set(files.saved)
    async with engine_on(files) as engine:
        (reply,) = await run(engine, request("a" * 300 + "b"))
        assert engine.stats.n_disk_dropped == 1
    assert reply.started.n_cached == 0
    assert reply.text == alone(request("a" * 300 + "b"))


class SlowlyWritten(Files):
    """Every write waits for ``may_write``."""

    def __init__(self) -> None:
        super().__init__()
        self.writing, self.may_write = threading.Event(), threading.Event()

    def write(self, name: str, entry: CacheEntry, used: Collection[str]) -> int:
        self.writing.set()
        assert self.may_write.wait(60)
        return super().write(name, entry, used)


async def reset_during_a_write(engine: Engine, files: SlowlyWritten, texts: str) -> tuple[DiskCache, asyncio.Task[int]]:
    """Reset while the first of `texts` is being written, the others wait for that, and a slot has the last. Return when
    those that wait are dropped.
    """
    await engine.use_disk(files)
    for text in texts:
        await run(engine, request(text * 100, max_tokens=1))
    assert await asyncio.to_thread(files.writing.wait, 60)
    disk = engine._disk
    assert disk is not None
    reset = asyncio.create_task(engine.reset_cache())
    await asyncio.to_thread(wait_until, lambda: reset.done() or not disk._writing, "dropped")
    return disk, reset


async def test_a_reset_drops_what_is_being_written_too() -> None:
    files = SlowlyWritten()
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=1024), cache_ram=0, cache_disk=1, clock=still) as engine:
        disk, reset = await reset_during_a_write(engine, files, "abc")
        files.may_write.set()
        assert await reset > 3 * 100
        disk._writer.submit(lambda: None).result(60)
        assert not files.saved
        await run(engine, request("d" * 100, max_tokens=1), request("e" * 100, max_tokens=1))
        disk._writer.submit(lambda: None).result(60)
        assert len(files.saved) == 1  # later states are written


async def test_a_reset_that_the_end_of_the_model_overtakes_is_refused() -> None:
    files, runner = SlowlyWritten(), FakeRunner(n_seq=1, n_ctx_seq=1024)
    async with engine_over(runner, cache_ram=0, cache_disk=1, clock=still) as engine:
        _, reset = await reset_during_a_write(engine, files, "ab")
        end = asyncio.create_task(engine.close())
        await asyncio.to_thread(wait_until, lambda: runner.closed, "the end of the step thread")
        assert not reset.done()
        files.may_write.set()
        with pytest.raises(ShuttingDown):
            await reset
        await end


async def test_a_reset_after_the_end_of_the_model_is_refused_and_drops_nothing() -> None:
    files = Files()
    async with engine_on(files) as engine:
        await run(engine, request("a" * 100))
    with pytest.raises(ShuttingDown):
        await engine.reset_cache()
    assert files.saved


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_states_are_saved_although_requests_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: object) -> None:
        raise ZeroDivisionError("a bug")

    files = Files()
    async with engine_on(files) as engine:
        await run(engine, request("a" * 100))
        monkeypatch.setattr(engine._instances[0]._requests, "fail_all", breaks)
    assert files.saved


async def test_the_wait_is_bounded() -> None:
    """By a clock that stands still until the test moves it."""
    files = await on_disk("a" * 300)
    files.gate.clear()
    now = [0.0]
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=1024), cache_disk=1, clock=lambda: now[0]) as engine:
        await engine.use_disk(files)
        waits = asyncio.ensure_future(run(engine, request("a" * 300 + "b")))
        await asyncio.to_thread(files.reading.wait, 60)
        await run(engine, request("something else"))
        assert not waits.done()
        now[0] = 1000.0
        await run(engine, request("something else"))
        (reply,) = await waits
        assert reply.started.n_cached == 1
        files.gate.set()


def test_what_other_processes_write_and_remove_is_seen() -> None:
    files = Files()
    files.follow_s = 0.001
    other = state([1] * 40)
    with disk_over(files) as disk:
        files.saved["other.state"] = other
        wait_until(lambda: len(disk.index) == 1, "the file of the other process")
        assert not disk.wants(other)
        entry, n = disk.index.match([*other.tokens, 7], NO_ADAPTERS, 0)
        assert (entry and entry.name, n) == ("other.state", 40)
        del files.saved["other.state"]
        wait_until(lambda: not disk.index, "its end")


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
        self.reading[name].set_result(CacheEntry([1]))


class Queue:
    """Sequences that each want a state from `disk`, in the order of placement. Slot 1 is busy."""

    def __init__(self, *names: str) -> None:
        self.disk, self.now, runner = Disk(), 0.0, FakeRunner(n_seq=3)
        self.scheduler = Scheduler(runner.info, EngineParams())
        self.scheduler.placer.disk = cast(DiskCache, self.disk)
        self.scheduler.slots[1].sequence = sequence([1])
        self.cells = Cells(runner, self.scheduler, lambda: self.now)
        self.sequences = [self.add(name) for name in names]

    def add(self, name: str, **options: Any) -> Sequence:
        made = sequence([1], at=float(len(self.scheduler.waiting)), client=name, **options)
        made.fetch = Fetch(CacheEntry([1], name=name), 100)
        self.scheduler.waiting.append(made)
        return made

    def start(self) -> list[str]:
        """Whose reading begins."""
        before = len(self.disk.asked)
        self.cells.start_reading()
        return self.disk.asked[before:]


def test_two_are_read_and_the_next_when_one_is_placed() -> None:
    queue = Queue("a", "b", "c", "d")
    assert queue.start() == ["a", "b"]
    queue.disk.arrival("a")
    assert queue.start() == []
    queue.scheduler.waiting.remove(queue.sequences[0])
    assert queue.start() == ["c"]


def test_the_first_in_the_queue_is_read_although_others_are_held() -> None:
    queue = Queue("a", "b", "c")
    queue.start()
    queue.disk.arrival("b")
    urgent = queue.add("urgent", priority=-1)
    assert queue.start() == ["urgent"]
    for one in (urgent, queue.sequences[0]):
        queue.scheduler.waiting.remove(one)
    assert queue.start() == ["c"]


def test_reads_for_a_busy_slot_delay_no_other_reads() -> None:
    queue = Queue()
    for name, id_slot in (("a", 1), ("b", 1), ("c", -1), ("d", 2)):
        queue.add(name, id_slot=id_slot)
    assert queue.start() == ["c", "d"]


def test_what_was_waited_for_in_vain_is_let_go_and_makes_room() -> None:
    queue = Queue("a", "b", "c")
    queue.start()
    assert disk_cache.wait_s(queue.scheduler.waiting, 1.0) == 1.0
    queue.now = 100.0
    assert queue.start() == ["c"]
    assert disk_cache.wait_s(queue.scheduler.waiting, 100.0) == UNKNOWN_S


@pytest.mark.timeout(60)
async def test_the_most_valuable_are_written_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "MAX_PENDING", 1)
    written: list[int] = []

    class Ordered(Files):
        def write(self, name: str, entry: CacheEntry, used: Collection[str]) -> int:
            written.append(len(entry.tokens))
            return super().write(name, entry, used)

    async with engine_over(FakeRunner(n_seq=3, n_ctx_seq=512), clock=still, cache_disk=1, cache_ram=1) as engine:
        await engine.use_disk(Ordered())
        await run(engine, *(request(letter * n, max_tokens=1) for letter, n in zip("abc", (50, 150, 100), strict=True)))
        await run(engine, request("d" * 200, max_tokens=1))  # one goes to RAM
    assert written == sorted(written, reverse=True)
    assert len(written) == 4
