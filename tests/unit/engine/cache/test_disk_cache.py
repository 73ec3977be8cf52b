"""The disk tier: states that are written, found again, read ahead for the queue, and saved when a model is unloaded.
Files are in memory (`FakeFiles`).
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from server.engine.cache import disk_cache
from server.engine.cache.disk_cache import DiskCache
from server.engine.cache.prefix_cache import CacheEntry, Fetch
from server.engine.engine import Engine
from server.engine.kv_store import UNKNOWN_S, Cells
from server.engine.lora import NO_ADAPTERS
from server.engine.params import EngineParams
from server.engine.scheduler import Scheduler
from server.engine.sequence import Sequence
from server.errors import InternalError, ShuttingDown
from tests.support.fakes import FakeRunner
from tests.support.waiting import wait_until
from tests.unit.clock import Clock
from tests.unit.engine.builders import Gate, engine_over, expected_text, request, run, sequence
from tests.unit.engine.cache.fake_files import SIZE, FakeFiles

TOKENS = list(range(100))


@contextmanager
def disk_over(files: FakeFiles, limit: int = 10 * SIZE) -> Iterator[DiskCache]:
    disk = DiskCache(files, limit, lambda: 100.0, lambda: None, can_cut=True)
    disk.ready.result(60)
    try:
        yield disk
    finally:
        disk.close()


def wait_written(disk: DiskCache) -> None:
    disk._writer.submit(lambda: None).result(60)


def state(tokens: list[int], last_used: float = 0.0) -> CacheEntry:
    return CacheEntry(tokens, last_used=last_used, state=bytes(100))


def test_written_state_is_found_and_read() -> None:
    with disk_over(FakeFiles()) as disk:
        disk.put(state(TOKENS))
        wait_written(disk)
        assert (len(disk.index), disk.index.n_bytes) == (1, SIZE)
        entry, n = disk.index.match([*TOKENS, 7], NO_ADAPTERS, 0)
        assert entry is not None
        assert n == 100
        assert not disk.wants(state(TOKENS))
        assert not disk.wants(replace(state([*TOKENS, *range(200, 300)]), n_exact=100))  # the rest is not reusable
        found = disk.read(entry).result(60)
        assert found is not None
        assert (found.tokens, found.state) == (TOKENS, state(TOKENS).state)
        assert disk.index.n_hits == 1


def test_full_disk_evicts_the_least_valuable_files() -> None:
    files = FakeFiles()
    with disk_over(files, 3 * SIZE) as disk:
        for i in range(5):
            disk.put(state([i, *TOKENS], float(i)))
    assert sorted(s.tokens[0] for s in files.saved.values()) == [2, 3, 4]
    with disk_over(files, 2 * SIZE) as disk:
        assert len(disk.index) == 2
    assert len(files.saved) == 2


def test_file_with_other_tokens_than_its_index_entry_is_deleted() -> None:
    files = FakeFiles()
    with disk_over(files) as disk:
        disk.put(state(TOKENS))
        wait_written(disk)
        (name,) = files.saved
        files.saved[name] = replace(files.saved[name], tokens=TOKENS[::-1])
        entry, _ = disk.index.match(TOKENS, NO_ADAPTERS, 0)
        assert entry is not None
        assert disk.read(entry).result(60) is None
    assert not files.saved


@pytest.mark.parametrize("error", [InternalError("the folder is used by another process"), RuntimeError("a fault")])
def test_disk_tier_is_off_if_its_folder_cannot_be_read(error: Exception) -> None:
    files = FakeFiles()
    files.failing = error
    with disk_over(files) as disk:
        disk.put(state(TOKENS))
        assert not disk.wants(state(TOKENS))
        assert disk.index.match(TOKENS, NO_ADAPTERS, 0) == (None, 0)


def test_files_that_other_processes_write_and_remove_are_noticed() -> None:
    files = FakeFiles()
    files.follow_s = 0.001
    other = state([1] * 40)
    with disk_over(files) as disk:
        files.saved["other.state"] = other
        wait_until(lambda: len(disk.index) == 1, "the file of the other process is indexed")
        assert not disk.wants(other)
        entry, n = disk.index.match([*other.tokens, 7], NO_ADAPTERS, 0)
        assert (entry and entry.name, n) == ("other.state", 40)
        del files.saved["other.state"]
        wait_until(lambda: not disk.index, "the removed file is dropped")


# ---- with an engine


@pytest.mark.parametrize("can_cut", [True, False])
@pytest.mark.parametrize("cache_ram", [0, -1])
async def test_conversations_continue_from_disk_after_a_restart(can_cut: bool, cache_ram: int) -> None:
    files = FakeFiles()
    histories = {name: name * 200 for name in "abc"}
    for n_restarts in range(3):
        runner = FakeRunner(n_seq=1, n_ctx_seq=1024, partial_removal=can_cut)
        async with engine_over(runner, cache_ram=cache_ram, cache_disk=1, clock=Clock()) as engine:
            await engine.use_disk(files)
            for name, history in histories.items():
                next_turn = request(history)
                (reply,) = await run(engine, next_turn)
                assert reply.text == expected_text(next_turn)
                assert (reply.started.n_cached >= 190) == (n_restarts > 0)
                histories[name] = history + reply.text + "and?"
            assert engine.stats.n_disk_hits == (3 if n_restarts else 0)
        assert len(files.saved) == 3


@asynccontextmanager
async def engine_on(files: FakeFiles) -> AsyncIterator[Engine]:
    """Open an engine with one slot whose disk tier is `files`."""
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=1024), cache_disk=1, clock=Clock()) as engine:
        await engine.use_disk(files)
        yield engine


async def files_with(prompt: str) -> FakeFiles:
    """Return files with the state of one conversation that starts with `prompt`."""
    files = FakeFiles()
    async with engine_on(files) as engine:
        await run(engine, request(prompt))
    return files


async def test_damaged_file_is_dropped_and_its_prompt_recomputed() -> None:
    files = await files_with("a" * 300)
    files.damaged = set(files.saved)
    async with engine_on(files) as engine:
        (reply,) = await run(engine, request("a" * 300 + "b"))
        assert engine.stats.n_disk_dropped == 1
    assert reply.started.n_cached == 0
    assert reply.text == expected_text(request("a" * 300 + "b"))


async def test_idle_caches_are_evicted_for_a_state_from_disk() -> None:
    files = await files_with("x" * 500)
    runner = FakeRunner(n_seq=4, n_ctx_seq=2048, n_cells=2048, unified=True)
    async with engine_over(runner, cache_disk=1, clock=Clock()) as engine:
        await engine.use_disk(files)
        for name in "abc":
            await run(engine, request(name * 650, max_tokens=2))
        (reply,) = await run(engine, request("x" * 500 + "!"))
    assert reply.started.n_cached == 501


class GatedWrites(FakeFiles):
    """Files whose writes each wait at ``write_gate``."""

    def __init__(self) -> None:
        super().__init__()
        self.write_gate = Gate()

    def write(self, name: str, entry: CacheEntry, used: Collection[str]) -> int:
        self.write_gate()
        return super().write(name, entry, used)


async def reset_during_a_write(engine: Engine, files: GatedWrites, texts: str) -> tuple[DiskCache, asyncio.Task[int]]:
    """Reset the cache while the first of `texts` is being written, the next ones wait for that write, and the last is
    in a slot. Return after the reset has dropped the waiting ones.
    """
    await engine.use_disk(files)
    for text in texts:
        await run(engine, request(text * 100, max_tokens=1))
    await files.write_gate.wait_entered()
    disk = engine._disk
    assert disk is not None
    reset = asyncio.create_task(engine.reset_cache())
    await asyncio.to_thread(wait_until, lambda: reset.done() or not disk._writing, "pending writes are dropped")
    return disk, reset


async def test_reset_also_drops_states_that_are_being_written() -> None:
    files = GatedWrites()
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=1024), cache_ram=0, cache_disk=1, clock=Clock()) as engine:
        disk, reset = await reset_during_a_write(engine, files, "abc")
        files.write_gate.opened.set()
        assert await reset > 3 * 100
        wait_written(disk)
        assert not files.saved
        await run(engine, request("d" * 100, max_tokens=1), request("e" * 100, max_tokens=1))
        wait_written(disk)
        assert len(files.saved) == 1  # later states are written


async def test_reset_is_refused_if_the_model_is_unloaded_meanwhile() -> None:
    files, runner = GatedWrites(), FakeRunner(n_seq=1, n_ctx_seq=1024)
    async with engine_over(runner, cache_ram=0, cache_disk=1, clock=Clock()) as engine:
        _, reset = await reset_during_a_write(engine, files, "ab")
        closing = asyncio.create_task(engine.close())
        await asyncio.to_thread(wait_until, lambda: runner.closed, "the step thread has ended")
        assert not reset.done()
        files.write_gate.opened.set()
        with pytest.raises(ShuttingDown):
            await reset
        await closing


async def test_reset_after_the_model_is_unloaded_is_refused_and_drops_nothing() -> None:
    files = FakeFiles()
    async with engine_on(files) as engine:
        await run(engine, request("a" * 100))
    with pytest.raises(ShuttingDown):
        await engine.reset_cache()
    assert files.saved


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_states_are_saved_at_the_end_although_failing_requests_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("a bug")

    files = FakeFiles()
    async with engine_on(files) as engine:
        await run(engine, request("a" * 100))
        monkeypatch.setattr(engine._instances[0]._requests, "fail_all", fail)
    assert files.saved


async def test_wait_for_a_read_from_disk_is_bounded() -> None:
    files, clock = await files_with("a" * 300), Clock()
    files.read_gate = Gate()
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=1024), cache_disk=1, clock=clock) as engine:
        await engine.use_disk(files)
        waiting = asyncio.ensure_future(run(engine, request("a" * 300 + "b")))
        await files.read_gate.wait_entered()
        await run(engine, request("something else"))
        assert not waiting.done()
        clock.now = 1000.0
        await run(engine, request("something else"))
        (reply,) = await waiting
        assert reply.started.n_cached == 1
        files.read_gate.opened.set()


@pytest.mark.timeout(60)
async def test_most_valuable_states_are_written_first_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "MAX_PENDING", 1)
    n_written: list[int] = []

    class RecordingFiles(FakeFiles):
        def write(self, name: str, entry: CacheEntry, used: Collection[str]) -> int:
            n_written.append(len(entry.tokens))
            return super().write(name, entry, used)

    async with engine_over(FakeRunner(n_seq=3, n_ctx_seq=512), clock=Clock(), cache_disk=1, cache_ram=1) as engine:
        await engine.use_disk(RecordingFiles())
        await run(engine, *(request(letter * n, max_tokens=1) for letter, n in zip("abc", (50, 150, 100), strict=True)))
        await run(engine, request("d" * 200, max_tokens=1))  # it evicts a slot to RAM
    assert n_written == sorted(n_written, reverse=True)
    assert len(n_written) == 4


# ---- reads for the queue of an instance


class FakeDisk:
    """In place of a `DiskCache`: records the reads, which end when a test calls `finish`."""

    def __init__(self) -> None:
        self.names: list[str] = []  # of the entries, in the order of the reads
        self._futures: dict[str, Future[CacheEntry | None]] = {}

    def read(self, entry: CacheEntry) -> "Future[CacheEntry | None]":
        self.names.append(entry.name)
        future = self._futures[entry.name] = Future()
        return future

    def finish(self, name: str) -> None:
        self._futures[name].set_result(CacheEntry([1]))


class WaitingSequences:
    """Sequences that each wait for a state on disk, in queue order. Slot 1 is busy, slots 0 and 2 are idle."""

    def __init__(self, *names: str) -> None:
        self.disk, self.clock, runner = FakeDisk(), Clock(), FakeRunner(n_seq=3)
        self.scheduler = Scheduler(runner.info, EngineParams())
        self.scheduler.placer.disk = cast(DiskCache, self.disk)
        self.scheduler.slots[1].sequence = sequence([1])
        self._cells = Cells(runner, self.scheduler, self.clock)
        self.sequences = [self.add(name) for name in names]

    def add(self, name: str, **options: Any) -> Sequence:
        added = sequence([1], at=float(len(self.scheduler.waiting)), client=name, **options)
        added.fetch = Fetch(CacheEntry([1], name=name), 100)
        self.scheduler.waiting.append(added)
        return added

    def start_reading(self) -> list[str]:
        """Return the names of the entries whose reads this starts."""
        before = len(self.disk.names)
        self._cells.start_reading()
        return self.disk.names[before:]


def test_two_states_are_read_ahead_and_the_next_after_a_placement() -> None:
    waiting = WaitingSequences("a", "b", "c", "d")
    assert waiting.start_reading() == ["a", "b"]
    waiting.disk.finish("a")
    assert waiting.start_reading() == []
    waiting.scheduler.waiting.remove(waiting.sequences[0])
    assert waiting.start_reading() == ["c"]


def test_state_of_the_first_in_the_queue_is_read_although_two_are_read_ahead() -> None:
    waiting = WaitingSequences("a", "b", "c")
    waiting.start_reading()
    waiting.disk.finish("b")
    urgent = waiting.add("urgent", priority=-1)
    assert waiting.start_reading() == ["urgent"]
    for one in (urgent, waiting.sequences[0]):
        waiting.scheduler.waiting.remove(one)
    assert waiting.start_reading() == ["c"]


def test_sequences_bound_to_a_busy_slot_start_no_reads() -> None:
    waiting = WaitingSequences()
    for name, id_slot in (("a", 1), ("b", 1), ("c", -1), ("d", 2)):
        waiting.add(name, id_slot=id_slot)
    assert waiting.start_reading() == ["c", "d"]


def test_expired_reads_are_abandoned_and_the_next_ones_start() -> None:
    waiting = WaitingSequences("a", "b", "c")
    waiting.start_reading()
    assert disk_cache.wait_s(waiting.scheduler.waiting, 1.0) == 1.0
    waiting.clock.now = 100.0
    assert waiting.start_reading() == ["c"]
    assert disk_cache.wait_s(waiting.scheduler.waiting, 100.0) == UNKNOWN_S
