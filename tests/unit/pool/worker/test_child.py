"""A worker's main object, run in the test's process: late, cancelled and refused requests are dropped."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from server.engine.request import Request, SamplingParams
from server.engine.sequence import Ticket
from server.media.bitmap import Bitmap
from server.pool.worker.child import Worker
from server.pool.worker.messages import Encoder, HandleTable
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.reasoning_end import ReasoningBudget, ReasoningEnd, ReasoningSwitch
from tests.support.fakes import FakeLoader, FakeRunner, FakeVocab
from tests.unit.pool.fakes import spec

VOCAB = FakeVocab()


class WorkerHarness:
    """A worker, and the functions that the server calls. ``failures``: the reasons for which it would exit."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.failures: list[str] = []
        worker.fail = self.failures.append  # type: ignore[method-assign,assignment]

    def call(self, function: str, *arguments: object) -> None:
        """Call a function as the server does."""
        self.worker.functions[function](*arguments)

    def submit(self, number: int, n_prompt: int = 3, dry_base: float = 0.0) -> None:
        """Submit a request whose grammar must be compiled first."""
        constraint, sampling = reasoning_constraint(), SamplingParams(dry_multiplier=1.0, dry_base=dry_base)
        request = Request(f"r{number}", [1] * n_prompt, sampling=sampling, max_tokens=10_000, constraint=constraint)
        body = Encoder(VOCAB, HandleTable[Bitmap]().add).pickled(request)
        self.call("submit", number, body, True)

    async def until_submitted(self, number: int) -> None:
        while self.worker.requests[number] is None:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)

    async def until_empty(self) -> None:
        while self.worker.requests:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def no_gc_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip `gc.freeze`, which would freeze the objects of the test's process."""
    monkeypatch.setattr("server.pool.worker.child.gc.freeze", lambda: None)


@asynccontextmanager
async def running_worker() -> AsyncIterator[WorkerHarness]:
    """Run a worker whose steps wait. On exit, the steps continue, and the worker is closed."""
    server_end, worker_end = socket.socketpair()
    steps, lost = threading.Semaphore(0), asyncio.Event()
    worker = Worker(worker_end, lost.set)
    worker._loader = FakeLoader(runner=lambda: FakeRunner(steps=steps))
    await worker._load(spec("demo"))
    try:
        yield WorkerHarness(worker)
    finally:
        steps.release(100)
        await worker._close("generator", 0.0)
        worker._grammars.shutdown()
        worker._samplers.shutdown()
        worker._threads.shutdown()
        server_end.close()
        await lost.wait()


def reasoning_constraint() -> Constraint:
    inner = GrammarCompiler(VOCAB).gbnf('root ::= "b" [0-9]+')
    return ReasoningBudget().ended(inner, VOCAB, "<think>", ["</think>"], begun="x", reopens=False)


def switch_of(ticket: Ticket | None) -> ReasoningSwitch:
    assert ticket is not None
    assert isinstance(ticket.request.constraint, ReasoningEnd)
    return ticket.request.constraint.switch


async def test_request_cancelled_during_compilation_of_its_grammar_is_dropped() -> None:
    async with running_worker() as harness:
        worker, unblock = harness.worker, threading.Event()
        worker._grammars.submit(unblock.wait, 60)
        harness.submit(7)
        harness.call("cancel", 7)
        harness.submit(8)
        unblock.set()
        await harness.until_submitted(8)
        assert (harness.failures, list(worker.requests)) == ([], [8])
        harness.call("cancel", 8)


async def test_end_reasoning_is_accepted_before_a_request_is_decoded_and_after_it_ended() -> None:
    async with running_worker() as harness:
        worker, unblock = harness.worker, threading.Event()
        worker._grammars.submit(unblock.wait, 60)
        harness.submit(7)
        harness.call("end_reasoning", 7)
        harness.call("end_reasoning", 6)
        unblock.set()
        await harness.until_submitted(7)
        while not switch_of(worker.requests[7]).n_calls:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)
        assert not harness.failures
        harness.call("cancel", 7)
        harness.call("end_reasoning", 7)
        assert (harness.failures, worker.requests) == ([], {})


async def test_preparing_a_sampler_does_not_delay_other_requests() -> None:
    """Not even those whose grammar must be compiled or whose media are read."""
    async with running_worker() as harness:
        worker, unblock = harness.worker, threading.Event()
        prepare = worker._generator.prepare_sampler

        def slow(params: SamplingParams) -> None:
            unblock.wait(60)
            prepare(params)

        worker._generator.prepare_sampler = slow  # type: ignore[method-assign]
        for number in range(1, 10):
            harness.submit(number, dry_base=1.0 + number)
        harness.submit(10)
        async with asyncio.timeout(30):
            await harness.until_submitted(10)
            await worker.in_thread(lambda: None)
        assert not any(worker.requests[number] for number in range(1, 10))
        unblock.set()
        for number in range(1, 11):
            await harness.until_submitted(number)
            harness.call("cancel", number)


@pytest.mark.parametrize("can_decode", [True, False])
async def test_refused_request_is_dropped(monkeypatch: pytest.MonkeyPatch, can_decode: bool) -> None:
    async with running_worker() as harness:
        if not can_decode:
            assert harness.worker.model is not None
            monkeypatch.setattr(harness.worker.model.grammar, "recreate", lambda _: 1 / 0)
        harness.submit(7, n_prompt=100_000)
        await harness.until_empty()
        assert not harness.failures


async def test_request_that_exceeds_its_timeout_during_a_step_is_dropped() -> None:
    async with running_worker() as harness:
        body = Encoder(VOCAB).pickled(Request("r7", [1] * 3, request_timeout_s=1e-6))
        harness.call("submit", 7, body, False)
        await harness.until_empty()
        assert not harness.failures
