"""A worker's main object in this process: late and cancelled requests leave nothing and end nothing."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from server.engine.request import Request
from server.engine.sequence import Ticket
from server.media.bitmap import Bitmap
from server.pool.spec import ModelSpec
from server.pool.worker.child import Worker
from server.pool.worker.messages import Encoder, HandleTable
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.reasoning_end import ReasoningBudget, ReasoningEnd, ReasoningSwitch
from tests.support.fakes import FakeLoader, FakeRunner, FakeVocab
from tests.unit.pool.fakes import spec

VOCAB = FakeVocab()
DEMO = spec("demo")


class Process:
    """``failures``: the reasons why it would exit."""

    def __init__(self, worker: Worker, steps: threading.Semaphore) -> None:
        self.worker, self.steps = worker, steps
        self.failures: list[str] = []
        worker.fail = self.failures.append  # type: ignore[method-assign,assignment]

    def call(self, function: str, *arguments: object) -> None:
        """Call a function as the server does."""
        self.worker.functions[function](*arguments)

    def submit_encoded(self, number: int, constraint: Constraint, n_prompt: int = 3) -> None:
        """Send a request whose grammar is compiled first."""
        request = Request(f"r{number}", [1] * n_prompt, max_tokens=10_000, constraint=constraint)
        body = Encoder(VOCAB, HandleTable[Bitmap]().add).pickled(request)
        self.call("submit", number, body, True)

    async def until_submitted(self, number: int) -> None:
        while self.worker.requests[number] is None:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process continues."""
    monkeypatch.setattr("server.pool.worker.child.gc.freeze", lambda: None)


@asynccontextmanager
async def process(model: ModelSpec = DEMO, n_seq: int = 4) -> AsyncIterator[Process]:
    """A worker whose steps wait until ``steps`` is released, or for the end."""
    ours, theirs = socket.socketpair()
    steps, lost = threading.Semaphore(0), asyncio.Event()
    worker = Worker(theirs, lost.set)
    worker._loader = FakeLoader(runner=lambda: FakeRunner(n_seq=n_seq, steps=steps))
    await worker._load(model)
    try:
        yield Process(worker, steps)
    finally:
        steps.release(100)
        await worker._close("generator", 0.0)
        worker._grammars.shutdown()
        worker._threads.shutdown()
        ours.close()
        await lost.wait()


def thinking() -> Constraint:
    inner = GrammarCompiler(VOCAB).gbnf('root ::= "b" [0-9]+')
    return ReasoningBudget().ended(inner, VOCAB, "<think>", ["</think>"], begun="x", reopens=False)


def switch_of(ticket: Ticket | None) -> ReasoningSwitch:
    assert ticket is not None
    assert isinstance(ticket.request.constraint, ReasoningEnd)
    return ticket.request.constraint.switch


async def test_a_request_cancelled_while_its_grammar_compiles_is_not_computed() -> None:
    async with process() as found:
        worker, goes_on = found.worker, threading.Event()
        worker._grammars.submit(goes_on.wait, 60)
        found.submit_encoded(7, thinking())
        found.call("cancel", 7)
        found.submit_encoded(8, thinking())
        goes_on.set()
        await found.until_submitted(8)
        assert (found.failures, list(worker.requests)) == ([], [8])
        found.call("cancel", 8)


async def test_reasoning_may_be_ended_before_its_request_is_decoded_and_after_it_has_ended() -> None:
    async with process() as found:
        worker, goes_on = found.worker, threading.Event()
        worker._grammars.submit(goes_on.wait, 60)
        found.submit_encoded(7, thinking())
        found.call("end_reasoning", 7)
        found.call("end_reasoning", 6)
        goes_on.set()
        await found.until_submitted(7)
        while not switch_of(worker.requests[7]).n_calls:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.001)
        assert not found.failures
        found.call("cancel", 7)
        found.call("end_reasoning", 7)
        assert (found.failures, worker.requests) == ([], {})


@pytest.mark.parametrize("is_readable", [True, False])
async def test_a_refused_request_leaves_nothing(monkeypatch: pytest.MonkeyPatch, is_readable: bool) -> None:
    async with process() as found:
        worker = found.worker
        if not is_readable:
            assert worker.model is not None
            monkeypatch.setattr(worker.model.grammar, "recreate", lambda _: 1 / 0)
        found.submit_encoded(7, thinking(), n_prompt=100_000)
        while worker.requests:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.001)
        assert not found.failures


async def test_a_request_that_exceeds_its_time_limit_during_a_step_leaves_nothing() -> None:
    async with process() as found:
        worker = found.worker
        body = Encoder(VOCAB).pickled(Request("r7", [1] * 3, request_timeout_s=1e-6))
        found.call("submit", 7, body, False)
        while worker.requests:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.001)
        assert not found.failures
