"""The server's side of one worker process: starts it, sends requests, detects its end, and restarts it."""

import asyncio
import contextlib
import logging
import math
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

from server.engine.lora import Adapter
from server.engine.request import Event, Request
from server.errors import InternalError, LlamapoolError, ModelEnded, ModelFailed, ModelRestarting, Unavailable
from server.media.bitmap import Bitmap
from server.pool.memory import Fit, Footprint, Memory
from server.pool.protocols import Loader, MediaReader, ModelInfo, Vocabulary
from server.pool.spec import ModelSpec
from server.pool.worker.environment import child_environment
from server.pool.worker.messages import EVENTS, Connection, Encoder, EngineStatus, HandleTable, LoadedFacts
from server.pool.worker.proxies import EngineProxy, IsolatedEmbedder, IsolatedEngine, IsolatedReader
from server.structured.reasoning_end import ReasoningSwitch
from server.vocab import Vocab

EXIT_S = 5.0
"""Seconds that a process may take to exit after its connection was closed, before it is killed."""
HEALTHY_S = 60.0
"""A process that lived this long did not fail at its start."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
LONGEST_WAIT_S = 5.0
"""A request during a restart waits if the next start is at most this far away; otherwise it gets an error."""
STACKS_S = 2.0
"""Seconds that a process has to write its stacks and exit before it is killed; a stopped process does neither."""
SILENT_S = 10.0
"""The least silence after which a process counts as hanging; its heartbeats are two seconds apart."""
ANSWER_S = 5.0
"""Seconds in which a process must answer before its engines are closed; otherwise it is frozen."""
STUCK_S = 60.0
"""The least time without progress after which a load counts as hanging; a slow disk may take as long to start."""
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; from server.pool.worker.child import main; main(*map(int, sys.argv[1:3]))"
)
_LOGGERS = ("server", "llamapool")
log = logging.getLogger(__name__)

T = TypeVar("T")


class WorkerProcess(Connection):
    """One worker process. Used on the event loop, in the thread that started it: the system kills it with that thread.

    ``kill_reason``: why the server kills it, "" otherwise. ``advanced_at``: when its load last advanced. ``ended``: the
    reason of its end.
    """

    def __init__(self, supervisor: "WorkerSupervisor") -> None:
        """Start it. The supervisor receives its events, its status, and the reason of its end."""
        self._supervisor = supervisor
        self.kill_reason = ""
        self.advanced_at = time.monotonic()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.bitmaps: HandleTable[Bitmap] = HandleTable()
        self._effort: tuple[int, ...] = ()
        self._exit: asyncio.Task[None] | None = None
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = theirs.fileno(), os.getpid()
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, these arguments
                [sys.executable, "-I", "-c", _BOOT, *map(str, numbers), *map(os.path.abspath, sys.path)],
                stdin=subprocess.DEVNULL,
                env=child_environment(os.environ, supervisor.stores),
                pass_fds=numbers[:1],
                start_new_session=True,  # a Ctrl-C is for the server
            )
        super().__init__(
            ours,
            {
                EVENTS: supervisor.received,
                "status": supervisor.update,
                "views": supervisor.show,
                "pixels": self._pixels,
                "release_bitmap": self.bitmaps.release,
                "loading": self.loads,
                "progress": self._progressed,
                "log": _log,
                "failing": self.kill,
            },
            lost=self._reap,
            invalid=self._reject,
            encoder=self._new_encoder,
        )
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS}
        self.notify("start", supervisor.make_loader, levels)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _new_encoder(self, watch: Callable[[ReasoningSwitch], int] | None = None) -> Encoder:
        return Encoder(self._supervisor.known_vocab, self.bitmaps.add, watch)

    def submit(self, number: int, request: Request) -> None:
        """Send a request as bytes, because compiling its grammar takes a thread of the worker."""

        def watch(switch: ReasoningSwitch) -> int:
            switch.heard = lambda: self.notify("end_reasoning", number)
            return number

        body = self._new_encoder(watch).pickled(request)
        self.notify("submit", number, body, request.constraint is not None)

    async def call(self, function: str, *arguments: object) -> Any:
        """Call a function of the worker. Raises what it raises there, and `ModelEnded` when the process ends."""
        if self.ended.done():
            raise ModelEnded(f"model '{self._supervisor.name}': {self.ended.result()}")
        self.advanced_at = time.monotonic()
        return await super().call(function, *arguments)

    # ---- messages

    def _progressed(self, value: float) -> None:
        self.advanced_at = time.monotonic()
        self._supervisor.progress(value)

    def _reject(self, error: Exception) -> None:
        log.error("model '%s': its process sent an invalid message", self._supervisor.name, exc_info=error)
        self.kill("its process sent an invalid message")

    def loads(self, effort: tuple[int, ...]) -> None:
        """Record a heartbeat of its load. `effort` changes while the load advances."""
        if effort != self._effort:
            self._effort, self.advanced_at = effort, time.monotonic()

    async def _pixels(self, number: int) -> bytes:
        return await asyncio.to_thread(self.bitmaps[number].decoded)

    # ---- the end

    def kill(self, reason: str, *, stacks: bool = False) -> None:
        """Kill it; with `stacks` it writes the stacks of its threads to the log first."""
        first, self.kill_reason = not self.kill_reason, self.kill_reason or reason
        if not stacks:
            self._process.kill()
        elif first:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR1)
            self._loop.call_later(STACKS_S, self._process.kill)

    def _reap(self) -> None:
        if self._exit is None:
            self._exit = self._loop.create_task(self._wait())

    async def _wait(self) -> None:
        try:
            status = await asyncio.to_thread(self._process.wait, EXIT_S)
        except subprocess.TimeoutExpired:
            self.kill("its process closed its connection and did not exit")
            status = await asyncio.to_thread(self._process.wait)
        self.disconnect()
        reason = self.kill_reason or exit_reason(status)
        self.ended.set_result(reason)
        self._supervisor.process_ended(self, reason)  # before callers get their error
        self.fail_calls(ModelEnded(f"model '{self._supervisor.name}': {reason}"))

    async def close(self) -> None:
        """Let it exit by itself; kill it if that takes too long. Returns when it has ended."""
        self.disconnect()
        self._reap()
        await asyncio.shield(self.ended)


def _log(fields: Mapping[str, Any]) -> None:
    """Handle a log record of the worker as one of this process."""
    record = logging.makeLogRecord(dict(fields))
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def exit_reason(status: int) -> str:
    """Describe a process' exit status."""
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    why = " (out of memory, or killed from outside)" if status == -signal.SIGKILL else ""
    return f"its process was ended by {name}{why}"


class WorkerSupervisor:
    """Supervises a model's worker process and its successors. It is the `Loader` of the model, and then its `Weights`:
    everything that could crash runs in the worker. The server reads only the file's header, with our own code, and its
    vocabulary after the worker has survived it.

    Used on the event loop, except the methods of `Loader` and `Weights`, which block, and `notify`. ``generator``
    and ``embedder`` are proxies of the worker's engines. ``down``: why no process serves, "" otherwise. ``pause_s``:
    seconds until the next start.
    """

    def __init__(
        self,
        name: str,
        make_loader: Callable[[], Loader],
        loop: asyncio.AbstractEventLoop,
        local: Loader,
        stores: Sequence[Path | str | None] = (),
    ) -> None:
        """`make_loader` creates the loader in the process; `local` is the server's own. `stores`: where the model keeps
        prompt states and saved slots; its process gets the environment variables that these need.
        """
        self.name, self.make_loader, self.loop, self.stores = name, make_loader, loop, stores
        self.uses_devices, self.describe = local.uses_devices, local.describe
        self.vocabulary, self.media_kinds = local.vocabulary, local.media_kinds
        self.info = ModelInfo()
        self.media: MediaReader | None = None
        self.generator: IsolatedEngine | None = None
        self.embedder: IsolatedEmbedder | None = None
        self.down = ""
        self.pause_s = 0.0
        self.n_restarts = 0
        self.progress: Callable[[float], object] = lambda _: None
        self._settings: dict[tuple[object, ...], object] = {}
        self._settled = asyncio.Event()  # a process serves, or it is known why none could be started
        self._settled.set()
        self._start_error: LlamapoolError | None = None
        self._process: WorkerProcess | None = None
        self._spec: ModelSpec | None = None
        self._facts: LoadedFacts | None = None
        self._vocabulary: Vocabulary | None = None
        self._closing = False
        self._started_at = 0.0
        self._restarts: asyncio.Task[None] | None = None
        self._n_hanging_checks = 0

    @property
    def engines(self) -> Sequence[EngineProxy]:
        """The proxies of the model's engines."""
        return [engine for engine in (self.generator, self.embedder) if engine is not None]

    @property
    def up(self) -> bool:
        """Whether a process serves."""
        return self._serving is not None

    @property
    def _serving(self) -> WorkerProcess | None:
        """The process that serves, if any."""
        return None if self.down else self._process

    @property
    def pid(self) -> int:
        """The process id; 0 = none."""
        return 0 if self._process is None else self._process.pid

    def in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine, in a thread that may block."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def wait_up(self) -> None:
        """Wait while a process is restarted. Raises `Unavailable` if that would take long or is impossible."""
        self.check_soon()
        await self._settled.wait()
        if self._start_error is not None:
            raise self._start_error.with_traceback(None)  # shared by all waiting requests: its traceback would grow

    def stop_waiting(self, error: LlamapoolError) -> None:
        """Fail requests that wait for a process with `error`."""
        self._start_error = error
        self._settled.set()

    def check_soon(self) -> None:
        """Raises `Unavailable` if no process will be started soon."""
        if self.pause_s > LONGEST_WAIT_S:
            raise ModelRestarting(self.name, self.down, math.ceil(self.pause_s))

    # ---- the loader

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        """Call `Loader.fit` in the worker."""
        if spec.mmproj is not None and not spec.native.media_marker:  # the same in every process of the model
            marker = f"<__media_{secrets.token_hex(16)}__>"
            spec = replace(spec, native=replace(spec.native, media_marker=marker))
        found: Fit = self.in_thread(self._call_loader("loader", "fit", spec, dict(granted or {})))
        return found

    def least(self, spec: ModelSpec) -> Footprint:
        """Call `Loader.least` in the worker."""
        found: Footprint = self.in_thread(self._call_loader("loader", "least", spec))
        return found

    def memory(self) -> Mapping[str, Memory]:
        """Call `Loader.memory` in the worker, because reading a GPU's memory opens a context on it."""
        found: Mapping[str, Memory] = self.in_thread(self._call_loader("loader", "memory"))
        return found

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> Self:
        """Load the model in the worker, and read its vocabulary here. Raises `ModelFailed`, also if the process
        ends.
        """
        self._spec, self.progress = spec, progress
        facts = self.in_thread(self._load(spec))
        self._vocabulary = self.vocabulary(spec)
        self.info = facts.info
        if facts.reader is not None:
            self.media = IsolatedReader(self, facts.reader)
        if facts.bounds is not None:
            self.generator = IsolatedEngine(self, facts, spec.engine)
        if facts.embedder is not None:
            self.embedder = IsolatedEmbedder(self, facts.embedder, facts.info.n_vocab)
        return self

    async def _load(self, spec: ModelSpec) -> LoadedFacts:
        facts: LoadedFacts = await self._call_loader("load", spec)
        self._facts = facts
        self._started_at = time.monotonic()
        self._restarts = self.loop.create_task(self._restart_when_ended(self._started()))
        return facts

    async def _call_loader(self, function: str, *arguments: object) -> Any:
        if self._closing:
            raise ModelFailed(self.name, "its load was stopped")
        try:
            return await self._started().call(function, *arguments)
        except ModelFailed:
            raise
        except Unavailable as error:
            raise ModelFailed(self.name, error.message.removeprefix(f"model '{self.name}': ")) from None

    def _started(self) -> WorkerProcess:
        if self._process is None:
            self._process = WorkerProcess(self)
        return self._process

    def abandon(self) -> None:
        """Kill the process of an unwanted load. Thread-safe."""

        def abandon() -> None:
            self._closing = True
            if self._process is not None:
                self._process.kill("its load was stopped")

        self.loop.call_soon_threadsafe(abandon)

    # ---- the weights

    @property
    def known_vocab(self) -> Vocab | None:
        """The file's vocabulary, read in this process; None before the load."""
        return None if self._vocabulary is None else self._vocabulary.vocab

    @property
    def vocab(self) -> Vocab:
        """The file's vocabulary, read in this process."""
        assert self._vocabulary is not None
        return self._vocabulary.vocab

    def runner(self) -> NoReturn:
        """Raises `InternalError`: contexts exist only in the worker."""
        raise InternalError("the model is in another process")

    embedding_runner = runner

    def footprint(self) -> Footprint:
        """Return the memory that the worker measured."""
        return {} if self._facts is None else self._facts.footprint

    def close(self) -> None:
        """End the process, which frees all; blocking."""
        self.in_thread(self.end())
        if self._vocabulary is not None:
            self._vocabulary.close()

    # ---- calls

    def notify(self, function: str, *arguments: object) -> None:
        """Call a function of the worker without waiting for a result; nothing while no process serves. Thread-safe."""
        if (process := self._serving) is not None:
            process.notify(function, *arguments)

    def keep(self, function: str, *arguments: object) -> None:
        """Call a function of the worker that sets something to the last argument, and again after each restart.
        Thread-safe.
        """
        key, value = (function, *arguments[:-1]), arguments[-1]
        if self._settings.get(key) != value:
            self._settings[key] = value
            self.notify(function, *arguments)

    def submit(self, number: int, request: Request) -> None:
        """Send a request, if a process serves."""
        if (process := self._serving) is not None:
            process.submit(number, request)

    async def call(self, function: str, *arguments: object) -> Any:
        """Call a function of the process. Raises `ModelEnded` while no process serves."""
        if (process := self._serving) is None:
            raise ModelEnded(f"model '{self.name}' is being loaded again: {self.down}")
        return await process.call(function, *arguments)

    # ---- messages

    def received(self, events: dict[int, list[Event]]) -> None:
        """Receive the events of steps by request number."""
        if self.generator is not None:
            self.generator.receive(events)

    def show(self, *views: Any) -> None:
        """Receive views of the worker's generating engine."""
        if self.generator is not None:
            self.generator.show(*views)

    def update(self, *states: EngineStatus) -> None:
        """Receive the state of the worker's engines."""
        for engine, status in zip(self.engines, states, strict=False):  # before the end of the load there are fewer
            engine.update(status)

    def check_progress(self, limit_s: float) -> None:
        """Kill a process that is silent or whose load makes no progress, and let it check its own steps. Called
        periodically.
        """
        process = self._process
        if process is None or process.kill_reason or process.ended.done():
            return
        loads = self._restarts is None or bool(self.down)
        still_s = time.monotonic() - (process.advanced_at if loads else process.heard_at)
        hangs = still_s > max(limit_s, STUCK_S if loads else SILENT_S)
        self._n_hanging_checks = self._n_hanging_checks + 1 if hangs else 0
        if self._n_hanging_checks > 1:  # messages are read between two checks, if this process was the one that hung
            self.kill(
                f"its load has not advanced for {still_s:.0f} s" if loads else f"it has been silent for {still_s:.0f} s"
            )
        elif not loads:
            self.notify("check_progress", limit_s)

    def kill(self, reason: str) -> None:
        """Kill the process; it is restarted."""
        if self._process is not None and not self._process.kill_reason:
            log.critical("model '%s' is killed: %s", self.name, reason)
            self._process.kill(reason, stacks=True)

    # ---- restarts

    def use_adapters(self, adapters: tuple[Adapter, ...]) -> None:
        """Load the model with these LoRA adapters from now on, the configured ones with their own scales."""
        assert self._spec is not None
        assert self._facts is not None
        before = {adapter.id: adapter for adapter in self._facts.adapters}
        loaded = tuple(before.get(adapter.id, adapter) for adapter in adapters)
        self._spec = self._spec.with_adapters(adapters)
        self._facts = replace(self._facts, adapters=loaded)

    def process_ended(self, process: WorkerProcess, reason: str) -> None:
        """Handle the end of a process."""
        if process is self._process and self._restarts is not None and not (self._closing or self.down):
            self.down = reason
            self._settled.clear()
            self._start_error = None
            for engine in self.engines:
                engine.process_lost(reason)

    async def _restart_when_ended(self, process: WorkerProcess) -> None:
        n_short_lives = 0
        while True:
            reason = await asyncio.shield(process.ended)
            if self._closing:
                return
            if time.monotonic() - self._started_at >= HEALTHY_S:
                n_short_lives = 0
            while True:
                self.down = self._without_folders(reason)
                if n_short_lives:
                    self.pause_s = min(FIRST_PAUSE_S * 2.0 ** (n_short_lives - 1), LONGEST_PAUSE_S)
                n_short_lives += 1
                log.error("model '%s': %s; it is loaded again in %g s", self.name, reason, self.pause_s)
                await asyncio.sleep(self.pause_s)
                self.pause_s = 0.0
                try:
                    self._process = process = WorkerProcess(self)
                    await self._load_again(process)
                    break
                except (LlamapoolError, OSError, pickle.PicklingError) as error:
                    reason = _reason(error)
                    failed = ModelFailed(self.name, self._without_folders(reason))
                    self.stop_waiting(failed)
                    if self.generator is not None:
                        self.generator.fail_all(failed)

    def _without_folders(self, reason: str) -> str:
        return reason if self._spec is None else self._spec.by_name(reason)

    async def _load_again(self, process: WorkerProcess) -> None:
        try:
            facts: LoadedFacts = await process.call("load", self._spec)
            if self._facts is not None and facts != replace(self._facts, footprint=facts.footprint):
                raise ModelFailed(self.name, "its files have changed; unload it to load the new ones")
        except BaseException:
            process.kill("it could not be loaded")
            raise
        self.n_restarts += 1
        self._started_at = time.monotonic()
        self.down = ""
        self._start_error = None
        self._settled.set()
        log.warning("model '%s' is loaded again", self.name)
        for (function, *names), value in list(self._settings.items()):
            process.notify(str(function), *names, value)
        if self.generator is not None:
            self.generator.process_started()

    async def end_frozen(self) -> None:
        """Kill a process that does not answer, such as a stopped one, and start no other."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.call("ping")
        except TimeoutError:
            self._closing = True
            self.kill(f"it has not answered for {ANSWER_S:g} s")
        except LlamapoolError:
            return  # no process serves

    async def end(self) -> None:
        """End the process for good."""
        self._closing = True
        self.down = self.down or "it is unloaded"
        if self._restarts is not None:
            self._restarts.cancel()
        if self._process is not None:
            await self._process.close()


def _reason(error: Exception) -> str:
    if isinstance(error, ModelFailed):
        return error.reason
    return error.message if isinstance(error, LlamapoolError) else f"its process: {error}"
