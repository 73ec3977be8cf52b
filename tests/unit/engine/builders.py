"""Builders for tests of the engine: an engine with fake runners, requests, and their replies as values.

The server itself reads events in `server.serving.session`.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Sequence as Seq
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from server.engine.engine import Engine
from server.engine.lora import Adapter, adapter_set
from server.engine.params import EngineParams
from server.engine.request import Event, Failed, Finished, Request, SamplingParams, Started, Text
from server.engine.sequence import Phase, Sequence, Slot, Ticket
from tests.support.fakes import EOS, FakeRunner, FakeVocab

GREEDY = SamplingParams(temperature=0.0)


@asynccontextmanager
async def engine_over(
    *runners: FakeRunner, clock: Callable[[], float] = time.perf_counter, **params: Any
) -> AsyncIterator[Engine]:
    """Open an engine that checks its integrity after every step; close it at the end.

    With the real clock, the first step waits for every request that `run` submits.
    """
    settings = {"gather_ms": 60_000.0 if clock is time.perf_counter else 0.0, "check_integrity": True} | params
    engine = Engine(runners, EngineParams(**settings), asyncio.get_running_loop(), clock)
    try:
        yield engine
        engine.check_integrity()
    finally:
        await engine.close()
        assert all(runner.closed for runner in runners)


def ticking_clock() -> Callable[[], float]:
    """Return a clock that advances 1 ms each time it is read, so that every decode takes equally long."""
    ticks = itertools.count(1)
    return lambda: next(ticks) * 1e-3


class Gate:
    """Blocks each thread that calls it until `opened` is set, for example as `on_decode` of a runner."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.entered.set()
        assert self.opened.wait(60), "the gate was never opened"

    async def wait_entered(self) -> None:
        """Wait until a thread has reached the gate."""
        assert await asyncio.to_thread(self.entered.wait, 60)


def request(prompt: str, **options: Any) -> Request:
    """Return a greedy request for 8 tokens; `options` override this."""
    defaults: dict[str, Any] = {"max_tokens": 8, "sampling": GREEDY}
    tokens = FakeVocab().tokenize(prompt, add_special=True, parse_special=False)
    return Request(id=prompt[:8], prompt=tokens, **(defaults | options))


def sequence(
    prompt: list[int], *, at: float = 0.0, phase: Phase = Phase.WAITING, slot: Slot | None = None, **options: Any
) -> Sequence:
    """Return the only choice of a request that was submitted at time `at`; `options` are fields of the request."""
    ticket = Ticket(Request("r", prompt, **options), lambda events: None, at)
    return Sequence(ticket, 0, phase=phase, slot=slot)


@dataclass(eq=False)
class Reply:
    """A request, and the events that it has received so far."""

    request: Request
    texts: dict[int, str] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    error: Exception | None = None
    events: list[Event] = field(default_factory=list)
    ticket: Ticket = field(init=False)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _steps: asyncio.Queue[list[Event]] = field(default_factory=asyncio.Queue)

    @property
    def text(self) -> str:
        """The text of the only choice."""
        return self.texts.get(0, "")

    @property
    def tokens(self) -> list[int]:
        """The tokens of all choices."""
        return [token for event in self.events if isinstance(event, Text) for token in event.tokens]

    @property
    def started(self) -> Started:
        """The first `Started` event."""
        return next(e for e in self.events if isinstance(e, Started))

    def receive(self, events: list[Event]) -> None:
        """Record the events of one step."""
        self.events.extend(events)
        for event in events:
            if isinstance(event, Text):
                self.texts[event.index] = self.texts.get(event.index, "") + event.text
            elif isinstance(event, Finished):
                self.finished[event.index] = event
            elif isinstance(event, Failed):
                self.error = event.error
        self._steps.put_nowait(events)
        if self.error is not None or len(self.finished) == self.request.n:
            self.ended.set()

    async def next_step(self) -> list[Event]:
        """Wait for the next step's events that were not returned yet."""
        return await self._steps.get()


def submit(engine: Engine, request: Request) -> Reply:
    """Submit a request. Raises what `Engine.submit` raises."""
    reply = Reply(request)
    reply.ticket = engine.submit(request, reply.receive)
    return reply


async def run(engine: Engine, *requests: Request) -> list[Reply]:
    """Submit `requests` together and wait until all have ended. If this is cancelled, cancel those that still run."""
    with engine.preparing():  # otherwise the first may end before the second is submitted
        replies = [submit(engine, each) for each in requests]
    try:
        for reply in replies:
            await reply.ended.wait()
    finally:
        for reply in replies:
            if not reply.ended.is_set():
                engine.cancel(reply.ticket)
    return replies


def expected_text(req: Request, adapters: Seq[Adapter] = (), replies: Mapping[str, str] | None = None) -> str:
    """Return the text that the fake model generates for `req` without an engine and without other requests."""
    runner = FakeRunner(n_seq=1, n_ctx_seq=10**6, replies=replies)
    tokens = list(req.prompt)
    wanted = adapter_set(req.adapters or (), adapters, req.prompt)
    while len(tokens) - len(req.prompt) < req.max_tokens:
        if wanted.adapters:
            runner.computed_by[0] = [wanted.at(i) for i in range(len(tokens))]
        token = runner._next(runner._text(tokens) + runner._adapter_history(0, len(tokens)))
        if token == EOS:
            break
        tokens.append(token)
    return FakeVocab().detokenize(tokens[len(req.prompt) :]).decode()
