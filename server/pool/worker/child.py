"""The worker process of one model: loads it, runs its engines, and answers the server. It exits when the connection
closes.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from server.engine.embedding import EmbeddingEngine
from server.engine.media import MediaChunk, MediaPrompt, MediaSpan
from server.engine.request import Adapters, Event, Failed, Request
from server.engine.sequence import Ticket
from server.media.bitmap import Bitmap
from server.pool.block_events import ReportingEngine
from server.pool.loading import Factories, Load
from server.pool.memory import Fit
from server.pool.model import LoadedModel
from server.pool.protocols import Loader, MediaReader, ModelInfo
from server.pool.saved import slots
from server.pool.spec import ModelSpec
from server.pool.worker.messages import Connection, Decoder, EngineStatus, HandleTable, LoadedFacts, portable
from server.structured.grammar.matcher import Recipe
from server.structured.reasoning_end import ReasoningEnd
from server.templates.template import ChatTemplate

BUSY_HEARTBEAT_S, IDLE_HEARTBEAT_S = 0.5, 2.0
STATUS_INTERVAL_S = 0.05
"""Minimum time between two status messages of step threads, except when a request ends."""
SEND_BYTES = 4 << 20
EXIT_FAILED = 70
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "500"  # of 1000: the kernel kills this process before the server
log = logging.getLogger(__name__)

T = TypeVar("T")


def main(end: int, parent: int) -> None:
    """Serve the process `parent` on the inherited socket `end`."""
    _end_with_parent(parent)
    os.dup2(2, 1)  # what native libraries print is logged
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, chain=True)  # writes the stacks of all threads, then ends the process
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # may be sent to a whole process group; the server ends its workers
    try:
        import uvloop
    except ImportError:
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    else:
        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(socket.socket(fileno=end)))


def _end_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
        except OSError as error:  # a container may forbid it
            log.debug("oom_score_adj: %s", error)
    if os.getppid() != parent:  # it ended before prctl
        os._exit(0)


async def _serve(end: socket.socket) -> NoReturn:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # steps do not wait for a busy server
    await Worker(end).send_heartbeats()


class Worker(Connection):
    """The worker's main object, used on the event loop unless stated otherwise. ``model`` is None until the load.
    ``requests``: running requests by number; None while one is decoded.
    """

    def __init__(self, end: socket.socket, lost: Callable[[], object] = lambda: os._exit(0)) -> None:
        self._threads = ThreadPoolExecutor(8, "model")
        self._grammars, self._samplers = (ThreadPoolExecutor(1, name) for name in ("grammar", "sampler"))
        self._loader: Loader  # after `_start`
        self._generator: ReportingEngine  # after `_load`, if the model has one, as the reader
        self._reader: MediaReader
        self.model: LoadedModel | None = None
        self._engines: dict[str, ReportingEngine | EmbeddingEngine] = {}
        self.requests: dict[int, Ticket | None] = {}
        self._status_when_idle: asyncio.Task[None] | None = None
        self._preparing = defaultdict[str, contextlib.ExitStack](contextlib.ExitStack)
        self._hung_before = False
        self._chunks: HandleTable[MediaChunk] = HandleTable()
        self._status_lock = threading.Lock()
        self._status_at = 0.0
        functions: dict[str, Callable[..., Any]] = {
            "start": self._start,
            "check_progress": self._check_progress,
            "ping": self._ping,
            "loader": lambda method, *arguments: self.in_thread(partial(getattr(self._loader, method), *arguments)),
            "load": self._load,
            "preparing": self._prepare,
            "close": self._close,
            "submit": self._receive,
            "cancel": self._cancel,
            "end_reasoning": self._end_reasoning,
            "watch": self._watch,
            "set_adapter_scales": self._set_adapter_scales,
            "generator": lambda method, *arguments: getattr(self._generator, method)(*arguments),
            "save_slot": lambda *arguments: slots.save(cast(LoadedModel, self.model), *arguments),
            "restore_slot": lambda *arguments: slots.restore(cast(LoadedModel, self.model), *arguments),
            "embed": self._embed,
            "tokenize": self._tokenize,
            "count": self._count,
            "release_chunk": self._chunks.release,
        }
        super().__init__(functions, lost=lost, invalid=self._invalid_message, resolve=self._local_object)
        self.connect(end)

    def _local_object(self, kind: str, name: Any) -> object:
        """Return the local object for a reference. Thread-safe."""
        if kind == "bitmap":
            bitmap, number = name

            def again() -> bytes:
                pixels: bytes = asyncio.run_coroutine_threadsafe(self.call("pixels", number), self._loop).result()
                return pixels

            weakref.finalize(again, self.notify, "release_bitmap", number).atexit = False
            return replace(bitmap, again=again)
        assert self.model is not None
        match kind:
            case "vocab":
                return self.model.vocab
            case "constraint":
                return self.model.grammar.recreate(Recipe(*name))
            case "tokens":
                return self.model.grammar.tokens
            case "chunk":
                return self._chunks[name]
        raise AssertionError(kind)

    def _invalid_message(self, error: Exception) -> None:
        log.error("a message of the server could not be processed", exc_info=error)
        self.fail(f"{type(error).__name__}: {error}")

    def fail(self, reason: str) -> None:
        self.notify("failing", reason)
        self._loop.call_later(1.0, os._exit, EXIT_FAILED)

    async def send_heartbeats(self) -> NoReturn:
        """Send the status, or the activity of a load, at intervals."""
        while True:
            if self.model is not None:
                self._send_status()
                if reason := self.model.failure:
                    self.fail(f"a step thread has failed: {reason}")
            else:
                self.notify("loading", load_activity())
            await asyncio.sleep(BUSY_HEARTBEAT_S if self.model is None or self.busy else IDLE_HEARTBEAT_S)

    def _check_progress(self, limit_s: float) -> None:
        """Write stacks to the log and exit if a step thread has made no progress for `limit_s` seconds.

        Two consecutive checks must find that, because the first one after a suspended process continues does so.
        """
        hung_s = [seconds for engine in self._engines.values() for _, seconds in engine.hung(limit_s)]
        if hung_s and self._hung_before:
            faulthandler.dump_traceback()
            self.fail(f"no step has ended for {max(hung_s):.0f} s")
        self._hung_before = bool(hung_s)

    async def _ping(self) -> None:
        """Do nothing: the reply is the answer."""

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._threads, work)

    # ---- loading

    def _start(self, make_loader: Callable[[], Loader], levels: Mapping[str, int]) -> None:
        logging.getLogger().handlers = [_ServerHandler(self)]
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        self._loader = make_loader()

    async def _load(self, spec: ModelSpec) -> LoadedFacts:
        factories = Factories(engine=partial(ReportingEngine, outlet=self._post_step), template=_no_template)
        load = Load(spec, self._loader, factories, partial(self.notify, "progress"), lambda: not self.busy)
        self.model = model = await load.loaded(Fit(spec), self.in_thread)
        generator, embedder, reader = model.generator, model.embedding, model.media
        facts = LoadedFacts(model.info, dict(model.weights.footprint()))
        if isinstance(generator, ReportingEngine):
            self._engines["generator"] = self._generator = generator
            facts.generator = generator.bounds, generator.n_slots_each, generator.adapters
        if isinstance(embedder, EmbeddingEngine):
            self._engines["embedder"] = embedder
            facts.embedder = embedder.info, embedder.n_slots, embedder.takes_media
        if reader is not None:
            self._reader = reader
            facts.reader = reader.kinds, reader.marker, reader.sample_rate, reader.fingerprint
        gc.freeze()  # the model lives as long as the process, and full collections of it would delay steps
        return facts

    @property
    def busy(self) -> bool:
        return bool(self.requests) or (self.model is not None and self.model.busy)

    # ---- requests

    def _receive(self, number: int, body: bytes, has_grammar: bool) -> None:
        """Submit a request. One with a grammar is decoded in a thread, because the grammar may have to be compiled."""
        self.requests[number] = None
        decode = Decoder([body], self._local_object).load
        if has_grammar:
            decoding = self._loop.run_in_executor(self._grammars, decode)
            decoding.add_done_callback(lambda done: self._submit(number, done.result))
        else:
            self._submit(number, decode)

    def _submit(self, number: int, decoded: Callable[[], Request]) -> None:
        """Submit a request to the engine, unless it was cancelled; an error becomes its last event.

        A thread prepares a sampler that takes long first.
        """
        try:
            request = decoded()
            if number in self.requests and self._generator.needs_preparation(request.sampling):
                preparing = self._loop.run_in_executor(self._samplers, self._prepared, request)
                preparing.add_done_callback(lambda done: self._submit(number, done.result))
            elif number in self.requests:
                self.requests[number] = ticket = self._generator.submit(request, partial(self._end, number))
                if ticket.ended:  # its last event was sent before this assignment
                    self.requests.pop(number, None)
                self._send_status_when_idle()
        except Exception as error:  # noqa: BLE001 - fails only this request
            if number in self.requests:
                self._end(number, [Failed(portable(error))])

    def _prepared(self, request: Request) -> Request:
        self._generator.prepare_sampler(request.sampling)
        return request

    def _end(self, number: int, events: list[Event]) -> None:
        """Send the last event of a request if no step sends it."""
        self.requests.pop(number, None)
        self._send_with_status([(number, events)], over=True)

    def _cancel(self, number: int) -> None:
        if (ticket := self.requests.pop(number, None)) is not None:
            self._generator.cancel(ticket)

    def _end_reasoning(self, number: int) -> None:
        if (ticket := self.requests.get(number)) is not None:
            if isinstance(ticket.request.constraint, ReasoningEnd):
                ticket.request.constraint.switch.end()
        elif number in self.requests:  # otherwise it has ended
            self._loop.call_later(STATUS_INTERVAL_S, self._end_reasoning, number)

    def _send_status_when_idle(self) -> None:
        if self._status_when_idle is None or self._status_when_idle.done():
            self._status_when_idle = self._loop.create_task(self._wait_idle())

    async def _wait_idle(self) -> None:
        for engine in self._engines.values():
            while engine.busy:
                await engine.wait_idle()
        self._send_status()

    # ---- events and status

    def _post_step(self, batch: list[tuple[Ticket, list[Event]]], over: bool) -> None:
        """Send a step's events; `over`: a request has ended. Runs in the step thread, because another thread would cost
        more, so steps wait while the server does not read.
        """
        sent = []
        for ticket, events in batch:
            number = cast("partial[None]", ticket.sink).args[0]
            sent.append((number, events))
            if ticket.ended:
                self.requests.pop(number, None)
        self._send_with_status(sent, over=over)

    def _send_with_status(self, batch: list[tuple[int, list[Event]]], *, over: bool) -> None:
        """Send events by request number, preceded by the status if a request has ended. Thread-safe."""
        if over or time.monotonic() - self._status_at > STATUS_INTERVAL_S:
            self._send_status()
        self.send_events(batch)

    def _send_status(self) -> None:
        """Send the engines' status. A lock ensures that no older status is sent after a newer one. Thread-safe."""
        with self._status_lock:
            self._status_at = time.monotonic()
            self.notify_now("status", *map(self._status, self._engines.values()))

    def _status(self, engine: ReportingEngine | EmbeddingEngine) -> EngineStatus:
        """Return the status of an engine. Thread-safe."""
        slots = engine.slots()
        requests = tuple("" if slot.request is None else slot.request.id for slot in slots)
        without_requests = tuple(replace(slot, request=None) for slot in slots)
        return EngineStatus(engine.busy, engine.stats, without_requests, requests)

    def _watch(self, wanted: bool) -> None:
        engine = self._generator
        engine.watch(wanted=wanted)
        if wanted:
            self.notify("views", engine.views(), engine.ended(), engine.cached_states())

    # ---- other calls

    def _prepare(self, engine: str, starts: bool) -> None:
        if starts:
            self._preparing[engine].enter_context(self._engines[engine].preparing())
        else:
            self._preparing[engine].close()

    async def _close(self, engine: str, drain_s: float) -> None:
        await self._engines[engine].close(drain_s)
        self._send_status()

    async def _embed(self, inputs: Sequence[Sequence[int] | MediaPrompt]) -> list[tuple[tuple[int, ...], bytes]]:
        """Return the shape and the data of each input's vectors."""
        try:
            vectors = await cast(EmbeddingEngine, self._engines["embedder"]).submit(inputs)
        finally:
            self._send_status_when_idle()
        return [(each.shape, each.tobytes()) for each in vectors]

    async def _tokenize(
        self, parts: Sequence[str | Bitmap], add_special: bool, parse_special: bool
    ) -> tuple[list[int], list[tuple[MediaSpan, int, bytes, bool]]]:
        """Return the prompt's tokens, and for each medium its span, and its chunk's number, key and causality."""
        prompt = await self.in_thread(
            partial(self._reader.tokenize, parts, add_special=add_special, parse_special=parse_special)
        )
        spans: list[tuple[MediaSpan, int, bytes, bool]] = []
        for span in prompt.spans:
            assert span.chunk is not None
            spans.append((span.kept, self._chunks.add(span.chunk), span.chunk.key, span.chunk.causal))
        return prompt.tokens, spans

    async def _count(self, parts: Sequence[str | Bitmap], add_special: bool, parse_special: bool) -> int:
        count = partial(self._reader.count, parts, add_special=add_special, parse_special=parse_special)
        return await self.in_thread(count)

    def _set_adapter_scales(self, scales: Adapters) -> None:
        """Set the scales of loaded adapters. The server may not know yet that one was unloaded."""
        loaded = {adapter.id for adapter in self._generator.adapters}
        self._generator.set_adapter_scales(tuple(each for each in scales if each[0] in loaded))


def load_activity() -> tuple[int, ...]:
    """Return numbers that grow while a load advances, however slowly: page faults, blocks read, and whole seconds of
    the CPU time of other threads. A thread that only polls a condition uses a thousandth of that.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_majflt, used.ru_inblock, int(time.process_time() - time.thread_time())


def _no_template(_info: ModelInfo, _spec: ModelSpec) -> ChatTemplate:
    """Return an empty template, because the server renders prompts."""
    return ChatTemplate("", bos_token="", eos_token="")


class _ServerHandler(logging.Handler):
    """Sends log records to the server."""

    def __init__(self, server: Connection) -> None:
        super().__init__()
        self._server = server

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        fields = {key: value for key, value in vars(record).items() if isinstance(value, str | int | float)}
        with contextlib.suppress(RuntimeError):
            self._server.notify("log", fields | {"msg": record.getMessage()})
