"""Short ways to make an engine over a fake runner, and to run requests through it. The server's own reader of events is
`server.serving.session`.
"""

import asyncio
import itertools
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
    """An engine that checks its accounting after every step, closed at the end.

    Its first step waits for all that `run` submits, unless that would move a clock of the test's own.
    """
    chosen = {"gather_ms": 60_000.0 if clock is time.perf_counter else 0.0, "check_integrity": True} | params
    engine = Engine(runners, EngineParams(**chosen), asyncio.get_running_loop(), clock)
    try:
        yield engine
        engine.check_integrity()
    finally:
        await engine.close()
        assert all(runner.closed for runner in runners)


def ticking() -> Callable[[], float]:
    """A clock that goes on by a millisecond each time it is read: every decode takes the same time."""
    ticks = itertools.count(1)
    return lambda: next(ticks) * 1e-3


def request(prompt: str, **options: Any) -> Request:
    """A greedy request of 8 tokens, unless said otherwise."""
    usual: dict[str, Any] = {"max_tokens": 8, "sampling": GREEDY}
    tokens = FakeVocab().tokenize(prompt, add_special=True, parse_special=False)
    return Request(id=prompt[:8], prompt=tokens, **(usual | options))


def sequence(
    prompt: list[int], *, at: float = 0.0, phase: Phase = Phase.WAITING, slot: Slot | None = None, **options: Any
) -> Sequence:
    """Return the only choice of a request that was submitted at `at`; `options` are the request's."""
    ticket = Ticket(Request("r", prompt, **options), lambda events: None, at)
    return Sequence(ticket, 0, phase=phase, slot=slot)


@dataclass(eq=False)
class Reply:
    """A request, and all that has come of it."""

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
        """The tokens of all texts."""
        return [token for event in self.events if isinstance(event, Text) for token in event.tokens]

    @property
    def started(self) -> Started:
        """The first choice's Started."""
        return next(e for e in self.events if isinstance(e, Started))

    def put(self, events: list[Event]) -> None:
        """Sort the events of a step in."""
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

    async def step(self) -> list[Event]:
        """Wait for the events of a further step."""
        return await self._steps.get()


def ask(engine: Engine, request: Request) -> Reply:
    """Submit a request; raises what `Engine.submit` raises."""
    reply = Reply(request)
    reply.ticket = engine.submit(request, reply.put)
    return reply


async def run(engine: Engine, *requests: Request) -> list[Reply]:
    """Submit all at once and wait for all. Cancelled, cancel those that have not ended."""
    with engine.preparing():  # else a step thread may be done with the first before there is a second
        replies = [ask(engine, each) for each in requests]
    try:
        for reply in replies:
            await reply.ended.wait()
    finally:
        for reply in replies:
            if not reply.ended.is_set():
                engine.cancel(reply.ticket)
    return replies


def alone(req: Request, adapters: Seq[Adapter] = (), replies: Mapping[str, str] | None = None) -> str:
    """What the fake model says to this prompt when nobody else is there."""
    runner = FakeRunner(n_seq=1, n_ctx_seq=10**6, replies=replies)
    tokens = list(req.prompt)
    wanted = adapter_set(req.adapters or (), adapters, req.prompt)
    while len(tokens) - len(req.prompt) < req.max_tokens:
        if wanted.adapters:
            runner.computed_by[0] = [wanted.at(i) for i in range(len(tokens))]
        token = runner._next(runner._text(tokens) + runner._tuned(0, len(tokens)))
        if token == EOS:
            break
        tokens.append(token)
    return FakeVocab().detokenize(tokens[len(req.prompt) :]).decode()
