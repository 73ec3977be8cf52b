"""The engine of embeddings: whose input is in the next decode, and what each request gets."""

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


@asynccontextmanager
async def engine_over(*runners: FakeEmbeddingRunner, **params: Any) -> AsyncIterator[EmbeddingEngine]:
    """An engine that proves its accounting at the end."""
    chosen = EngineParams(**{"gather_ms": 0.0, **params})
    engine = EmbeddingEngine(runners, chosen, asyncio.get_running_loop())
    async with asyncio.timeout(60):
        try:
            yield engine
            await engine.wait_idle()
            engine.check_integrity()
        finally:
            await engine.close()
    assert all(runner.closed for runner in runners)


def texts(*words: str) -> list[list[int]]:
    return [list(word.encode()) for word in words]


def equal(found: Sequence[Vectors], runner: FakeEmbeddingRunner, inputs: Sequence[Sequence[int]]) -> bool:
    return all(np.array_equal(a, runner.vectors(b)) for a, b in zip(found, inputs, strict=True))


class ConcurrencyLimiter:
    """A runner whose every step waits for `open`."""

    def __init__(self, **options: Any) -> None:
        self._entered = threading.Semaphore(0)
        self._steps = threading.Semaphore(0)
        self.runner = FakeEmbeddingRunner(steps=self._steps, on_embed=lambda _: self._entered.release(), **options)

    async def entered(self) -> None:
        """Wait until the next step has begun."""
        assert await asyncio.to_thread(self._entered.acquire, timeout=60)

    def open(self, n: int = 1000) -> None:
        """Let `n` steps through."""
        self._steps.release(n)


async def test_200_requests_at_once_get_each_their_own() -> None:
    runner = FakeEmbeddingRunner()
    inputs = [texts(f"the text of request number {i}", "x" * (i % 50 + 1)) for i in range(200)]
    async with engine_over(runner) as engine:
        found = await asyncio.gather(*(engine.submit(each) for each in inputs))
        stats = engine.stats
    assert all(equal(vectors, runner, each) for vectors, each in zip(found, inputs, strict=True))
    assert stats.prompt_tokens == sum(len(tokens) for each in inputs for tokens in each)
    assert stats.n_busy_slots == 400
    assert stats.n_decode == len(runner.batches) < 400
    assert sum(stats.request_duration.counts) == sum(stats.queue_time.counts) == 200
    assert (stats.n_processing, stats.n_deferred) == (0, 0)


async def test_two_instances_share_the_work() -> None:
    gates = ConcurrencyLimiter(n_seq=1), ConcurrencyLimiter(n_seq=1)
    async with engine_over(*(gate.runner for gate in gates)) as engine:
        requests = [engine.submit(texts(word)) for word in ("one", "three")]
        for gate in gates:
            await gate.entered()
        slots = engine.slots()
        assert [(slot.id, slot.is_processing) for slot in slots] == [(0, True), (1, True)]
        assert sorted(slot.n_tokens for slot in slots) == [3, 5]
        for gate in gates:
            gate.open()
        await asyncio.gather(*requests)
    assert sorted(gate.runner.batches for gate in gates) == [[[3]], [[5]]]


async def test_a_step_thread_that_wakes_at_once_finds_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    add = EmbeddingQueue.add

    def late(queue: EmbeddingQueue, job: EmbeddingJob) -> bool:
        time.sleep(0.05)  # the step thread has the interpreter's lock
        return add(queue, job)

    monkeypatch.setattr(EmbeddingQueue, "add", late)
    async with engine_over(FakeEmbeddingRunner(n_seq=1)) as engine, asyncio.timeout(10):
        assert len(await engine.submit(texts("one"))) == 1


async def test_requests_that_follow_replies_join_those_that_already_wait() -> None:
    gate = ConcurrencyLimiter()
    async with engine_over(gate.runner, gather_ms=60_000.0) as engine:
        first = engine.submit(texts("first"))
        await gate.entered()
        waits = engine.submit(texts("waits"))
        gate.open()
        await first
        await asyncio.gather(waits, engine.submit(texts("its client's next")))
    assert [len(batch) for batch in gate.runner.batches] == [1, 2]


async def test_the_vectors_of_a_decode_take_one_call_into_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, loop = ConcurrencyLimiter(), asyncio.get_running_loop()
    calls: list[object] = []
    call = loop.call_soon_threadsafe

    def counted(*given: Any) -> Any:
        calls.append(given)
        return call(*given)

    async with engine_over(gate.runner) as engine:
        requests = [engine.submit(texts("first"))]
        await gate.entered()
        requests += [engine.submit(texts(word)) for word in ("second", "third", "fourth")]
        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        gate.open()
        await asyncio.gather(*requests)
        monkeypatch.undo()
    assert [len(batch) for batch in gate.runner.batches] == [1, 3]
    assert len(calls) == 2


# ---- what ends early


async def test_only_the_input_at_fault_fails_its_request() -> None:
    def refuse(inputs: Sequence[Sequence[int]]) -> None:
        if any(bytes(tokens) == b"bad" for tokens in inputs):
            raise InternalError("llama_decode returned -1")

    runner = FakeEmbeddingRunner(on_embed=refuse)
    async with engine_over(runner) as engine:
        good = [engine.submit(texts("good", f"text {i}")) for i in range(3)]
        bad = engine.submit(texts("fine", "bad", "fine"))
        with pytest.raises(InternalError, match="returned -1"):
            await bad
        found = await asyncio.gather(*good)
    assert all(equal(vectors, runner, texts("good", f"text {i}")) for i, vectors in enumerate(found))


async def test_a_step_that_breaks_ends_every_request_and_the_next_ones_work() -> None:
    faults = [RuntimeError("broken")]

    def breaks(_: object) -> None:
        if faults:
            raise faults.pop()

    async with engine_over(FakeEmbeddingRunner(on_embed=breaks)) as engine:
        with pytest.raises(InternalError, match="the engine failed"):
            await engine.submit(texts("one"))
        assert len(await engine.submit(texts("two"))) == 1


class InParts(FakeEmbeddingRunner):
    """Computes each input in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)

    def embed(self, inputs: Sequence[Sequence[int]], on_part: Callable[[], None] = lambda: None) -> list[Vectors]:
        for _ in range(2):
            self.begun.release()
            assert self.goes_on.acquire(timeout=60)
            on_part()
        return super().embed(inputs)

    async def part(self) -> None:
        """Wait until the next part has begun."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=60)


async def test_a_long_input_whose_parts_end_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, clock = InParts(), Clock()
    async with engine_over(runner) as engine:
        monkeypatch.setattr(engine, "_clock", clock)
        found = engine.submit(texts("long"))
        for now in (1.0, 12.0):
            await runner.part()
            clock.now = now
            assert engine.hung(10.0) == []
            runner.goes_on.release()
        assert len(await found) == 1


async def test_nothing_more_is_computed_for_a_client_that_has_left(caplog: pytest.LogCaptureFixture) -> None:
    runner = InParts()
    async with engine_over(runner) as engine:
        gone = engine.submit(texts("longer"))
        await runner.part()
        gone.cancel()
        await asyncio.sleep(0)
        runner.goes_on.release()
        after = engine.submit(texts("next"))
        await runner.part()
        runner.goes_on.release(2)
        assert len(await after) == 1
    assert runner.batches == [[4]]
    assert "failed" not in caplog.text


async def test_close_fails_what_runs_and_refuses_what_comes() -> None:
    gate = ConcurrencyLimiter(n_seq=1)
    async with engine_over(gate.runner) as engine:
        running, waiting = engine.submit(texts("one", "two")), engine.submit(texts("three"))
        await gate.entered()
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        gate.open()
        await closing
        for request in (running, waiting):
            with pytest.raises(ShuttingDown):
                await request
        with pytest.raises(ShuttingDown):
            engine.submit(texts("late"))


# ---- what is refused


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
            r"request \(256 tokens\) exceeds the available context size \(256 tokens\)",
        ),
    ],
)
async def test_inputs_that_cannot_be(
    pooling: Pooling, tokens: list[int], error: type[InvalidRequest], message: str
) -> None:
    async with engine_over(FakeEmbeddingRunner(pooling=pooling)) as engine:
        with pytest.raises(error, match=message):
            engine.submit([[1], tokens])
        assert not engine.busy


@pytest.mark.skipif(not PRIORITIES_BY_THREAD, reason="only Linux binds threads")
async def test_the_step_thread_has_its_instances_processors_and_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    one, own = max(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)
    asked: list[tuple[int, object]] = []
    monkeypatch.setitem(NICE, -1, min(own + 1, 19))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cpus: asked.append((threading.get_ident(), cpus)))
    monkeypatch.setattr(os, "setpriority", lambda _which, _pid, nice: asked.append((threading.get_ident(), nice)))
    computing: list[int] = []
    runner = FakeEmbeddingRunner(on_embed=lambda _: computing.append(threading.get_ident()))
    async with engine_over(runner, cpus=(frozenset({one}),), prio=-1) as engine:
        await engine.submit(texts("one"))
    assert asked == [(computing[0], frozenset({one})), (computing[0], min(own + 1, 19))]


def job(*sizes: int) -> EmbeddingJob:
    return EmbeddingJob([MediaPrompt([0] * size) for size in sizes], 0.0, cast(Any, None))


def queue_of(*jobs: EmbeddingJob) -> EmbeddingQueue:
    queue = EmbeddingQueue()
    for each in jobs:
        queue.add(each)
    return queue


def sizes(queue: EmbeddingQueue, n_seq: int = 100, n_tokens: int = 100) -> list[int]:
    return [len(one.inputs[index]) for one, index in queue.take(n_seq, n_tokens)]


def test_a_small_job_does_not_wait_for_all_of_a_large_one() -> None:
    queue = queue_of(job(*[50] * 20), job(50))
    assert sizes(queue) == [50, 50]
    assert len(list(queue)) == 1


@given(
    st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=8), max_size=8),
    st.integers(1, 6),
    st.integers(1, 120),
)
def test_every_input_is_taken_once_within_the_limits(all_sizes: list[list[int]], n_seq: int, n_tokens: int) -> None:
    jobs = [job(*each) for each in all_sizes]
    queue = queue_of(*jobs)
    taken = []
    while pieces := queue.take(n_seq, n_tokens):
        assert len(pieces) <= n_seq
        assert len(pieces) == 1 or sum(len(one.inputs[index]) for one, index in pieces) <= n_tokens
        taken += [(jobs.index(one), index) for one, index in pieces]
    assert sorted(taken) == [(j, i) for j, each in enumerate(all_sizes) for i in range(len(each))]


def test_jobs_wait_for_another_instance_and_are_given_up_with_the_last() -> None:
    queue, waiting = EmbeddingQueue(2), [job(5), job(6)]
    for each in waiting:
        queue.add(each)
    assert (queue.close(0), list(queue)) == ([], waiting)
    assert (queue.close(1), list(queue)) == (waiting, [])
    assert not queue.add(job(7))
