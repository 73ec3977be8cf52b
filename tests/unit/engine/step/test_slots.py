"""What is asked of slots beside requests, and requests that change what is in their cells."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from server.engine.lora import Adapter
from server.engine.placement import Placement
from server.engine.request import FinishReason
from server.errors import InternalError, InvalidRequest, ModelFailed
from tests.support.fakes import FakeRunner
from tests.support.waiting import wait_until
from tests.unit.engine.builders import alone, ask, engine_over, request, run
from tests.unit.engine.cache.test_disk_cache import Files, still

PIRATE = Adapter(0, "pirate.gguf")


async def test_a_refused_state_leaves_the_slot_empty_and_usable() -> None:
    async with engine_over(FakeRunner(n_seq=1)) as engine:
        await run(engine, request("abc"))
        saved = await engine.save_slot(0)
        with pytest.raises(InvalidRequest):
            await engine.restore_slot(0, replace(saved, state=b"not a state"))
        with pytest.raises(InvalidRequest):
            await engine.restore_slot(0, replace(saved, tokens=[1] * 1000))
        with pytest.raises(InvalidRequest, match="id_slot"):
            await engine.save_slot(1)
        (reply,) = await run(engine, request("abc"))
    assert reply.started.n_cached == 0
    assert reply.text == alone(request("abc"))


async def test_new_scales_hold_for_requests_that_come_afterwards() -> None:
    runner = FakeRunner(adapters=(PIRATE,), steps=threading.Semaphore(0))
    wanted = request("abc", max_tokens=20)
    async with engine_over(runner) as engine:
        first = ask(engine, wanted)
        engine.set_adapter_scales(((0, 0.25),))
        after = asyncio.ensure_future(run(engine, wanted))
        assert runner.steps is not None
        runner.steps.release(200)
        (second,) = await after
        await first.ended.wait()
        assert engine.adapters[0].scale == 0.25
        with pytest.raises(InvalidRequest):
            engine.set_adapter_scales(((1, 1.0),))
    assert first.text == alone(replace(wanted, adapters=((0, 1.0),)), (PIRATE,))
    assert second.text == alone(replace(wanted, adapters=((0, 0.25),)), (PIRATE,))


async def test_an_adapter_is_loaded_for_every_set_of_devices_and_unloaded_from_every_one() -> None:
    runners = [FakeRunner(n_seq=1), FakeRunner(n_seq=1)]
    async with engine_over(*runners) as engine:
        (adapter,) = await engine.load_adapter("pirate", PIRATE.path, in_place=False)
        wanted = [request("abc", adapters=((adapter.id, 1.0),), id_slot=i) for i in range(2)]
        replies = await run(engine, *wanted)
        assert [reply.text for reply in replies] == [alone(wanted[0], (adapter,))] * 2
        await engine.unload_adapter("pirate")
    assert [runner.adapters for runner in runners] == [(), ()]


async def test_an_adapter_that_one_set_of_devices_has_no_memory_for_is_loaded_on_none() -> None:
    class Full(FakeRunner):
        def load_adapter(self, wanted: Adapter) -> Adapter:
            raise ModelFailed("fake", f"{wanted.path}: no memory")

    first = FakeRunner(n_seq=1)
    async with engine_over(first, Full(n_seq=1)) as engine:
        with pytest.raises(InvalidRequest, match="lora_path: no memory"):
            await engine.load_adapter("pirate", PIRATE.path, in_place=False)
    assert (first.adapters, engine.adapters) == ((), ())


async def test_the_unload_of_an_adapter_waits_for_no_request_that_gets_its_slot_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, placing, may_place = threading.Semaphore(100), threading.Event(), threading.Event()
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=512, steps=steps), gather_ms=0.0) as engine:
        (adapter,) = await engine.load_adapter("pirate", PIRATE.path, in_place=False)
        await run(engine, request("abc", adapters=((adapter.id, 1.0),)))
        while steps.acquire(blocking=False):
            pass
        cells = engine._instances[0].cells
        prepare = cells.prepare

        def late(placement: Placement, now: float) -> None:
            placing.set()
            assert may_place.wait(60)
            prepare(placement, now)

        monkeypatch.setattr(cells, "prepare", late)
        other = ask(engine, request("xyz", max_tokens=200))
        await asyncio.to_thread(placing.wait, 60)
        unloading = asyncio.ensure_future(engine.unload_adapter("pirate"))
        await asyncio.sleep(0)
        may_place.set()
        while not (unloading.done() or other.ended.is_set()):
            steps.release()
            await other.step()
        is_running = not other.ended.is_set()
        steps.release(1000)
        await unloading
        await other.ended.wait()
    assert is_running
    assert other.text == alone(request("xyz", max_tokens=200))


async def test_an_activated_lora_shares_what_comes_before_its_invocation() -> None:
    activated = Adapter(0, "a.gguf", alora_invocation_tokens=tuple(b"<go>"))
    prompt = "q" * 50 + "<go>"
    async with engine_over(FakeRunner(adapters=(activated,))) as engine:
        await run(engine, request("q" * 50, adapters=()))
        (reply,) = await run(engine, request(prompt, adapters=((0, 1.0),)))
        (off,) = await run(engine, request("q" * 52, adapters=((0, 1.0),)))
    assert reply.started.n_cached == 50
    assert reply.text == alone(request(prompt, adapters=((0, 1.0),)), (activated,))
    assert off.text == alone(request("q" * 52))


@pytest.mark.parametrize("unified", [False, True])
async def test_a_full_context_is_shifted_and_generation_goes_on(unified: bool) -> None:
    class Shifted(FakeRunner):
        """Knows how many cells a sequence had before each shift."""

        held: list[int] = []  # noqa: RUF012

        def seq_drop(self, seq: int, start: int, end: int) -> None:
            self.held.append(len(self.cells[seq]))
            super().seq_drop(seq, start, end)

    runner = Shifted(n_seq=2, n_ctx_seq=32, n_cells=64, unified=unified)
    async with engine_over(runner, context_shift=True) as engine:
        long, other = await run(
            engine, request("abcdefgh", max_tokens=100, n_keep=8), request("abcdefgh", max_tokens=5)
        )
    end = long.finished[0]
    assert end.n_predicted == 100
    assert end.reason is FinishReason.LIMIT
    assert end.truncated
    assert other.text == alone(request("abcdefgh", max_tokens=5))
    assert set(runner.held) == {31}  # all but one, as in llama-server


async def test_a_shift_that_the_library_refuses_ends_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise InternalError("llama_memory_seq_add failed")

    runner = FakeRunner(n_seq=2, n_ctx_seq=32)
    monkeypatch.setattr(runner, "seq_drop", refuse)
    async with engine_over(runner, context_shift=True) as engine:
        long, other = await run(engine, request("abcdefgh", max_tokens=100), request("xyz", max_tokens=26))
        (again,) = await run(engine, request("abcdefgh", max_tokens=5))
    assert isinstance(long.error, InternalError)
    assert other.text == alone(request("xyz", max_tokens=26))
    assert again.text == alone(request("abcdefgh", max_tokens=5))


async def test_nothing_from_before_a_reset_is_reused_although_its_request_still_runs() -> None:
    steps, prompt = threading.Semaphore(0), "a" * 100
    runner = FakeRunner(n_seq=2, n_ctx_seq=512, n_batch=256, steps=steps)
    async with engine_over(runner, gather_ms=0.0) as engine:
        first = ask(engine, request(prompt, max_tokens=40))
        steps.release()
        await first.step()
        reset = asyncio.ensure_future(engine.reset_cache())
        for _ in range(5):
            steps.release()
            await first.step()
        assert reset.done()
        assert len(engine._instances[0]._commands) == 0  # nothing is left for when slots are idle
        assert await reset >= len(prompt)
        late = asyncio.ensure_future(run(engine, request(prompt + "b", max_tokens=1)))
        steps.release(200)
        [reply] = await late
        await first.ended.wait()
        n_cached, saved = engine.stats.kv_cells_cached, await engine.save_slot(first.finished[0].id_slot)
        steps.release(200)
        [later] = await run(engine, request(prompt + first.text, max_tokens=1))
    assert (n_cached, saved.tokens) == (len(prompt) + 2, [])
    assert first.text == alone(request(prompt, max_tokens=40))
    assert reply.started.n_cached == 0
    assert later.started.n_cached <= len(prompt) + 2  # of the one after the reset


@pytest.mark.parametrize("cache_ram", [-1, 0])
async def test_a_state_that_leaves_its_slot_for_ram_or_disk_during_a_reset_is_dropped(cache_ram: int) -> None:
    class Held(FakeRunner):
        """Saves a state once a test says so."""

        saving, may_save = threading.Event(), threading.Event()

        def seq_save(self, seq: int) -> bytes:
            self.saving.set()
            assert self.may_save.wait(60)
            return super().seq_save(seq)

    runner = Held(n_seq=1, n_ctx_seq=1024)
    async with engine_over(runner, clock=still, cache_ram=cache_ram, cache_disk=1) as engine:
        await engine.use_disk(Files())
        await run(engine, request("a" * 600, max_tokens=1))
        other = asyncio.ensure_future(run(engine, request("b" * 300, max_tokens=1)))
        await asyncio.to_thread(runner.saving.wait, 60)
        reset = asyncio.ensure_future(engine.reset_cache())
        late = asyncio.ensure_future(run(engine, request("a" * 600 + "c", max_tokens=1)))
        await asyncio.sleep(0)
        runner.may_save.set()
        [slot] = engine._instances[0].scheduler.slots
        wait_until(lambda: slot.n_requests == 3, "the placement, while the event loop does nothing")
        await asyncio.gather(other, reset)
        [reply] = await late
        assert engine._disk is not None
        engine._disk._writer.submit(lambda: None).result(60)
        assert not engine._disk.index
    assert reply.started.n_cached <= 1  # what begins all prompts may be that of the request before it


async def test_a_reset_that_fails_waits_for_the_other_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted: list[bool] = []

    def breaks() -> int:
        raise InternalError("it broke")

    def late() -> int:
        time.sleep(0.1)
        accepted.append(engine._ram.offloads)
        return 0

    async with engine_over(FakeRunner(), FakeRunner(), gather_ms=0.0) as engine:
        for instance, drop_all in zip(engine._instances, (breaks, late), strict=True):
            monkeypatch.setattr(instance.cells, "drop_all", drop_all)
        with pytest.raises(InternalError, match="it broke"):
            await engine.reset_cache()
    assert accepted == [False]


async def test_a_prefix_is_not_pinned_if_the_cache_is_reset_meanwhile() -> None:
    steps = threading.Semaphore(0)
    async with engine_over(FakeRunner(n_ctx_seq=512, steps=steps), gather_ms=0.0) as engine:
        pinned = asyncio.ensure_future(run(engine, request("a" * 200, max_tokens=0, pin_s=60.0)))
        await asyncio.sleep(0)
        steps.release()
        await asyncio.to_thread(wait_until, lambda: engine._instances[0].scheduler.slots[0].tokens, "the first step")
        reset = asyncio.ensure_future(engine.reset_cache())
        await asyncio.sleep(0)
        steps.release(100)
        [reply] = await pinned
        await reset
    assert "the cache was reset" in str(reply.error)


async def test_a_pinned_prefix_is_exact_although_shifts_are_asked_for() -> None:
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=512), gather_ms=0.0) as engine:
        await run(engine, request("b" * 20 + "a" * 100, max_tokens=1))
        [reply] = await run(engine, request("a" * 100 + "c", max_tokens=0, pin_s=60.0, n_cache_reuse=16))
        assert reply.error is None
        assert reply.started.n_cached <= 1
