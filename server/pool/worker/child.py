"""The worker process of one model: loads it, runs its engines, and answers the server. It ends with the socket."""

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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from server.engine.embedding import EmbeddingEngine
from server.engine.engine import Engine
from server.engine.kv.state import SlotState
from server.engine.media import MediaPrompt, MediaSpan
from server.engine.prefix.blocks import BlockReport
from server.engine.request import Adapters, Event, Failed, Request
from server.engine.sequence import Ticket
from server.errors import CONTAINED
from server.media.bitmap import Bitmap
from server.pool.footprint import Fit, Memory
from server.pool.load.assembly import Factories, assemble
from server.pool.load.loading import Load
from server.pool.model import LoadedModel
from server.pool.protocols import Loader, ModelInfo
from server.pool.spec import ModelSpec
from server.pool.worker import answers, codec
from server.pool.worker.channel import Channel, FrameKind, frame
from server.pool.worker.facts import EmbedderFacts, EngineStatus, GeneratorFacts, LoadedFacts, ReaderFacts
from server.pool.worker.long import beside
from server.pool.worker.remote_media import RemoteBitmap
from server.structured.grammar.matcher import Recipe
from server.structured.reasoning_end import ReasoningSwitch
from server.templates.template import ChatTemplate

AT_WORK_S, AT_REST_S = 0.5, 2.0
"""How often it says that it lives, and what it does."""
SOON_S = 0.05
SEND_BYTES = 4 << 20
VIEWS_S = 0.35
FAILED = 70
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "500"  # of 1000: rather this process than the server
log = logging.getLogger(__name__)


def main(asks: int, tells: int, parent: int) -> None:
    """Serve `parent` on inherited sockets: one for commands and answers, one for events of steps."""
    _die_with(parent)
    os.dup2(2, 1)  # what a library prints is no answer of anything
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, chain=True)  # writes where every thread is, then ends the process
    for ours in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ours, signal.SIG_IGN)  # sent to all of a group: the server decides what ends
    try:
        import uvloop
    except ImportError:
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    else:
        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(socket.socket(fileno=asks), socket.socket(fileno=tells)))


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
        except OSError as error:  # a container may forbid it
            log.debug("oom_score_adj: %s", error)
    if os.getppid() != parent:  # it has ended already
        os._exit(0)


async def _serve(asks: socket.socket, tells: socket.socket) -> NoReturn:
    tells.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    process = ModelProcess(tells)
    await asyncio.get_running_loop().create_unix_connection(lambda: process.channel, sock=asks)
    await process.live()


class ModelProcess:
    """The worker's main object, used on the event loop unless stated otherwise."""

    def __init__(self, tells: socket.socket) -> None:
        self._tells = tells
        self._loop = asyncio.get_running_loop()
        self.channel = Channel(self._received, _exit)
        self._threads = ThreadPoolExecutor(8, "model")
        self._grammars = ThreadPoolExecutor(1, "grammar")
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._wanted: dict[int, asyncio.Future[bytes]] = {}
        self._n_wanted = 0
        self._loader: Loader | None = None
        self._served: _Served | None = None
        self._messages: dict[str, Callable[..., None]] = {
            "hello": self._hello,
            "call": self._call,
            "drop": self._drop,
            "lent": self._lent,
            "read": self._read_beside,
        }
        self._asked: dict[str, Callable[..., Awaitable[object]]] = {
            "fit": self._fit_memory,
            "least": self._least_memory,
            "memory": self._machine_memory,
            "load": self._load,
        }

    async def live(self) -> NoReturn:
        """Send a heartbeat periodically."""
        while True:
            served = self._served
            if served is not None:
                served.tell()
                if reason := served.failure:
                    self._fail(f"a step thread has failed: {reason}")
            else:
                self.say("loading", _effort())
            await asyncio.sleep(AT_WORK_S if served is None or served.busy else AT_REST_S)

    def say(self, *message: object) -> None:
        """Send a short message."""
        (body,) = answers.written(message)
        self.channel.send(FrameKind.MESSAGE, bytes(body))

    # ---- messages

    def _received(self, _kind: FrameKind, body: bytes, long: Sequence[bytes]) -> None:
        try:
            word, *rest = codec.MessageDecoder(body, self._here, long).load()
            handle = self._messages.get(word) or (self._served.messages[word] if self._served is not None else None)
            assert handle is not None, f"nothing is loaded that {word} is for"
            handle(*rest)
        except Exception as error:  # the two sides don't understand each other
            log.exception("a message of the server")
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        """Report the reason and end."""
        self.say("failing", reason)
        self._loop.call_later(1.0, _exit, FAILED)

    def _here(self, kind: str, name: Any) -> object:
        assert self._served is not None
        return self._served.here(kind, name)

    def _read_beside(self, number: int, body: bytes) -> None:
        """A request with a grammar, which takes its time to compile."""

        def read() -> tuple[Any, ...]:
            found: tuple[Any, ...] = codec.MessageDecoder(body, self._here).load()
            return found

        def done(reading: "asyncio.Future[tuple[Any, ...]]") -> None:
            assert self._served is not None
            error = reading.exception()
            if error is None:
                self._served.was_read(*reading.result())
            else:
                self._served.refused(number, error)

        assert self._served is not None
        self._served.expect(number)
        self._loop.run_in_executor(self._grammars, read).add_done_callback(done)

    def _hello(self, make_loader: Callable[[], Loader], levels: Mapping[str, int]) -> None:
        logging.getLogger().handlers = [_ToServer(self)]
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        self._loader = make_loader()

    def _call(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        self._calls[number] = task = self._loop.create_task(self._answer(number, name, arguments))
        task.add_done_callback(lambda _: self._calls.pop(number))

    async def _answer(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            asked = self._asked.get(name) or (self._served.asked[name] if self._served is not None else None)
            assert asked is not None, f"nothing is loaded that {name} is for"
            message: tuple[object, ...] = ("answer", number, await asked(*arguments))
        except asyncio.CancelledError:
            return
        except BaseException as error:
            if not isinstance(error, CONTAINED):
                log.exception("%s failed", name)
            message = ("error", number, answers.written_error(error))
        await self.channel.send_long(*answers.written(message))

    def _drop(self, number: int) -> None:
        if number in self._calls:
            self._calls[number].cancel()

    # ---- media that the server has decoded before

    def borrowed(self, bitmap: Bitmap, number: int) -> Bitmap:
        """Return the handle of a remote bitmap. Thread-safe."""
        return replace(bitmap, again=RemoteBitmap(number, self._lent_data, self._give_back))

    def _lent_data(self, number: int) -> bytes:
        data: bytes = asyncio.run_coroutine_threadsafe(self._want(number), self._loop).result()
        return data

    async def _want(self, number: int) -> bytes:
        self._n_wanted += 1
        asked = self._n_wanted
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._wanted[asked] = answer
        self.say("wants", asked, number)
        return await answer

    def _lent(self, asked: int, found: bytes | answers.Plain) -> None:
        answer = self._wanted.pop(asked)
        if isinstance(found, bytes):
            answer.set_result(found)
        else:
            answer.set_exception(answers.read_error(found))

    def _give_back(self, number: int) -> None:
        with contextlib.suppress(RuntimeError):  # the process ends
            self._loop.call_soon_threadsafe(self.say, "gives back", number)

    # ---- loading

    async def _fit_memory(self, spec: ModelSpec, granted: Mapping[str, int]) -> Fit:
        loader = self._loader
        assert loader is not None
        found: Fit = await self.in_thread(lambda: loader.fit(spec, granted))
        return found

    async def _least_memory(self, spec: ModelSpec) -> Fit:
        loader = self._loader
        assert loader is not None
        return Fit(spec, await self.in_thread(lambda: loader.least(spec)))

    async def _machine_memory(self) -> dict[str, Memory]:
        loader = self._loader
        assert loader is not None
        return dict(await self.in_thread(loader.memory))

    async def _load(self, spec: ModelSpec, fit: Fit, prepares: bool) -> LoadedFacts:
        assert self._loader is not None
        load = Load(
            *(spec, self._loader, _no_template, self._progressed),
            *(self._loop.time, Factories().grammar, lambda: prepares),
        )
        load.take(fit)
        parts = await self.in_thread(load.run)
        out = _Out(self._tells, self._loop)
        factories = Factories(engine=partial(Engine, outlet=out.post), template=_no_template)
        model = await assemble(load, parts, factories, self.in_thread)
        self._served = _Served(self, model, out)
        gc.freeze()  # it lives as long as the process: full passes over it would hold up steps
        return self._served.facts()

    def _progressed(self, value: float) -> None:
        """In the thread that loads."""
        self._loop.call_soon_threadsafe(self.say, "progress", value)

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        """Run blocking work in a thread."""
        return await self._loop.run_in_executor(self._threads, work)


@dataclass(frozen=True, slots=True)
class _Sink:
    """Of a request: what has no step goes the way that all else goes."""

    number: int
    out: "_Out"

    def __call__(self, events: list[Event]) -> None:
        self.out.send([(self.number, events)], over=True)


class _Out:
    """What steps say, written to its socket by the thread that steps: that thread has the events, and handing them to
    another one would cost more. Where nobody reads, steps wait. Safe in any thread."""

    def __init__(self, tells: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._tells, self._loop = tells, loop
        self._lock = threading.Lock()
        self.told: Callable[[], tuple[object, ...]] = lambda: ("told", None, None)  # what engines do now
        self.cleans: Callable[[], None] = lambda: None  # called on the loop when something has ended
        self.told_at = 0.0

    def post(self, batch: list[tuple[Ticket, list[Event]]], over: bool) -> None:
        """As `Engine` wants it."""
        self.send([(cast(_Sink, ticket.sink).number, events) for ticket, events in batch], over=over)

    def send(self, batch: list[tuple[int, list[Event]]], *, over: bool) -> None:
        """Events; first the totals, for who sees an end."""
        if over or time.monotonic() - self.told_at > SOON_S:
            self.tell()
        raw = frame(FrameKind.EVENTS, answers.written_events(batch))
        with self._lock:
            self._tells.sendall(raw)
        if over:
            self._loop.call_soon_threadsafe(self.cleans)

    def tell(self) -> None:
        """Send the engines' status."""
        with self._lock:
            self.told_at = time.monotonic()
            (body,) = answers.written(self.told())
            self._tells.sendall(frame(FrameKind.MESSAGE, bytes(body)))


class _Served:
    """The loaded model."""

    def __init__(self, process: ModelProcess, model: LoadedModel, out: _Out) -> None:
        self._out = out
        out.told, out.cleans = self._told, self._clean
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._model = model
        assert model.generator is None or isinstance(model.generator, Engine)
        assert model.embedding is None or isinstance(model.embedding, EmbeddingEngine)
        self._generator, self._embedder = model.generator, model.embedding
        self._tickets: dict[int, Ticket] = {}
        self._awaited: set[int] = set()  # requests that are being read
        self._numbers: dict[int, tuple[int, Request]] = {}  # by the request's identity
        self._n_begun = self._n_jobs = 0
        self._resting: asyncio.Task[None] | None = None
        self._views: asyncio.Task[None] | None = None
        self._preparing: dict[str, Any] = {}
        self._chunks = codec.KeptMedia()
        self._switches: dict[int, ReasoningSwitch] = {}
        self.messages: dict[str, Callable[..., None]] = {
            "submit": self.submit,
            "cancel": self._cancel,
            "preparing": self._prepare,
            "adapters": self._set_adapters,
            "ram": self._limit_ram,
            "watch": self._watch,
            "forget": self._chunks.forget,
            "switch": self._end_thoughts,
        }
        self.asked: dict[str, Callable[..., Awaitable[object]]] = {
            "save": self._save,
            "restore": self._restore,
            "erase": self._erase,
            "blocks": self._block_changes,
            "embed": self._embed,
            "tokenize": self._tokenize,
            "count": self._count,
            "close": self._close,
        }

    def facts(self) -> LoadedFacts:
        """For the other side."""
        generator, embedder, reader = self._generator, self._embedder, self._model.media
        generates = embeds = reads = None
        if generator is not None:
            generates = GeneratorFacts(generator.bounds, generator.n_slots_each, generator.adapters)
        if embedder is not None:
            embeds = EmbedderFacts(embedder.info, embedder.n_slots, embedder.takes_media)
        if reader is not None:
            reads = ReaderFacts(reader.kinds, reader.marker, reader.sample_rate, reader.fingerprint)
        return LoadedFacts(self._model.info, dict(self._model.weights.footprint()), generates, embeds, reads)

    def here(self, kind: str, name: Any) -> object:
        """Resolve a persistent id to the local object. Thread-safe."""
        match kind:
            case "vocab":
                return self._model.vocab
            case "constraint":
                return self._model.grammar.made_anew(Recipe(*name))
            case "chunk":
                return self._chunks[name]
            case "bitmap":
                return self._process.borrowed(*name)
            case "switch":
                return self._switches.setdefault(name, ReasoningSwitch())
        raise AssertionError(kind)

    # ---- requests

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return self._model.busy or bool(self._awaited)

    @property
    def failure(self) -> str:
        """Why one of its instances no longer steps."""
        return self._model.failure

    def expect(self, number: int) -> None:
        """A request is being read."""
        self._awaited.add(number)

    def was_read(self, number: int, request: Request) -> None:
        """It is there; perhaps nobody wants it any more."""
        if number in self._awaited:
            self.submit(number, request)
        else:
            self._switches.pop(number, None)

    def refused(self, number: int, error: BaseException) -> None:
        """It can't be read, or is not wanted any more."""
        self._switches.pop(number, None)
        if number in self._awaited:
            self._awaited.discard(number)
            self._n_begun += 1
            self._out.send([(number, [Failed(answers.read_error(answers.written_error(error)))])], over=True)

    def submit(self, number: int, request: Request) -> None:
        """A request that was checked; what is wrong with it here is its last event."""
        assert self._generator is not None
        self._awaited.discard(number)
        self._n_begun += 1
        self._numbers[id(request)] = number, request
        try:
            self._tickets[number] = self._generator.submit(request, _Sink(number, self._out))
        except CONTAINED as error:
            self._switches.pop(number, None)
            self._out.send([(number, [Failed(error)])], over=True)
            return
        self._tell_at_rest()

    def _cancel(self, number: int) -> None:
        assert self._generator is not None
        ticket = self._tickets.pop(number, None)
        self._switches.pop(number, None)
        if ticket is not None:
            self._generator.cancel(ticket)
        elif number in self._awaited:
            self.refused(number, asyncio.CancelledError())

    def _end_thoughts(self, number: int) -> None:
        """Of a request that may be read yet, or may have ended."""
        if number in self._tickets or number in self._awaited:
            self._switches.setdefault(number, ReasoningSwitch()).end()

    def _clean(self) -> None:
        """Something has ended."""
        assert self._generator is not None
        for number in [number for number, ticket in self._tickets.items() if ticket.n_open <= 0]:
            del self._tickets[number]
            self._switches.pop(number, None)
        if len(self._numbers) > 4 * (self._generator.n_slots + len(self._tickets)):
            kept = {id(slot.request) for slot in self._generator.slots()}
            kept |= {id(ticket.request) for ticket in self._tickets.values()}
            self._numbers = {key: found for key, found in self._numbers.items() if key in kept}

    def _tell_at_rest(self) -> None:
        if self._resting is None or self._resting.done():
            self._resting = self._loop.create_task(self._rest())

    async def _rest(self) -> None:
        for engine in (self._generator, self._embedder):
            while engine is not None and engine.busy:
                await engine.wait_idle()
        self.tell()

    # ---- telling

    def tell(self) -> None:
        """Send the status of both engines."""
        self._out.tell()

    def _told(self) -> tuple[object, ...]:
        """In any thread."""
        generator, embedder = self._generator, self._embedder
        told: list[EngineStatus | None] = [None, None]
        if generator is not None:
            slots = generator.slots()
            shown = tuple(self._numbers.get(id(slot.request), (-1,))[0] for slot in slots)
            bare = tuple(replace(slot, request=None) for slot in slots)
            busy = generator.busy or bool(self._awaited)
            told[0] = EngineStatus(self._n_begun, busy, generator.heartbeats, generator.stats, bare, shown)
        if embedder is not None:
            inputs = tuple(embedder.slots())
            none = (-1,) * len(inputs)
            told[1] = EngineStatus(self._n_jobs, embedder.busy, embedder.heartbeats, embedder.stats, inputs, none)
        return ("told", *told)

    def _watch(self, wanted: bool) -> None:
        assert self._generator is not None
        self._generator.watch(wanted=wanted)
        if wanted and self._views is None:
            self._views = self._loop.create_task(self._show(self._generator))
        elif not wanted and self._views is not None:
            self._views.cancel()
            self._views = None

    async def _show(self, engine: Engine) -> None:
        while True:
            told = ("views", engine.views(), engine.ended(), engine.cached_states())
            await self._process.channel.send_long(*answers.written(told))
            await asyncio.sleep(VIEWS_S)

    # ---- other messages

    def _prepare(self, which: str, begins: bool) -> None:
        engine = self._generator if which == "generator" else self._embedder
        assert engine is not None
        if begins:
            self._preparing[which] = context = engine.preparing()
            context.__enter__()
        elif which in self._preparing:
            self._preparing.pop(which).__exit__(None, None, None)

    def _set_adapters(self, scales: Adapters) -> None:
        assert self._generator is not None
        self._generator.set_adapter_scales(scales)

    def _limit_ram(self, n_bytes: int) -> None:
        assert self._generator is not None
        self._generator.limit_caches(n_bytes)

    # ---- calls

    async def _block_changes(self) -> BlockReport:
        assert self._generator is not None
        return await self._generator.block_changes()

    async def _save(self, id_slot: int, owner: str) -> SlotState:
        assert self._generator is not None
        return await self._generator.save_slot(id_slot, owner)

    async def _restore(self, id_slot: int, saved: SlotState) -> None:
        assert self._generator is not None
        await self._generator.restore_slot(id_slot, saved)

    async def _erase(self, id_slot: int, owner: str) -> int:
        assert self._generator is not None
        return await self._generator.erase_slot(id_slot, owner)

    async def _embed(self, inputs: Sequence[Sequence[int] | MediaPrompt]) -> list[tuple[tuple[int, ...], object]]:
        assert self._embedder is not None
        self._n_jobs += 1
        try:
            vectors = await self._embedder.submit(inputs)
        finally:
            self._tell_at_rest()
        return [(each.shape, beside(each.tobytes())) for each in vectors]

    async def _tokenize(
        self, parts: Sequence[str | Bitmap], add_special: bool, parse_special: bool
    ) -> tuple[list[int], list[tuple[MediaSpan, int, bytes, bool]]]:
        """The prompt; of each medium what it is, and the number that its chunk has here, its key and its causality."""
        reader = self._model.media
        assert reader is not None
        tokenize = partial(reader.tokenize, parts, add_special=add_special, parse_special=parse_special)
        prompt: MediaPrompt = await self._process.in_thread(tokenize)
        spans: list[tuple[MediaSpan, int, bytes, bool]] = []
        for span in prompt.spans:
            assert span.chunk is not None
            spans.append((span.kept, self._chunks.add(span.chunk), span.chunk.key, span.chunk.causal))
        return prompt.tokens, spans

    async def _count(self, parts: Sequence[str | Bitmap], add_special: bool, parse_special: bool) -> int:
        reader = self._model.media
        assert reader is not None
        count = partial(reader.count, parts, add_special=add_special, parse_special=parse_special)
        n: int = await self._process.in_thread(count)
        return n

    async def _close(self, which: str, drain_s: float) -> None:
        engine = self._generator if which == "generator" else self._embedder
        assert engine is not None
        await engine.close(drain_s)
        self.tell()


def _effort() -> tuple[int, ...]:
    """What grows while a load goes on, however slowly: what was read from a disk, and whole seconds that threads other
    than this one have computed (a thread that looks now and then whether it may go on takes a thousandth of that)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_majflt, used.ru_inblock, int(time.process_time() - time.thread_time())


def _no_template(_info: ModelInfo, _spec: ModelSpec) -> ChatTemplate:
    """Prompts are made on the other side."""
    return ChatTemplate("", bos_token="", eos_token="")


def _exit(status: int = 0) -> None:
    os._exit(status)


class _ToServer(logging.Handler):
    """Sends records to where the log is written."""

    def __init__(self, process: ModelProcess) -> None:
        super().__init__()
        self._process, self._loop = process, asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """In any thread."""
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        extra = {key: value for key, value in vars(record).items() if isinstance(value, str | int | float)}
        message = ("log", extra | {"msg": record.getMessage()})
        self._loop.call_soon_threadsafe(self._process.say, *message)
