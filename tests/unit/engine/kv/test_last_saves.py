"""What is saved when a model is unloaded: after its requests were told, and never all of it in memory at once."""

import asyncio

import pytest

from server.engine import disk_cache
from server.engine.prefix_cache import SlotState
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run
from tests.unit.engine.kv.test_disk import Files, still

pytestmark = pytest.mark.timeout(60)


class Counting(Files):
    """Holds every write up until ``gate`` is set."""

    def write(self, name: str, saved: SlotState) -> int:
        assert self.gate.wait(60)
        return super().write(name, saved)


async def test_the_most_valuable_are_written_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "MAX_PENDING", 1)
    written: list[int] = []

    class Ordered(Files):
        def write(self, name: str, saved: SlotState) -> int:
            written.append(len(saved.tokens))
            return super().write(name, saved)

    async with engine_over(FakeRunner(n_seq=3, n_ctx_seq=512), clock=still, cache_disk=1, cache_ram=1) as engine:
        await engine.use_disk(Ordered())
        await run(engine, *(request(letter * n, max_tokens=1) for letter, n in zip("abc", (50, 150, 100), strict=True)))
        await run(engine, request("d" * 200, max_tokens=1))  # one goes to RAM
    assert written == sorted(written, reverse=True)
    assert len(written) == 4


async def test_a_disk_that_takes_too_long_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "MAX_PENDING", 1)
    monkeypatch.setattr(disk_cache, "CLOSE_S", 0.05)
    files = Counting()
    runner = FakeRunner(n_seq=4, n_ctx_seq=512)
    async with engine_over(runner, cache_disk=1) as engine:
        await engine.use_disk(files)
        await run(engine, *(request(letter * 100) for letter in "abcd"))
        files.gate.clear()
        (instance,) = engine._instances
        instance.stop()
        await asyncio.to_thread(instance.join)  # it does not wait for a disk that hangs
        files.gate.set()
    assert len(files.saved) <= 1


class Saving(FakeRunner):
    """Counts the states that are taken out of its cells."""

    n_saved = 0

    def seq_save(self, seq: int) -> bytes:
        self.n_saved += 1
        return super().seq_save(seq)


async def test_what_is_too_large_for_ram_and_on_disk_already_is_not_taken_out() -> None:
    runner = Saving(n_seq=1, n_ctx_seq=512)
    async with engine_over(runner, clock=still, cache_disk=1, cache_ram=1) as engine:
        await engine.use_disk(Files())
        engine._ram.limit = 100
        disk = engine._disk
        assert disk is not None
        for letter in "ababa":
            await run(engine, request(letter * 100))
            await asyncio.to_thread(disk._writer.submit(lambda: None).result, 60)
        assert runner.n_saved == 2
