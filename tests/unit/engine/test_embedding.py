"""The embedding engine and its queue, with fake runners: batching, faults, cancellation, limits."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.embedding import EmbeddingEngine, EmbeddingJob, EmbeddingQueue
from server.engine.instances import NICE, PRIORITIES_BY_THREAD
from server.engine.media import MediaPrompt
from server.engine.params import EngineParams
from server.engine.runner_api import Pooling, Vectors
from server.errors import ContextExceeded, InternalError, InvalidRequest, ShuttingDown
from tests.support.fakes import FakeEmbeddingRunner
from tests.unit.clock import Clock
from tests.unit.engine.builders import Gate


@asynccontextmanager
async def engine_over(*runners: FakeEmbeddingRunner, **params: Any) -> AsyncIterator[EmbeddingEngine]:
    """Open an embedding engine; check its integrity and close it at the end."""
    settings = EngineParams(**{"gather_ms": 0.0, **params})
    engine = EmbeddingEngine(runners, settings, asyncio.get_running_loop())
    async with asyncio.timeout(60):
        try:
            yield engine
            await engine.wait_idle()
            engine.check_integrity()
        finally:
            await engine.close()
    assert all(runner.closed for runner in runners)


def inputs_of(*texts: str) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


def are_vectors_of(found: Sequence[Vectors], runner: FakeEmbeddingRunner, inputs: Sequence[Sequence[int]]) -> bool:
    return all(np.array_equal(a, runner.vectors(b)) for a, b in zip(found, inputs, strict=True))


async def test_200_simultaneous_requests_share_decodes_and_get_their_own_vectors() -> None:
    runner = FakeEmbeddingRunner()
    inputs = [inputs_of(f"the text of request number {i}", "x" * (i % 50 + 1)) for i in range(200)]
    async with engine_over(runner) as engine:
        found = await asyncio.gather(*(engine.submit(each) for each in inputs))
        stats = engine.stats
    assert all(are_vectors_of(vectors, runner, each) for vectors, each in zip(found, inputs, strict=True))
    assert stats.prompt_tokens == sum(len(tokens) for each in inputs for tokens in each)
    assert stats.n_busy_slots == 400
    assert stats.n_decode == len(runner.batches) < 400
    assert sum(stats.request_duration.counts) == sum(stats.queue_time.counts) == 200
    assert (stats.n_processing, stats.n_deferred) == (0, 0)


async def test_two_instances_each_take_a_request() -> None:
    gates = Gate(), Gate()
    runners = [FakeEmbeddingRunner(n_seq=1, on_embed=gate) for gate in gates]
    async with engine_over(*runners) as engine:
        requests = [engine.submit(inputs_of(word)) for word in ("one", "three")]
        for gate in gates:
            await gate.wait_entered()
        slots = engine.slots()
        assert [(slot.id, slot.is_processing) for slot in slots] == [(0, True), (1, True)]
        assert sorted(slot.n_tokens for slot in slots) == [3, 5]
        for gate in gates:
            gate.opened.set()
        await asyncio.gather(*requests)
    assert sorted(runner.batches for runner in runners) == [[[3]], [[5]]]


async def test_request_is_queued_before_the_step_thread_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    add = EmbeddingQueue.add

    def slow_add(queue: EmbeddingQueue, job: EmbeddingJob) -> bool:
        time.sleep(0.05)  # releases the GIL to the step thread
        return add(queue, job)

    monkeypatch.setattr(EmbeddingQueue, "add", slow_add)
    async with engine_over(FakeEmbeddingRunner(n_seq=1)) as engine, asyncio.timeout(10):
        assert len(await engine.submit(inputs_of("one"))) == 1


async def test_follow_up_of_a_reply_shares_the_decode_of_a_request_that_waits() -> None:
    gate = Gate()
    runner = FakeEmbeddingRunner(on_embed=gate)
    async with engine_over(runner, gather_ms=60_000.0) as engine:
        first = engine.submit(inputs_of("first"))
        await gate.wait_entered()
        waiting = engine.submit(inputs_of("waiting"))
        gate.opened.set()
        await first
        await asyncio.gather(waiting, engine.submit(inputs_of("follow-up")))
    assert [len(batch) for batch in runner.batches] == [1, 2]


async def test_vectors_of_a_decode_are_delivered_by_one_event_loop_call(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, loop = Gate(), asyncio.get_running_loop()
    runner = FakeEmbeddingRunner(on_embed=gate)
    calls: list[object] = []
    call = loop.call_soon_threadsafe

    def record_call(*arguments: Any) -> Any:
        calls.append(arguments)
        return call(*arguments)

    async with engine_over(runner) as engine:
        requests = [engine.submit(inputs_of("first"))]
        await gate.wait_entered()
        requests += [engine.submit(inputs_of(word)) for word in ("second", "third", "fourth")]
        monkeypatch.setattr(loop, "call_soon_threadsafe", record_call)
        gate.opened.set()
        await asyncio.gather(*requests)
        monkeypatch.undo()
    assert [len(batch) for batch in runner.batches] == [1, 3]
    assert len(calls) == 2


# ---- faults and cancellation


async def test_rejected_input_fails_only_its_own_request() -> None:
    def reject(inputs: Sequence[Sequence[int]]) -> None:
        if any(bytes(tokens) == b"bad" for tokens in inputs):
            raise InternalError("llama_decode returned -1")

    runner = FakeEmbeddingRunner(on_embed=reject)
    async with engine_over(runner) as engine:
        good = [engine.submit(inputs_of("good", f"text {i}")) for i in range(3)]
        bad = engine.submit(inputs_of("fine", "bad", "fine"))
        with pytest.raises(InternalError, match="returned -1"):
            await bad
        found = await asyncio.gather(*good)
    assert all(are_vectors_of(vectors, runner, inputs_of("good", f"text {i}")) for i, vectors in enumerate(found))


async def test_unexpected_exception_in_a_step_fails_its_requests_but_not_the_engine() -> None:
    faults = [RuntimeError("injected")]

    def fail_once(_: object) -> None:
        if faults:
            raise faults.pop()

    async with engine_over(FakeEmbeddingRunner(on_embed=fail_once)) as engine:
        with pytest.raises(InternalError, match="the engine failed"):
            await engine.submit(inputs_of("one"))
        assert len(await engine.submit(inputs_of("two"))) == 1


class TwoPartRunner(FakeEmbeddingRunner):
    """Computes each input in two parts; each part waits for a permit of ``may_end``."""

    def __init__(self) -> None:
        super().__init__()
        self._started, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def embed(self, inputs: Sequence[Sequence[int]], on_part: Callable[[], None] = lambda: None) -> list[Vectors]:
        for _ in range(2):
            self._started.release()
            assert self.may_end.acquire(timeout=60)
            on_part()
        return super().embed(inputs)

    async def part_started(self) -> None:
        """Wait until the next part has started."""
        assert await asyncio.to_thread(self._started.acquire, timeout=60)


async def test_each_finished_part_of_a_long_input_counts_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, clock = TwoPartRunner(), Clock()
    async with engine_over(runner) as engine:
        monkeypatch.setattr(engine, "_clock", clock)
        found = engine.submit(inputs_of("long"))
        for now in (1.0, 12.0):
            await runner.part_started()
            clock.now = now
            assert engine.hung(10.0) == []
            runner.may_end.release()
        assert len(await found) == 1


async def test_cancelled_input_is_abandoned_after_its_current_part(caplog: pytest.LogCaptureFixture) -> None:
    runner = TwoPartRunner()
    async with engine_over(runner) as engine:
        cancelled = engine.submit(inputs_of("longer"))
        await runner.part_started()
        cancelled.cancel()
        await asyncio.sleep(0)
        runner.may_end.release()
        later = engine.submit(inputs_of("next"))
        await runner.part_started()
        runner.may_end.release(2)
        assert len(await later) == 1
    assert runner.batches == [[4]]
    assert "failed" not in caplog.text


async def test_close_fails_open_requests_and_refuses_new_ones() -> None:
    gate = Gate()
    async with engine_over(FakeEmbeddingRunner(n_seq=1, on_embed=gate)) as engine:
        running, waiting = engine.submit(inputs_of("one", "two")), engine.submit(inputs_of("three"))
        await gate.wait_entered()
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        gate.opened.set()
        await closing
        for request in (running, waiting):
            with pytest.raises(ShuttingDown):
                await request
        with pytest.raises(ShuttingDown):
            engine.submit(inputs_of("late"))


# ---- refusals


@pytest.mark.parametrize(
    ("pooling", "tokens", "error", "message"),
    [
        (Pooling.MEAN, [], InvalidRequest, "Input content cannot be empty"),
        (Pooling.MEAN, [1, -1], InvalidRequest, "outside the vocabulary"),
        (Pooling.MEAN, [1, 260], InvalidRequest, "outside the vocabulary"),
        (
            Pooling.MEAN,
            [1] * 129,
            InvalidRequest,
            r"input \(129 tokens\) is too large to process. increase the physical batch size \(current .* 128\)",
        ),
        (
            Pooling.LAST,
            [1] * 256,
            ContextExceeded,
            r"request \(256 tokens\) exceeds the available context size \(256 tokens\), try increasing it$",
        ),
        (Pooling.NONE, [1] * 256, ContextExceeded, "increasing it, and n_batch if the model also generates$"),
    ],
)
async def test_submit_refuses_inputs_that_exceed_the_bounds(
    pooling: Pooling, tokens: list[int], error: type[InvalidRequest], message: str
) -> None:
    async with engine_over(FakeEmbeddingRunner(pooling=pooling)) as engine:
        with pytest.raises(error, match=message):
            engine.submit([[1], tokens])
        assert not engine.busy


@pytest.mark.skipif(not PRIORITIES_BY_THREAD, reason="only Linux binds threads")
async def test_step_thread_is_bound_to_its_cpus_and_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, niceness = max(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)
    calls: list[tuple[int, object]] = []
    monkeypatch.setitem(NICE, -1, min(niceness + 1, 19))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cpus: calls.append((threading.get_ident(), cpus)))
    monkeypatch.setattr(os, "setpriority", lambda _which, _pid, nice: calls.append((threading.get_ident(), nice)))
    step_threads: list[int] = []
    runner = FakeEmbeddingRunner(on_embed=lambda _: step_threads.append(threading.get_ident()))
    async with engine_over(runner, cpus=(frozenset({cpu}),), prio=-1) as engine:
        await engine.submit(inputs_of("one"))
    assert calls == [(step_threads[0], frozenset({cpu})), (step_threads[0], min(niceness + 1, 19))]


def job(*sizes: int) -> EmbeddingJob:
    return EmbeddingJob([MediaPrompt([0] * size) for size in sizes], 0.0, cast(Any, None))


def queue_of(*jobs: EmbeddingJob) -> EmbeddingQueue:
    queue = EmbeddingQueue()
    for each in jobs:
        queue.add(each)
    return queue


def test_small_job_shares_the_first_decode_of_a_large_one() -> None:
    large, small = job(*[50] * 20), job(50)
    queue = queue_of(large, small)
    assert queue.take(100, 100) == [(large, 0), (small, 0)]
    assert list(queue) == [large]


@given(
    st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=8), max_size=8),
    st.integers(1, 6),
    st.integers(1, 120),
)
def test_take_returns_every_input_once_within_the_limits(all_sizes: list[list[int]], n_seq: int, n_tokens: int) -> None:
    jobs = [job(*each) for each in all_sizes]
    queue = queue_of(*jobs)
    taken = []
    while pieces := queue.take(n_seq, n_tokens):
        assert len(pieces) <= n_seq
        assert len(pieces) == 1 or sum(len(one.inputs[index]) for one, index in pieces) <= n_tokens
        taken += [(jobs.index(one), index) for one, index in pieces]
    assert sorted(taken) == [(j, i) for j, each in enumerate(all_sizes) for i in range(len(each))]


def test_queue_returns_its_jobs_when_the_last_instance_closes() -> None:
    queue, waiting = EmbeddingQueue(2), [job(5), job(6)]
    for each in waiting:
        queue.add(each)
    assert (queue.close(0), list(queue)) == ([], waiting)
    assert (queue.close(1), list(queue)) == (waiting, [])
    assert not queue.add(job(7))
