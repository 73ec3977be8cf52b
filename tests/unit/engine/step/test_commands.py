"""Commands besides requests (slots, LoRA adapters, cache resets, pins), and context shifts. Uses fake runners."""

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
from tests.unit.clock import Clock
from tests.unit.engine.builders import Gate, engine_over, expected_text, request, run, submit
from tests.unit.engine.cache.fake_files import FakeFiles

PIRATE = Adapter(0, "pirate.gguf")


async def test_slot_is_empty_and_usable_after_a_rejected_state() -> None:
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
    assert reply.text == expected_text(request("abc"))


async def test_new_adapter_scales_apply_only_to_later_requests() -> None:
    runner = FakeRunner(adapters=(PIRATE,), steps=threading.Semaphore(0))
    req = request("abc", max_tokens=20)
    async with engine_over(runner) as engine:
        before = submit(engine, req)
        engine.set_adapter_scales(((0, 0.25),))
        after = submit(engine, req)
        assert runner.steps is not None
        runner.steps.release(200)
        for reply in (before, after):
            await reply.ended.wait()
        assert engine.adapters[0].scale == 0.25
        with pytest.raises(InvalidRequest):
            engine.set_adapter_scales(((1, 1.0),))
    assert before.text == expected_text(replace(req, adapters=((0, 1.0),)), (PIRATE,))
    assert after.text == expected_text(replace(req, adapters=((0, 0.25),)), (PIRATE,))


async def test_adapter_is_loaded_into_and_unloaded_from_every_instance() -> None:
    runners = [FakeRunner(n_seq=1), FakeRunner(n_seq=1)]
    async with engine_over(*runners) as engine:
        (adapter,) = await engine.load_adapter("pirate", PIRATE.path, in_place=False)
        requests = [request("abc", adapters=((adapter.id, 1.0),), id_slot=i) for i in range(2)]
        replies = await run(engine, *requests)
        assert [reply.text for reply in replies] == [expected_text(requests[0], (adapter,))] * 2
        await engine.unload_adapter("pirate")
    assert [runner.adapters for runner in runners] == [(), ()]


async def test_adapter_that_one_instance_cannot_load_is_loaded_by_none() -> None:
    class FullRunner(FakeRunner):
        def load_adapter(self, wanted: Adapter) -> Adapter:
            raise ModelFailed("fake", f"{wanted.path}: no memory")

    first = FakeRunner(n_seq=1)
    async with engine_over(first, FullRunner(n_seq=1)) as engine:
        with pytest.raises(InvalidRequest, match="lora_path: no memory"):
            await engine.load_adapter("pirate", PIRATE.path, in_place=False)
    assert (first.adapters, engine.adapters) == ((), ())


async def test_unload_adapter_ignores_requests_that_get_a_slot_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, gate = threading.Semaphore(100), Gate()
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=512, steps=steps), gather_ms=0.0) as engine:
        (adapter,) = await engine.load_adapter("pirate", PIRATE.path, in_place=False)
        await run(engine, request("abc", adapters=((adapter.id, 1.0),)))
        while steps.acquire(blocking=False):
            pass
        cells = engine._instances[0].cells
        prepare = cells.prepare

        def wait_and_prepare(placement: Placement, now: float) -> None:
            gate()
            prepare(placement, now)

        monkeypatch.setattr(cells, "prepare", wait_and_prepare)
        other = submit(engine, request("xyz", max_tokens=200))
        await gate.wait_entered()
        unloading = asyncio.ensure_future(engine.unload_adapter("pirate"))
        await asyncio.sleep(0)
        gate.opened.set()
        while not (unloading.done() or other.ended.is_set()):
            steps.release()
            await other.next_step()
        other_still_ran = not other.ended.is_set()
        steps.release(1000)
        await unloading
        await other.ended.wait()
    assert other_still_ran
    assert other.text == expected_text(request("xyz", max_tokens=200))


async def test_activated_lora_reuses_cells_of_the_base_model_before_its_invocation() -> None:
    activated = Adapter(0, "a.gguf", alora_invocation_tokens=tuple(b"<go>"))
    invoked, not_invoked = (request(text, adapters=((0, 1.0),)) for text in ("q" * 50 + "<go>", "q" * 52))
    async with engine_over(FakeRunner(adapters=(activated,))) as engine:
        await run(engine, request("q" * 50, adapters=()))
        (reply,) = await run(engine, invoked)
        (base_reply,) = await run(engine, not_invoked)
    assert reply.started.n_cached == 50
    assert reply.text == expected_text(invoked, (activated,))
    assert base_reply.text == expected_text(request("q" * 52))


@pytest.mark.parametrize("unified", [False, True])
async def test_full_context_is_shifted_and_generation_continues(unified: bool) -> None:
    runner = FakeRunner(n_seq=2, n_ctx_seq=32, n_cells=64, unified=unified)
    n_held, seq_drop = set[int](), runner.seq_drop

    def record_and_drop(seq: int, start: int, end: int) -> None:
        n_held.add(len(runner.cells[seq]))
        seq_drop(seq, start, end)

    runner.seq_drop = record_and_drop  # type: ignore[method-assign]
    async with engine_over(runner, context_shift=True) as engine:
        long, other = await run(
            engine, request("abcdefgh", max_tokens=100, n_keep=8), request("abcdefgh", max_tokens=5)
        )
    end = long.finished[0]
    assert end.n_predicted == 100
    assert end.reason is FinishReason.LIMIT
    assert end.truncated
    assert other.text == expected_text(request("abcdefgh", max_tokens=5))
    assert n_held == {31}  # shifted with one free cell left, as in llama-server


async def test_context_shift_that_the_library_rejects_fails_only_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: object) -> None:
        raise InternalError("llama_memory_seq_add failed")

    runner = FakeRunner(n_seq=2, n_ctx_seq=32)
    monkeypatch.setattr(runner, "seq_drop", reject)
    async with engine_over(runner, context_shift=True) as engine:
        long, other = await run(engine, request("abcdefgh", max_tokens=100), request("xyz", max_tokens=26))
        (again,) = await run(engine, request("abcdefgh", max_tokens=5))
    assert isinstance(long.error, InternalError)
    assert other.text == expected_text(request("xyz", max_tokens=26))
    assert again.text == expected_text(request("abcdefgh", max_tokens=5))


async def test_cells_from_before_a_reset_are_not_reused_although_their_request_still_runs() -> None:
    steps, prompt = threading.Semaphore(0), "a" * 100
    runner = FakeRunner(n_seq=2, n_ctx_seq=512, n_batch=256, steps=steps)
    async with engine_over(runner, gather_ms=0.0) as engine:
        first = submit(engine, request(prompt, max_tokens=40))
        steps.release()
        await first.next_step()
        reset = asyncio.ensure_future(engine.reset_cache())
        for _ in range(5):
            steps.release()
            await first.next_step()
        assert reset.done()
        assert len(engine._instances[0]._commands) == 0  # no command waits for an idle slot
        assert await reset >= len(prompt)
        second = asyncio.ensure_future(run(engine, request(prompt + "b", max_tokens=1)))
        steps.release(200)
        [reply] = await second
        await first.ended.wait()
        n_cached, saved = engine.stats.kv_cells_cached, await engine.save_slot(first.finished[0].id_slot)
        steps.release(200)
        [third] = await run(engine, request(prompt + first.text, max_tokens=1))
    assert (n_cached, saved.tokens) == (len(prompt) + 2, [])
    assert first.text == expected_text(request(prompt, max_tokens=40))
    assert reply.started.n_cached == 0
    assert third.started.n_cached <= len(prompt) + 2  # the cells of the second request


@pytest.mark.parametrize("cache_ram", [-1, 0])
async def test_state_that_is_being_offloaded_during_a_reset_is_dropped(cache_ram: int) -> None:
    gate = Gate()

    class GatedSaves(FakeRunner):
        def seq_save(self, seq: int) -> bytes:
            gate()
            return super().seq_save(seq)

    async with engine_over(
        GatedSaves(n_seq=1, n_ctx_seq=1024), clock=Clock(), cache_ram=cache_ram, cache_disk=1
    ) as engine:
        await engine.use_disk(FakeFiles())
        await run(engine, request("a" * 600, max_tokens=1))
        second = asyncio.ensure_future(run(engine, request("b" * 300, max_tokens=1)))
        await gate.wait_entered()
        reset = asyncio.ensure_future(engine.reset_cache())
        third = asyncio.ensure_future(run(engine, request("a" * 600 + "c", max_tokens=1)))
        await asyncio.sleep(0)
        gate.opened.set()
        [slot] = engine._instances[0].scheduler.slots
        wait_until(lambda: slot.n_requests == 3, "the third request has the slot, before the event loop runs again")
        await asyncio.gather(second, reset)
        [reply] = await third
        assert engine._disk is not None
        engine._disk._writer.submit(lambda: None).result(60)
        assert not engine._disk.index
    assert reply.started.n_cached <= 1  # all prompts share the first token


async def test_failed_reset_waits_for_the_other_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    ram_accepts: list[bool] = []

    def fail() -> int:
        raise InternalError("injected")

    def finish_late() -> int:
        time.sleep(0.1)
        ram_accepts.append(engine._ram.offloads)
        return 0

    async with engine_over(FakeRunner(), FakeRunner(), gather_ms=0.0) as engine:
        for instance, drop_all in zip(engine._instances, (fail, finish_late), strict=True):
            monkeypatch.setattr(instance.cells, "drop_all", drop_all)
        with pytest.raises(InternalError, match="injected"):
            await engine.reset_cache()
    assert ram_accepts == [False]


async def test_prefix_is_not_pinned_if_the_cache_is_reset_meanwhile() -> None:
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


async def test_pinned_prefix_is_exact_although_n_cache_reuse_is_set() -> None:
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=512), gather_ms=0.0) as engine:
        await run(engine, request("b" * 20 + "a" * 100, max_tokens=1))
        [reply] = await run(engine, request("a" * 100 + "c", max_tokens=0, pin_s=60.0, n_cache_reuse=16))
        assert reply.error is None
        assert reply.started.n_cached <= 1
