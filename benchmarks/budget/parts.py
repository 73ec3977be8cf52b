"""The parts of `benchmarks.budget`, and how their CPU time is counted: each without the parts that it calls."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import wraps
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Self

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from server.engine.engine import Engine
from server.engine.generate.sample import NextTokens
from server.engine.generate.text import TextStream
from server.engine.kv.cells import Cells
from server.engine.schedule.scheduler import Scheduler
from server.engine.step.loop import Instance
from server.engine.step.mailbox import Mailbox
from server.llama.context.batch import Batch
from server.llama.context.runner import LlamaRunner
from server.llama.vocab import LlamaVocab
from server.routes import generate
from server.routes.inference import chat
from server.routes.session import Session
from server.templates.isolated import IsolatedRenderer
from server.templates.template import ChatTemplate
from server.transport.gateway import Gateway
from server.transport.uvicorn_protocols import BoundedHttpProtocol
from server.wire.chat import read
from server.wire.chat.write import ChatReply, ChatStream


@dataclass(frozen=True, slots=True)
class Part:
    """A function whose time is counted under a name; of one that is async, what it computes between its waits."""

    name: str
    thread: str
    owner: Any
    function: str


NATIVE = [
    Part("decode (library)", "step", LlamaRunner, "_decode_entries"),
    Part("sampling (library)", "step", LlamaRunner, "sample"),
]
_STEP = [
    *NATIVE,
    Part("receive", "step", Instance, "_receive"),
    Part("place", "step", Instance, "_place"),
    Part("sampler", "step", LlamaRunner, "sampler"),
    Part("prepare cells", "step", Cells, "prepare"),
    Part("plan", "step", Scheduler, "plan"),
    Part("fill the batch", "step", Batch, "fill"),
    Part("commit", "step", Scheduler, "commit"),
    Part("results", "step", Instance, "_take_results"),
    Part("token to event", "step", NextTokens, "_take_one"),
    Part("bytes to text", "step", TextStream, "feed"),
    Part("mailbox, emit", "step", Mailbox, "emit"),
    Part("mailbox, post", "step", Mailbox, "post"),
]
TOKEN_PARTS = [
    *_STEP,
    Part("deliver", "loop", Mailbox, "_deliver"),
    Part("dialect", "loop", ChatStream, "feed"),
    Part("events to chunks", "loop", generate, "_written"),
    Part("send", "loop", RequestResponseCycle, "send"),
]
REQUEST_PARTS = [
    Part("HTTP parse", "loop", BoundedHttpProtocol, "data_received"),
    Part("gateway, middleware, routing", "loop", Gateway, "__call__"),
    Part("body", "loop", chat, "read_as"),
    Part("fields", "loop", read, "parse"),
    Part("conversation", "loop", chat, "read_chat"),
    Part("handler", "loop", chat, "answer"),
    Part("lease, hand to threads", "loop", Session, "start"),
    Part("submit", "loop", Engine, "submit"),
    Part("deliver", "loop", Mailbox, "_deliver"),
    Part("reply", "loop", ChatReply, "body"),
    Part("send", "loop", RequestResponseCycle, "send"),
    Part("prompt and output", "prepare", read, "prepare"),
    Part("template", "prepare", ChatTemplate, "render"),
    Part("template, to the other process", "prepare", IsolatedRenderer, "_ask"),
    Part("tokenize", "prepare", LlamaVocab, "tokenize"),
    Part("engine request", "prepare", read, "prepared_request"),
    *_STEP,
]


class Threads:
    """Counts while it is entered. Every thread has a stack of the parts that it is in."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._inner: dict[str, int] = {}
        self._local = threading.local()
        self._originals: list[tuple[Part, Any]] = []
        self._step: Callable[[Instance], bool] = Instance._step
        self.n_steps = 0
        self._whole, self._inside = _cost()

    def reset(self) -> None:
        """Forget what was counted so far."""
        self._seconds = dict.fromkeys((part.name for part in self._parts), 0.0)
        self._calls, self._inner = dict.fromkeys(self._seconds, 0), dict.fromkeys(self._seconds, 0)
        self.n_steps = 0

    def seconds(self) -> dict[str, float]:
        """By part, without what counting took."""
        return {
            name: max(s - self._calls[name] * self._inside - self._inner[name] * (self._whole - self._inside), 0.0)
            for name, s in self._seconds.items()
        }

    def calls(self) -> dict[str, int]:
        """By part; of one that is async, how often it went on."""
        return dict(self._calls)

    def __enter__(self) -> Self:
        self.reset()
        for part in self._parts:
            original = getattr(part.owner, part.function)
            self._originals.append((part, original))
            setattr(part.owner, part.function, self._counted(part.name, original))
        Instance._step = self._stepped(Instance._step)  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        Instance._step = self._step  # type: ignore[method-assign, assignment]
        for part, original in reversed(self._originals):
            setattr(part.owner, part.function, original)

    def _stepped(self, original: Callable[[Instance], bool]) -> Callable[[Instance], bool]:
        @wraps(original)
        def step(instance: Instance) -> bool:
            went_on = original(instance)
            self.n_steps += went_on
            return went_on

        return step

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        if iscoroutinefunction(original):

            @wraps(original)
            async def counted_async(*given: Any, **named: Any) -> Any:
                return await _Steps(original(*given, **named), self._timed(name))

            return counted_async

        timed = self._timed(name)

        @wraps(original)
        def counted(*given: Any, **named: Any) -> Any:
            return timed(original, *given, **named)

        return counted

    def _timed(self, name: str) -> Callable[..., Any]:
        local = self._local

        def timed(work: Callable[..., Any], *given: Any, **named: Any) -> Any:
            stack = local.__dict__.setdefault("stack", [])
            frame = [0.0, 0]
            stack.append(frame)
            began = time.thread_time()
            try:
                return work(*given, **named)
            finally:
                took = time.thread_time() - began
                stack.pop()
                if name in self._seconds:
                    self._seconds[name] += took - frame[0]
                    self._calls[name] += 1
                    self._inner[name] += int(frame[1])
                if stack:
                    stack[-1][0] += took
                    stack[-1][1] += 1

        return timed


@dataclass(frozen=True, slots=True)
class _Steps(Awaitable[Any]):
    """A coroutine, each run of which between two waits is `timed`."""

    inner: Any
    timed: Callable[..., Any]

    def __await__(self) -> Generator[Any, Any, Any]:
        went_in, given = self.inner.send, None
        while True:
            try:
                waits_for = self.timed(went_in, given)
            except StopIteration as end:
                return end.value
            try:
                went_in, given = self.inner.send, (yield waits_for)
            except GeneratorExit:
                self.inner.close()
                raise
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is the coroutine's to handle
                went_in, given = self.inner.throw, error


def _cost(n: int = 20_000) -> tuple[float, float]:
    """What one counted call costs in all, and how much of it is counted as the function's own."""
    threads = Threads.__new__(Threads)
    threads._seconds, threads._calls, threads._inner = {"": 0.0}, {"": 0}, {"": 0}
    threads._local = threading.local()

    def nothing() -> None:
        pass

    counted = threads._counted("", nothing)
    began = time.thread_time()
    for _ in range(n):
        nothing()
    plain = time.thread_time() - began
    began = time.thread_time()
    for _ in range(n):
        counted()
    whole = time.thread_time() - began
    return (whole - plain) / n, threads._seconds[""] / n
