"""Prompt states on disk, over files that a test holds in its hands."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import pytest

from server.engine.disk_cache import DiskCache, FolderInUse
from server.engine.engine import Engine
from server.engine.lora import NEVER, NO_ADAPTERS
from server.engine.prefix_cache import CacheEntry, SlotState, in_ram
from server.errors import InternalError, InvalidRequest
from tests.support.fakes import FakeRunner
from tests.support.waiting import wait_until
from tests.unit.engine.builders import alone, engine_over, request, run

TEXT = list(range(100))
SIZE = 10_000  # of every file


def still() -> float:
    """A clock that does: nothing is too slow to wait for, or to save."""
    return 0.0


class Files:
    """A folder in memory. ``gate``: every read waits for it; ``failing``: what the next write or index raises."""

    def __init__(self) -> None:
        self.saved: dict[str, SlotState] = {}
        self.damaged: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.reading = threading.Event()
        self.failing: Exception | None = None
        self.n_reads = 0
        self.closed = False
        self.follow_s: float | None = None
        self.known: set[str] = set()

    def others(self) -> tuple[list[CacheEntry], set[str]]:
        found = {entry.name: entry for entry in self.index()}
        fresh, gone = found.keys() - self.known, self.known - found.keys()
        self.known = set(found)
        return [found[name] for name in fresh], gone

    def index(self) -> list[CacheEntry]:
        if self.failing:
            raise self.failing
        return [CacheEntry(s.without_bytes, SIZE, -10.0, name=name) for name, s in self.saved.items()]

    def write(self, name: str, saved: SlotState) -> int:
        if self.failing:
            raise self.failing
        self.saved[name] = saved
        return SIZE

    def read(self, name: str) -> SlotState:
        self.reading.set()
        assert self.gate.wait(60)
        self.n_reads += 1
        if name in self.damaged:
            raise InvalidRequest("it is damaged")
        return self.saved[name]

    def used(self, name: str) -> None:
        assert name in self.saved

    def remove(self, name: str) -> None:
        self.saved.pop(name, None)

    def close(self) -> None:
        self.closed = True


@contextmanager
def disk_over(files: Files, limit: int = 10 * SIZE, *, can_cut: bool = True) -> Iterator[DiskCache]:
    disk = DiskCache(files, limit, lambda: 100.0, lambda: None, can_cut=can_cut)
    disk.ready.result(60)
    try:
        yield disk
    finally:
        disk.close()
        assert files.closed


def state(tokens: list[int], used_at: float = 0.0) -> CacheEntry:
    return in_ram(SlotState(tokens, bytes(100), NO_ADAPTERS, NEVER), used_at)


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
        assert (len(disk.kept), disk.kept.size) == (1, SIZE)
        entry, n = disk.kept.match([*TEXT, 7], NO_ADAPTERS, 0)
        assert entry is not None
        assert n == 100
        assert not disk.wants(state(TEXT), 100)
        found = disk.read(entry).result(60)
        assert found is not None
        assert found.saved == state(TEXT).saved
        assert disk.kept.n_hits == 1


def test_the_least_valuable_files_go_when_there_is_no_room() -> None:
    files = Files()
    put(files, *(state([i, *TEXT], float(i)) for i in range(5)), limit=3 * SIZE)
    assert sorted(s.tokens[0] for s in files.saved.values()) == [2, 3, 4]
    with disk_over(files, 2 * SIZE) as disk:
        assert len(disk.kept) == 2
    assert len(files.saved) == 2


def test_a_file_that_holds_other_tokens_than_its_index_is_dropped() -> None:
    files = Files()
    put(files, state(TEXT))
    with disk_over(files) as disk:
        (name,) = files.saved
        files.saved[name] = replace(files.saved[name], tokens=TEXT[::-1])
        entry, _ = disk.kept.match(TEXT, NO_ADAPTERS, 0)
        assert entry is not None
        assert disk.read(entry).result(60) is None
    assert not files.saved


@pytest.mark.parametrize("error", [InternalError("the folder is used by another process"), RuntimeError("a fault")])
def test_without_a_folder_it_keeps_nothing(error: Exception) -> None:
    files = Files()
    files.failing = error
    with disk_over(files) as disk:
        disk.put(state(TEXT))
        assert not disk.wants(state(TEXT), 100)
        assert disk.kept.match(TEXT, NO_ADAPTERS, 0) == (None, 0)


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
async def engine_on(files: Files, n_seq: int = 1) -> AsyncIterator[Engine]:
    """An engine whose states are in that folder."""
    async with engine_over(FakeRunner(n_seq=n_seq, n_ctx_seq=1024), cache_disk=1, clock=still) as engine:
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


def test_files_of_another_process_are_taken_up_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.engine.disk_cache.RETRY_S", 0.001)
    files, woken = Files(), threading.Event()
    put(files, state([1] * 40))
    files.failing = FolderInUse("the folder is used by another process")
    disk = DiskCache(files, 10 * SIZE, lambda: 100.0, woken.set, can_cut=True)
    disk.ready.result(60)
    assert not disk.takes(1)
    assert len(disk.kept) == 0
    files.failing = None
    assert woken.wait(60)
    assert disk.takes(1)
    assert len(disk.kept) == 1
    disk.close()


def test_what_other_processes_write_and_remove_is_seen() -> None:
    files = Files()
    files.follow_s = 0.001
    other = state([1] * 40)
    with disk_over(files) as disk:
        assert disk.shared
        files.saved["other.state"] = other.saved
        wait_until(lambda: len(disk.kept) == 1, "the file of the other process")
        assert not disk.wants(other, 40)
        entry, n = disk.kept.match([*other.tokens, 7], NO_ADAPTERS, 0)
        assert (entry and entry.name, n) == ("other.state", 40)
        del files.saved["other.state"]
        wait_until(lambda: not disk.kept, "its end")
