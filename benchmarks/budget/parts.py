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

from server.dialects import generation
from server.dialects.chat import parse
from server.dialects.chat.write import ChatWriter
from server.engine.cache.kv_store import Cells
from server.engine.engine import Engine
from server.engine.loop import Instance
from server.engine.sampling import NextTokens
from server.engine.scheduler import Scheduler
from server.engine.text import TextStream
from server.engine.tickets import ModelQueue, Requests
from server.llama.context.batch import Batch
from server.llama.context.runner import LlamaRunner
from server.llama.vocab import LlamaVocab
from server.serving import generate
from server.serving.session import Session
from server.templates.isolated import IsolatedRenderer
from server.templates.template import ChatTemplate
from server.transport.middleware import Middleware
from server.transport.server import HttpProtocol


@dataclass(frozen=True, slots=True)
class Part:
    """A function whose time is counted under a name; of one that is async, what it computes between its waits."""

    name: str
    thread: str
    owner: Any
    function: str


def _parts(thread: str, owner: Any, **functions: str) -> list[Part]:
    """Functions of one owner, and the names that their time is counted under."""
    return [Part(name, thread, owner, function) for function, name in functions.items()]


NATIVE = _parts("step", LlamaRunner, _decode_batch="decode (library)", sample="sampling (library)")
_STEP = [
    *NATIVE,
    *_parts("step", Instance, _receive="receive", _place="place", _take_results="results"),
    *_parts("step", LlamaRunner, sampler="sampler"),
    *_parts("step", Cells, prepare="prepare cells"),
    *_parts("step", Scheduler, plan="plan", commit="commit"),
    *_parts("step", Batch, fill="fill the batch"),
    *_parts("step", NextTokens, _take_one="token to event"),
    *_parts("step", TextStream, feed="bytes to text"),
    *_parts("step", Requests, emit="events, emit", post="events, post"),
]
_OUT = [*_parts("loop", ModelQueue, _deliver="deliver"), *_parts("loop", RequestResponseCycle, send="send")]
TOKEN_PARTS = [
    *_STEP,
    *_parts("loop", ChatWriter, feed="dialect"),
    *_OUT,
]
REQUEST_PARTS = [
    *_parts("loop", HttpProtocol, data_received="HTTP parse"),
    *_parts("loop", Middleware, __call__="middleware, routing"),
    *_parts("loop", generate, read_as="body", respond="handler"),
    *_parts("loop", parse, parse="fields", read_messages="messages", read_shape="response format"),
    *_parts("loop", Session, start="lease, hand to threads"),
    *_parts("loop", Engine, submit="submit"),
    *_parts("loop", ChatWriter, body="reply"),
    *_OUT,
    *_parts("prepare", generation, prepare="prompt and output"),
    *_parts("prepare", generation.ParsedRequest, requests="engine request"),
    *_parts("prepare", ChatTemplate, render="template"),
    *_parts("prepare", IsolatedRenderer, render="template, to the other process"),
    *_parts("prepare", LlamaVocab, tokenize="tokenize"),
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
