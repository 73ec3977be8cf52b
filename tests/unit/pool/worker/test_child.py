"""A model's process, in this one: what it is asked by who has left already, or asks too late, ends nothing."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from server.engine.params import EngineParams
from server.engine.request import Request
from server.pool.footprint import Fit
from server.pool.spec import ModelSpec
from server.pool.worker import codec
from server.pool.worker.answers import read_error, written_error
from server.pool.worker.channel import FrameKind
from server.pool.worker.child import ModelProcess
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.reasoning_end import Ending, ReasoningEnd, ReasoningSwitch
from tests.support.fakes import FakeLoader, FakeRunner, FakeVocab
from tests.unit.pool.fakes import spec

VOCAB = FakeVocab()
DEMO = spec("demo")


class Process:
    """``model``, and whether it is about to end."""

    def __init__(self, model: ModelProcess, steps: threading.Semaphore) -> None:
        self.model, self.steps = model, steps
        self.fails: list[str] = []
        model._fail = self.fails.append  # type: ignore[assignment]

    def say(self, *message: object) -> None:
        """As the server does."""
        (body,) = codec.written(message, VOCAB, lambda _: 0, lambda _: 0)
        self.model._received(FrameKind.MESSAGE, bytes(body), ())

    def read(self, number: int, constraint: Constraint, n_prompt: int = 3) -> None:
        """A request that takes its time to be read."""
        request = Request(f"r{number}", [1] * n_prompt, max_tokens=10_000, constraint=constraint)
        (body,) = codec.written((number, request), VOCAB, lambda _: number, lambda _: 0)
        self.say("read", number, body)


@pytest.fixture
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process goes on."""
    monkeypatch.setattr("server.pool.worker.child.gc.freeze", lambda: None)


@asynccontextmanager
async def process(model: ModelSpec = DEMO, n_seq: int = 4) -> AsyncIterator[Process]:
    """No step is let through before the end: what is asked would be over before a test has looked."""
    ours, theirs = socket.socketpair()
    steps = threading.Semaphore(0)
    with ours, theirs:
        made = ModelProcess(theirs)
        made._loader = FakeLoader(runner=lambda: FakeRunner(n_seq=n_seq, steps=steps))
        await made._load(model, Fit(model), prepares=False)
        assert made._served is not None
        try:
            yield Process(made, steps)
        finally:
            steps.release(100)
            await made._served._close("generator", 0.0)
            made._grammars.shutdown()
            made._threads.shutdown()


def thinking(switch: ReasoningSwitch) -> Constraint:
    ending = Ending(b"<think>", (b"</think>",), tuple(b"</think>"))
    return ReasoningEnd(ending, GrammarCompiler(VOCAB).gbnf('root ::= "b" [0-9]+'), VOCAB, n_begun=1, switch=switch)


@pytest.mark.usefixtures("nothing_frozen")
async def test_who_leaves_while_his_grammar_is_read_ends_neither_the_process_nor_computes_for_nobody() -> None:
    async with process() as found:
        served, goes_on = found.model._served, threading.Event()
        assert served is not None
        found.model._grammars.submit(goes_on.wait, 60)
        found.read(7, thinking(ReasoningSwitch()))
        found.say("cancel", 7)
        found.read(8, thinking(ReasoningSwitch()))
        goes_on.set()
        while 8 not in served._tickets:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        assert (found.fails, list(served._tickets), list(served._switches)) == ([], [8], [8])
        assert served._n_begun == 2
        found.say("cancel", 8)


@pytest.mark.usefixtures("nothing_frozen")
async def test_thoughts_that_are_ended_before_their_request_is_read_or_after_it_has_ended() -> None:
    async with process() as found:
        served, goes_on = found.model._served, threading.Event()
        assert served is not None
        found.model._grammars.submit(goes_on.wait, 60)
        found.read(7, thinking(ReasoningSwitch()))
        found.say("switch", 7)
        found.say("switch", 6)
        assert (found.fails, [each.n_calls for each in served._switches.values()]) == ([], [1])
        goes_on.set()
        while 7 not in served._tickets:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        assert list(served._switches) == [7]
        found.say("cancel", 7)
        found.say("switch", 7)
        assert (found.fails, served._switches) == ([], {})


@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("is_readable", [True, False])
async def test_nothing_stays_of_a_request_that_is_refused(monkeypatch: pytest.MonkeyPatch, is_readable: bool) -> None:
    async with process() as found:
        served = found.model._served
        assert served is not None
        if not is_readable:
            monkeypatch.setattr(served._model.grammar, "made_anew", lambda _: 1 / 0)
        found.read(7, thinking(ReasoningSwitch()), n_prompt=100_000)
        while not served._n_begun:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        assert (found.fails, served._tickets, served._awaited, served._switches) == ([], {}, set(), {})


@pytest.mark.usefixtures("nothing_frozen")
async def test_a_request_that_expires_in_the_queue_of_several_instances_leaves_no_ticket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.engine.step.requests.EXPIRY_CHECK_S", 0.0)
    limited = spec("demo", instances=2, engine=EngineParams(request_timeout_s=3600.0))
    async with process(limited, n_seq=1) as found:
        served = found.model._served
        assert served is not None
        assert served._generator is not None
        for number in (1, 2):
            found.say("submit", number, Request(f"r{number}", [1], max_tokens=10_000))
        while sum(slot.is_processing for slot in served._generator.slots()) < 2:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        found.say("submit", 3, Request("r3", [1], arrived_at=time.perf_counter() - 7200))
        assert list(served._tickets) == [1, 2, 3]
        found.steps.release(100)
        while served._generator.n_load > 2:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        assert list(served._tickets) == [1, 2], "the clean-up is asked for before the request leaves the queue"
        found.say("cancel", 1)
        found.say("cancel", 2)


@pytest.mark.parametrize(
    ("error", "said"),
    [(MemoryError(), "too little memory"), (KeyError("x"), "KeyError: 'x'"), (asyncio.CancelledError(), "Cancelled")],
)
def test_an_error_that_is_not_ours_crosses_as_one_that_is_whole(error: BaseException, said: str) -> None:
    found = read_error(written_error(error))
    assert said in found.message
    assert written_error(found) == written_error(read_error(written_error(found)))
