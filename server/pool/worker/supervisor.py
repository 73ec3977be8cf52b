"""The server's side of one worker process: starts it, sends requests, detects its end, and restarts it."""

import asyncio
import contextlib
import logging
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from server.engine.request import Event, Request
from server.errors import (
    CONTAINED,
    InternalError,
    LlamapoolError,
    ModelEnded,
    ModelFailed,
    ModelRestarting,
    Unavailable,
)
from server.pool.footprint import Fit, Footprint, Memory
from server.pool.protocols import Loader
from server.pool.spec import ModelSpec
from server.pool.worker import answers, codec
from server.pool.worker.channel import Channel, FrameKind
from server.pool.worker.environment import child_environment
from server.pool.worker.facts import EngineStatus, LoadedFacts
from server.pool.worker.long import Pieces, beside
from server.pool.worker.remote_media import MediaHandles
from server.structured.reasoning_end import ReasoningSwitch
from server.vocab import Vocab

END_S = 5.0
"""For a process to end whose socket is closed, or that was killed."""
HEALTHY_S = 60.0
"""A process that lived this long did not fail at its start."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
N_FIRST_LOADS = 3
"""Attempts at a first load whose process ends: distinguishes a file that aborts the library from a kill."""
PATIENCE_S = 5.0
"""A request during a restart waits if the next start is at most this far away; otherwise it gets an error."""
STACKS_S = 2.0
"""For a process to write where its threads are, and to end by that; one that is stopped does neither."""
SILENT_S = 10.0
"""The least silence of a process that counts as its end; it speaks every two seconds."""
STUCK_S = 60.0
"""The least time in which a load gets no further that counts as its end: a slow disk may take as long to begin."""
_BOOT = (
    "import sys; sys.path[:] = sys.argv[4:]; from server.pool.worker.child import main; main(*map(int, sys.argv[1:4]))"
)
_LOGGERS = ("server", "llamapool")
log = logging.getLogger(__name__)


class EngineProxy(Protocol):
    """An engine's half in this process."""

    def told(self, told: EngineStatus) -> None:
        """Receive the status of the worker's engine."""

    def lost(self, reason: str) -> None:
        """The process is gone; it is started again."""

    def begins(self) -> None:
        """It is there again."""


class GeneratorProxy(EngineProxy, Protocol):
    """That of the engine that generates."""

    def gave_up(self, error: LlamapoolError) -> None:
        """It could not be started; it is tried again later."""

    def events(self, batch: Mapping[int, list[Event]]) -> None:
        """Receive events of steps, by request."""


@dataclass(eq=False)
class Child:
    """One process. Used on the event loop, in the thread that started it: the system ends it with that thread."""

    name: str
    received: Callable[["Child", bytes, Sequence[bytes]], None]
    said: Callable[["Child", Sequence[bytes]], None]  # by steps
    over: Callable[["Child", str], None]  # it has ended
    vocab: Vocab | None = None
    place: Path | str | None = None  # of its prompt states
    calls: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    reason: str = ""  # why it is to end
    heard_at: float = field(default_factory=time.monotonic)
    moved_at: float = field(default_factory=time.monotonic)  # when it was last seen to get on with what was asked
    lent: MediaHandles = field(default_factory=MediaHandles)

    def __post_init__(self) -> None:
        """Start it."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.channel = Channel(self._heard, self._lost)
        self._events = Channel(self._heard, self._lost)
        self._frames: list[bytes] = []
        self._effort: object = None
        self._n_lost = 0
        self._numbers = count(1)
        pairs = [socket.socketpair(), socket.socketpair()]
        self._ours = [ours for ours, _ in pairs]
        self._connected = asyncio.Event()  # or it can't be
        with pairs[0][1] as asks, pairs[1][1] as tells:
            theirs = asks.fileno(), tells.fileno()
            given = (*map(str, (*theirs, os.getpid())), *map(os.path.abspath, sys.path))
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, these arguments
                [sys.executable, "-I", "-c", _BOOT, *given],
                stdin=subprocess.DEVNULL,
                env=child_environment(os.environ, self.place),
                pass_fds=theirs,
                start_new_session=True,  # a Ctrl-C is for the server
            )
        self._ending: asyncio.Task[None] | None = None
        self._decoding: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int:
        """The system's number of it."""
        return self._process.pid

    async def connect(self, make_loader: Callable[[], Loader]) -> None:
        """Say what it is to be."""
        loop = asyncio.get_running_loop()
        try:
            for channel, ours in zip((self.channel, self._events), self._ours, strict=True):
                await loop.create_unix_connection(lambda channel=channel: channel, sock=ours)  # type: ignore[misc]
        finally:
            self._connected.set()
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS}
        self.post("hello", make_loader, levels)

    def post(self, *message: object) -> None:
        """Send a message that has no answer."""
        (body,) = self.written(*message)
        self.channel.send(FrameKind.MESSAGE, bytes(body))

    def written(self, *message: object) -> Pieces:
        """As it crosses."""
        return codec.written(message, self.vocab, _no_switch, self.lent.add)

    def submit(self, number: int, request: Request) -> None:
        """A request; one with a grammar is read beside the others there."""

        def numbered(switch: ReasoningSwitch) -> int:
            switch.heard = lambda: self.post("switch", number)
            return number

        if request.constraint is None:
            self.post("submit", number, request)
        else:
            (body,) = codec.written((number, request), self.vocab, numbered, self.lent.add)
            self.post("read", number, body)

    async def call(self, name: str, *arguments: object) -> Any:
        """What it answers. Raises what it raises there, and `ModelEnded` when it ends. Cancelled, it is so there."""
        if self.ended.done():
            raise ModelEnded(f"model '{self.name}': {self.ended.result()}")
        number = next(self._numbers)
        self.calls[number] = answer = asyncio.get_running_loop().create_future()
        self.moved_at = time.monotonic()
        try:
            await self.channel.send_long(*self.written("call", number, name, arguments))
            return await answer
        except asyncio.CancelledError:
            self.post("drop", number)
            raise
        finally:
            self.calls.pop(number, None)

    # ---- what it says

    def _heard(self, kind: FrameKind, body: bytes, long: Sequence[bytes]) -> None:
        self.heard_at = time.monotonic()
        if kind is FrameKind.EVENTS:
            if not self._frames:  # what comes at once is handed on at once
                asyncio.get_running_loop().call_soon(self._hand_on)
            self._frames.append(body)
        else:
            self._understand(lambda: self.received(self, body, long))

    def _hand_on(self) -> None:
        frames, self._frames = self._frames, []
        self._understand(lambda: self.said(self, frames))

    def _understand(self, read: Callable[[], None]) -> None:
        try:
            read()
        except Exception:  # what a model's file has made of it is not to be understood
            log.exception("model '%s': its process said what can't be", self.name)
            self.kill("its process said what can't be")

    def at_work(self, effort: object) -> None:
        """It loads, and has said how much it has done for that."""
        if effort != self._effort:
            self._effort, self.moved_at = effort, time.monotonic()

    def answer(self, number: int, value: object, error: LlamapoolError | None) -> None:
        """A call's result."""
        waiting = self.calls.get(number)
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(value)
        else:
            waiting.set_exception(error)

    def wants(self, asked: int, number: int) -> None:
        """The process asks for what it was lent."""
        task = asyncio.get_running_loop().create_task(self._send_lent(asked, number))
        self._decoding.add(task)
        task.add_done_callback(self._decoding.discard)

    async def _send_lent(self, asked: int, number: int) -> None:
        found: object
        try:
            found = beside(await asyncio.to_thread(self.lent[number].decoded))
        except Exception as error:  # without an answer, who asked would wait for ever
            if not isinstance(error, CONTAINED):
                log.exception("model '%s': what was lent can't be had; this is a bug, please report it", self.name)
            found = answers.written_error(error)
        await self.channel.send_long(*self.written("lent", asked, found))

    # ---- the end

    def kill(self, reason: str, *, stacks: bool = False) -> None:
        """End it, whatever it does; with `stacks` it writes to the log before where its threads are."""
        first, self.reason = not self.reason, self.reason or reason
        if not stacks:
            self._process.kill()
        elif first:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR1)
            asyncio.get_running_loop().call_later(STACKS_S, self._process.kill)

    def _lost(self) -> None:
        """Of both sockets: the second one may still hold what steps have said."""
        self._n_lost += 1
        if self._n_lost > 1:
            self._end_soon()
        else:
            asyncio.get_running_loop().call_later(END_S, self._end_soon)

    def _end_soon(self) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        try:
            status = await asyncio.to_thread(self._process.wait, END_S)
        except subprocess.TimeoutExpired:
            self.kill("its process closed its socket and did not end")
            status = await asyncio.to_thread(self._process.wait)
        reason = self.reason or ended_by(status)
        self.ended.set_result(reason)
        self.over(self, reason)  # before who waits for an answer hears of it
        for waiting in self.calls.values():
            if not waiting.done():
                waiting.set_exception(ModelEnded(f"model '{self.name}': {reason}"))

    async def close(self) -> None:
        """Let it end by itself; returns when it has."""
        await self._connected.wait()
        self.channel.close()
        self._events.close()
        if not (self.channel.connected and self._events.connected):  # nobody would hear of its end
            self.kill("it is not wanted any more")
            self._end_soon()
        await asyncio.shield(self.ended)


def ended_by(status: int) -> str:
    """A process' end in words."""
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    why = " (out of memory, or killed from outside)" if status == -signal.SIGKILL else ""
    return f"its process was ended by {name}{why}"


class WorkerSupervisor:
    """Supervises a model's worker process and its successors. Used on the event loop unless stated otherwise.

    ``generator`` and ``embedder`` are proxies of its engines; ``vocab`` is available after the first load.
    """

    def __init__(
        self,
        name: str,
        make_loader: Callable[[], Loader],
        loop: asyncio.AbstractEventLoop,
        place: Path | str | None = None,
    ) -> None:
        """`place`: where the model keeps prompt states; its process gets the variables that this store needs."""
        self.name, self.loop, self._place = name, loop, place
        self.vocab: Vocab | None = None
        self.generator: GeneratorProxy | None = None
        self.embedder: EngineProxy | None = None
        self.facts: LoadedFacts | None = None
        self.down = ""  # why there is no process that serves
        self.pause_s = 0.0  # until the next one is started
        self.n_restarts = 0
        self._settled = asyncio.Event()  # a process serves, or it is known why none could be started
        self._settled.set()
        self._gave_up: LlamapoolError | None = None
        self.shown: Callable[[Any, Any, Any], None] = lambda *_: None  # views
        self._progress: Callable[[float], object] = lambda _: None
        self._make_loader = make_loader
        self._child: Child | None = None
        self._spec: ModelSpec | None = None
        self._fit: Fit | None = None
        self._closing = False
        self._n_short_lives = 0
        self._born_at = 0.0
        self._keeper: asyncio.Task[None] | None = None
        self._n_looks = 0

    @property
    def sides(self) -> Sequence[EngineProxy]:
        """One or two."""
        return [side for side in (self.generator, self.embedder) if side is not None]

    @property
    def up(self) -> bool:
        """Whether a process serves."""
        return self._child is not None and not self.down

    @property
    def pid(self) -> int:
        """Of the process; 0 = none."""
        return 0 if self._child is None else self._child.pid

    def in_thread(self, work: Any) -> Any:
        """The result of a coroutine, for a thread that may block."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def there(self) -> None:
        """Wait while a process is started again. Raises `Unavailable` where that takes long or can't be."""
        self.check_soon()
        await self._settled.wait()
        if self._gave_up is not None:
            raise self._gave_up.with_traceback(None)  # for each who waits: it would grow

    def stop_waiting(self, error: LlamapoolError) -> None:
        """Fail requests that wait for a process with `error`."""
        self._gave_up = error
        self._settled.set()

    def check_soon(self) -> None:
        """Raises `Unavailable` where none is to be started soon."""
        if self.pause_s > PATIENCE_S:
            raise ModelRestarting(self.name, self.down, math.ceil(self.pause_s))

    # ---- loading

    async def _started(self) -> Child:
        if self._child is None:
            self._child = Child(self.name, self._received, self._said, self._over, self.vocab, self._place)
            await self._child.connect(self._make_loader)
        return self._child

    async def measure(self, spec: ModelSpec, granted: Mapping[str, int]) -> Fit:
        """As `Loader.fit`, in a process that then is this model's."""
        found: Fit = _checked(Fit, await self._answered("fit", spec, dict(granted)))
        return found

    async def measure_least(self, spec: ModelSpec) -> Footprint:
        """As `Loader.least`, in that process."""
        found: Fit = _checked(Fit, await self._answered("least", spec, n_times=1))  # its load says what is wrong
        return found.footprint

    async def memory(self) -> Mapping[str, Memory]:
        """As `Loader.memory`, in the process. Raises `ModelFailed`."""
        found = _checked(dict, await self._answered("memory", n_times=1))
        return {str(name): _checked(Memory, memory) for name, memory in found.items()}

    async def _answered(self, *call: Any, n_times: int = N_FIRST_LOADS) -> Any:
        """Return the process's answer before it serves; if it ends, ask the next one. Raises `ModelFailed`."""
        for n in range(1, n_times + 1):
            if self._closing:
                break
            child = await self._started()
            try:
                return await child.call(*call)
            except ModelEnded as error:
                if self._closing or n == n_times:
                    raise self._not_loaded(error) from None
                pause_s = _pause_s(n)
                log.error("%s; it is loaded again in %g s", error.message, pause_s)
            except Unavailable as error:
                raise self._not_loaded(error) from None
            await asyncio.sleep(pause_s)
            self._child = None
        raise ModelFailed(self.name, "its load was stopped")

    async def load(
        self, spec: ModelSpec, fit: Fit, progress: Callable[[float], object], *, prepares: bool
    ) -> LoadedFacts:
        """Load in a process. Raises `ModelFailed`, also where the process ends."""
        self._spec, self._fit = spec, fit
        self._progress = progress
        self.facts = _checked(LoadedFacts, await self._answered("load", spec, fit, prepares))
        self._born_at = time.monotonic()
        self._keeper = self.loop.create_task(self._keep(await self._started()))
        return self.facts

    def _not_loaded(self, error: Unavailable) -> ModelFailed:
        if isinstance(error, ModelFailed):
            return error
        return ModelFailed(self.name, error.message.removeprefix(f"model '{self.name}': "))

    def abandon(self) -> None:
        """A load is not wanted any more. In any thread."""
        self.loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        self._closing = True
        if self._child is not None:
            self._child.kill("its load was stopped")

    async def abandoned(self) -> None:
        """Returns when no process is left of a load that was abandoned."""
        if self._child is not None:
            await self._child.close()

    # ---- asking

    def post(self, *message: object) -> None:
        """Send a message without an answer, if there is a process."""
        if self._child is not None and self.up:
            self._child.post(*message)

    def post_soon(self, *message: object) -> None:
        """As `post`, from any thread, also after the event loop has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.post, *message)

    def submit(self, number: int, request: Request) -> None:
        """As `Child.submit`, if there is one."""
        if self._child is not None and self.up:
            self._child.submit(number, request)

    async def call(self, name: str, *arguments: object) -> Any:
        """As `Child.call`. Raises `ModelEnded` while there is none."""
        if self._child is None or not self.up:
            raise ModelEnded(f"model '{self.name}' is being loaded again: {self.down}")
        return await self._child.call(name, *arguments)

    # ---- hearing

    def _said(self, child: Child, frames: Sequence[bytes]) -> None:
        if self.generator is not None and child is self._child:
            self.generator.events(answers.read_events(frames))

    def _received(self, child: Child, body: bytes, long: Sequence[bytes]) -> None:
        word, *rest = answers.read(body, long)
        match word:
            case "answer":
                child.answer(rest[0], rest[1], None)
            case "error":
                child.answer(rest[0], None, answers.read_error(rest[1]))
            case "told" if child is self._child:
                for side, told in zip((self.generator, self.embedder), rest, strict=True):
                    if side is not None and told is not None:
                        side.told(_checked(EngineStatus, told))
            case "wants":
                child.wants(int(rest[0]), int(rest[1]))
            case "gives back":
                child.lent.given_back(rest[0])
            case "progress":
                child.moved_at = time.monotonic()
                self._progress(float(rest[0]))
            case "views":
                self.shown(*rest)
            case "log":
                _log(rest[0])
            case "failing":
                child.kill(str(rest[0]))
            case "loading":
                child.at_work(rest[0])
            case "told":
                pass
            case _:
                raise InternalError(f"what is {word!r}?")

    def check_progress(self, limit_s: float) -> None:
        """Kill a process that is silent or whose load makes no progress. Called periodically."""
        child = self._child
        if child is None or child.reason or child.ended.done():
            return
        loads = self._keeper is None or bool(self.down)
        still_s = time.monotonic() - (child.moved_at if loads else child.heard_at)
        self._n_looks = self._n_looks + 1 if still_s > max(limit_s, STUCK_S if loads else SILENT_S) else 0
        if self._n_looks > 1:  # what it said is read between two looks, if this process was the one that stood still
            self.kill(
                f"its load has not gone on for {still_s:.0f} s" if loads else f"it has said nothing for {still_s:.0f} s"
            )

    def kill(self, reason: str) -> None:
        """End the process: it is started again."""
        if self._child is not None and not self._child.reason:  # else it is on its way
            log.critical("model '%s' is killed: %s", self.name, reason)
            self._child.kill(reason, stacks=True)

    # ---- its life

    async def _keep(self, child: Child) -> None:
        while not self._closing:
            reason = await asyncio.shield(child.ended)
            if self._closing:
                return
            child = await self._again(reason)

    def _over(self, child: Child, reason: str) -> None:
        if child is self._child and self._keeper is not None and not (self._closing or self.down):
            self.down = reason
            self._settled.clear()
            self._gave_up = None
            for side in self.sides:
                side.lost(reason)

    async def _again(self, reason: str) -> Child:
        lived_s = time.monotonic() - self._born_at
        self._n_short_lives = 0 if lived_s >= HEALTHY_S else self._n_short_lives
        while True:
            pause_s = _pause_s(self._n_short_lives)
            self._n_short_lives += 1
            self.down = self._named(reason)
            self.pause_s = pause_s
            log.error("model '%s': %s; it is loaded again in %g s", self.name, reason, pause_s)
            await asyncio.sleep(pause_s)
            self.pause_s = 0.0
            self._child = None
            try:
                return await self._born_again()
            except LlamapoolError as error:
                reason = error.reason if isinstance(error, ModelFailed) else error.message
                failed = ModelFailed(self.name, self._named(reason))
            except (OSError, pickle.UnpicklingError) as error:
                failed = ModelFailed(self.name, f"its process: {error}")
            self.stop_waiting(failed)
            if self.generator is not None:
                self.generator.gave_up(failed)

    def _named(self, reason: str) -> str:
        return reason if self._spec is None else self._spec.by_name(reason)

    async def _born_again(self) -> Child:
        assert self._spec is not None
        assert self._fit is not None
        child = await self._started()
        try:
            facts = _checked(LoadedFacts, await child.call("load", self._spec, self._fit, True))
            if self.facts is not None and not facts.is_as(self.facts):
                raise ModelFailed(self.name, "its files have changed; unload it to have it loaded anew")
        except BaseException:
            child.kill("it could not be loaded")
            raise
        self.n_restarts += 1
        self._born_at = time.monotonic()
        self.down = ""
        self._gave_up = None
        self._settled.set()
        log.warning("model '%s' is loaded again", self.name)
        for side in self.sides:
            side.begins()
        return child

    async def close(self) -> None:
        """End the process for good."""
        self._closing = True
        self.down = self.down or "it is unloaded"
        if self._keeper is not None:
            self._keeper.cancel()
        if self._child is not None:
            await self._child.close()


def _pause_s(n_ended: int) -> float:
    """Before the next process, after so many that did not live long."""
    return min(FIRST_PAUSE_S * 2.0 ** (n_ended - 1), LONGEST_PAUSE_S) if n_ended else 0.0


def _no_switch(_: ReasoningSwitch) -> int:
    raise InternalError("a switch is part of a request")


def _checked(kind: type[Any], value: object) -> Any:
    if not isinstance(value, kind):
        raise InternalError(f"a model's process said {type(value).__name__} for {kind.__name__}")
    return value


def _log(fields: Mapping[str, Any]) -> None:
    """A record of the process, as if it were of this one."""
    record = logging.makeLogRecord(dict(fields))
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
