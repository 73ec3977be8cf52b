"""The parts of `benchmarks.budget` and their CPU times, each without the parts that it calls."""

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
from server.engine.engine import Engine
from server.engine.kv_store import Cells
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
    """A function and the name of its time in tables. For a coroutine, only the time between its awaits counts."""

    name: str
    thread: str
    owner: Any
    function: str


def _parts(thread: str, owner: Any, **functions: str) -> list[Part]:
    """Return parts for functions of one owner; the values are the names of the parts."""
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
    *_parts("loop", parse, parse="fields", read_messages="messages", read_response_format="response format"),
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
    """A context manager that measures the parts. Each thread has a stack of the parts that it is in."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._inner: dict[str, int] = {}
        self._local = threading.local()
        self._originals: list[tuple[Part, Any]] = []
        self._step: Callable[[Instance], bool] = Instance._step
        self.n_steps = 0
        self._call_s, self._own_s = _overhead()

    def reset(self) -> None:
        """Set all counts to zero."""
        self._seconds = dict.fromkeys((part.name for part in self._parts), 0.0)
        self._calls, self._inner = dict.fromkeys(self._seconds, 0), dict.fromkeys(self._seconds, 0)
        self.n_steps = 0

    def seconds(self) -> dict[str, float]:
        """Return the seconds by part, without the cost of measuring."""
        return {
            name: max(s - self._calls[name] * self._own_s - self._inner[name] * (self._call_s - self._own_s), 0.0)
            for name, s in self._seconds.items()
        }

    def calls(self) -> dict[str, int]:
        """Return the calls by part; for a coroutine, how often it was resumed."""
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
            has_worked = original(instance)
            self.n_steps += has_worked
            return has_worked

        return step

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        if iscoroutinefunction(original):

            @wraps(original)
            async def counted_async(*args: Any, **kwargs: Any) -> Any:
                return await _Steps(original(*args, **kwargs), self._timed(name))

            return counted_async

        timed = self._timed(name)

        @wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            return timed(original, *args, **kwargs)

        return counted

    def _timed(self, name: str) -> Callable[..., Any]:
        local = self._local

        def timed(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            stack = local.__dict__.setdefault("stack", [])
            frame = [0.0, 0]
            stack.append(frame)
            start = time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                seconds = time.thread_time() - start
                stack.pop()
                if name in self._seconds:
                    self._seconds[name] += seconds - frame[0]
                    self._calls[name] += 1
                    self._inner[name] += int(frame[1])
                if stack:
                    stack[-1][0] += seconds
                    stack[-1][1] += 1

        return timed


@dataclass(frozen=True, slots=True)
class _Steps(Awaitable[Any]):
    """A coroutine whose runs between awaits are `timed`."""

    inner: Any
    timed: Callable[..., Any]

    def __await__(self) -> Generator[Any, Any, Any]:
        resume, value = self.inner.send, None
        while True:
            try:
                awaited = self.timed(resume, value)
            except StopIteration as end:
                return end.value
            try:
                resume, value = self.inner.send, (yield awaited)
            except GeneratorExit:
                self.inner.close()
                raise
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (the coroutine handles it)
                resume, value = self.inner.throw, error


def _overhead(n: int = 20_000) -> tuple[float, float]:
    """Return the seconds that measuring adds to a call, and the part of them that counts as the function's own."""
    threads = Threads.__new__(Threads)
    threads._seconds, threads._calls, threads._inner = {"": 0.0}, {"": 0}, {"": 0}
    threads._local = threading.local()

    def nothing() -> None:
        pass

    counted = threads._counted("", nothing)
    start = time.thread_time()
    for _ in range(n):
        nothing()
    plain = time.thread_time() - start
    start = time.thread_time()
    for _ in range(n):
        counted()
    whole = time.thread_time() - start
    return (whole - plain) / n, threads._seconds[""] / n
