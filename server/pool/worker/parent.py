"""The server's side of a worker process: starts it, loads the model there, and detects its end."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Self, TypeVar, cast

from server.engine.request import Request
from server.errors import InternalError, LlamapoolError, ModelEnded, ModelFailed, ShuttingDown, Unavailable
from server.media.bitmap import Bitmap
from server.pool.memory import Fit, Footprint, Memory
from server.pool.protocols import Loader, MediaReader, ModelInfo, Vocabulary
from server.pool.spec import ModelSpec
from server.pool.worker.messages import EVENTS, Connection, Encoder, EngineStatus, HandleTable, LoadedFacts
from server.pool.worker.proxies import EngineProxy, IsolatedEmbedder, IsolatedEngine, IsolatedReader
from server.sandbox.process import public_environment
from server.structured.reasoning_end import ReasoningEnd
from server.vocab import Vocab

EXIT_S = 5.0
"""Seconds that a process may take to exit after its connection was closed, and again after it was killed."""
STACKS_S = 2.0
"""Seconds for a process to write its stacks and exit, before it is killed; a stopped process does neither."""
SILENT_S = 10.0
"""Minimum silence after which a process counts as hanging; its heartbeats are two seconds apart."""
ANSWER_S = 5.0
"""Seconds in which a process must answer a ping before its engines are closed; otherwise it is killed."""
STUCK_S = 60.0
"""Minimum time without progress after which a load counts as hanging; a slow disk may take as long to start."""
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; from server.pool.worker.child import main; main(*map(int, sys.argv[1:3]))"
)
_LOGGERS = ("server", "llamapool")
log = logging.getLogger(__name__)

T = TypeVar("T")


class WorkerProcess(Connection):
    """A model's worker process, which starts with the first call. It is the `Loader` of the model, and then its
    `Weights`: everything that could crash runs in the worker. The server itself reads only the file's header, by its
    own code, and the vocabulary after the worker has loaded it.

    Used on the event loop, except the methods of `Loader` and `Weights`, which block, `notify`, and `abandon`. The
    system kills the process with the thread that started it.

    ``generator`` and ``embedder`` are proxies of the worker's engines. ``closing``: the engines take no more requests.
    ``kill_reason``: why the server kills the process; "" = it does not. ``advanced_at``: time of the last progress of
    its load. ``ended``: the reason why the process has ended.
    """

    def __init__(self, name: str, make_loader: Callable[[], Loader], local: Loader) -> None:
        """`make_loader` creates the loader in the process; `local` is the server's own loader."""
        self.name = name
        self.uses_devices, self.describe = local.uses_devices, local.describe
        self.vocabulary, self.media_kinds = local.vocabulary, local.media_kinds
        self.info = ModelInfo()
        self.media: MediaReader | None = None
        self.generator: IsolatedEngine | None = None
        self.embedder: IsolatedEmbedder | None = None
        self.is_loaded = self.closing = False
        self.kill_reason = ""
        self.advanced_at = time.monotonic()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.bitmaps: HandleTable[Bitmap] = HandleTable()
        self._make_loader = make_loader
        self._progress: Callable[[float], object] = lambda _: None
        self._process: subprocess.Popen[bytes] | None = None
        self._vocabulary: Vocabulary | None = None
        self._footprint: Footprint = {}
        self._activity: tuple[int, ...] = ()
        self._n_hanging_checks = 0
        self._exit: asyncio.Task[None] | None = None
        super().__init__(
            {
                "status": self._update,
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

    def _start(self) -> None:
        server_end, worker_end = socket.socketpair()
        with worker_end:
            numbers = worker_end.fileno(), os.getpid()
            self._process = subprocess.Popen(  # noqa: S603 - fixed program and arguments
                [sys.executable, "-I", "-c", _BOOT, *map(str, numbers), *map(os.path.abspath, sys.path)],
                stdin=subprocess.DEVNULL,
                stderr=None if sys.stderr else subprocess.DEVNULL,  # if it is closed, another file may have its number
                env=public_environment(),
                pass_fds=numbers[:1],
                start_new_session=True,  # a Ctrl-C reaches only the server
            )
        self.connect(server_end)
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS}
        self.notify("start", self._make_loader, levels)

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return 0 if self._process is None else self._process.pid

    @property
    def engines(self) -> Sequence[EngineProxy]:
        return [engine for engine in (self.generator, self.embedder) if engine is not None]

    # ---- calls

    async def call(self, function: str, *arguments: object) -> Any:
        """Call a function of the worker. Raises its errors, and `ended_error` when the process ends."""
        if self.ended.done():
            raise self.ended_error()
        if self._process is None:
            self._start()
        self.advanced_at = time.monotonic()
        return await super().call(function, *arguments)

    def ended_error(self) -> LlamapoolError:
        """Return the error for requests of the ended process: they are retried, unless it was being closed."""
        if self.closing:
            return ShuttingDown("model")
        return ModelEnded(f"the model has ended: {self.ended.result()}; it is loaded again")

    def in_thread(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that runs on the event loop; blocks the calling thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def submit(self, number: int, request: Request) -> None:
        """Send a request as bytes, because the worker decodes it in a thread if it has a grammar."""
        if isinstance(request.constraint, ReasoningEnd):
            request.constraint.switch.on_end = partial(self.notify, "end_reasoning", number)
        self.notify("submit", number, self._new_encoder().pickled(request), request.constraint is not None)

    def _new_encoder(self) -> Encoder:
        vocab = None if self._vocabulary is None else self._vocabulary.vocab
        return Encoder(vocab, self.bitmaps.add)

    # ---- the loader

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        return cast(Fit, self._call_loader("loader", "fit", spec, dict(granted or {})))

    def least(self, spec: ModelSpec) -> Footprint:
        return cast(Footprint, self._call_loader("loader", "least", spec))

    def memory(self) -> Mapping[str, Memory]:
        """Call `Loader.memory` in the worker, because reading a GPU's memory opens a context on it."""
        return cast(Mapping[str, Memory], self._call_loader("loader", "memory"))

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> Self:
        """Load the model in the worker, and the vocabulary in this process. Raises `ModelFailed`, also if the process
        ends.
        """
        self._progress = progress
        facts: LoadedFacts = self._call_loader("load", spec)
        self._vocabulary = self.vocabulary(spec)
        self.info, self._footprint = facts.info, facts.footprint
        if facts.reader is not None:
            self.media = IsolatedReader(self, facts.reader)
        if facts.generator is not None:
            self.generator = IsolatedEngine(self, facts.generator)
            self.functions |= {EVENTS: self.generator.receive, "views": self.generator.show}
        if facts.embedder is not None:
            self.embedder = IsolatedEmbedder(self, facts.embedder, facts.info.n_vocab)
        self.is_loaded = True
        return self

    def _call_loader(self, function: str, *arguments: object) -> Any:
        try:
            return self.in_thread(self.call(function, *arguments))
        except ModelEnded:
            raise ModelFailed(self.name, self.ended.result()) from None
        except ModelFailed:
            raise
        except Unavailable as error:
            raise ModelFailed(self.name, error.message) from None
        except OSError as error:
            raise ModelFailed(self.name, f"its process: {error}") from error

    def abandon(self) -> None:
        """Kill the process, whose load is no longer needed. Thread-safe."""
        self._loop.call_soon_threadsafe(self.kill, "its load was stopped")

    # ---- the weights

    @property
    def vocab(self) -> Vocab:
        """The file's vocabulary, read in this process."""
        assert self._vocabulary is not None
        return self._vocabulary.vocab

    def runner(self) -> NoReturn:
        """Raise `InternalError`: contexts exist only in the worker."""
        raise InternalError("the model is in another process")

    embedding_runner = runner

    def footprint(self) -> Footprint:
        return self._footprint

    def close(self) -> None:
        """End the process; blocks."""
        self.in_thread(self.end())
        if self._vocabulary is not None:
            self._vocabulary.close()

    # ---- messages

    def _update(self, *states: EngineStatus) -> None:
        for engine, status in zip(self.engines, states, strict=False):  # there are fewer during the load
            engine.update(status)

    def _progressed(self, value: float) -> None:
        self.advanced_at = time.monotonic()
        self._progress(value)

    def loads(self, activity: tuple[int, ...]) -> None:
        """Record a heartbeat of the load. `activity` (`child.load_activity`) changes while the load advances."""
        if activity != self._activity:
            self._activity, self.advanced_at = activity, time.monotonic()

    async def _pixels(self, number: int) -> bytes:
        return await asyncio.to_thread(self.bitmaps[number].decoded)

    def _reject(self, error: Exception) -> None:
        log.error("model '%s': its process sent an invalid message", self.name, exc_info=error)
        self.kill("its process sent an invalid message")

    # ---- the end

    def check_progress(self, limit_s: float) -> None:
        """Kill a process that is silent or whose load does not advance, and let the worker check its steps. Call it
        periodically.
        """
        if self._process is None or self.kill_reason or self.ended.done():
            return
        stalled_s = time.monotonic() - (self.received_at if self.is_loaded else self.advanced_at)
        hangs = stalled_s > max(limit_s, SILENT_S if self.is_loaded else STUCK_S)
        self._n_hanging_checks = self._n_hanging_checks + 1 if hangs else 0
        if self._n_hanging_checks > 1:  # if only this process hung, it reads messages between two checks
            what = "it has been silent" if self.is_loaded else "its load has not advanced"
            self.kill(f"{what} for {stalled_s:.0f} s", stacks=True)
        elif self.is_loaded:
            self.notify("check_progress", limit_s)

    async def begin_close(self) -> None:
        """Stop new requests to the engines. Kill a process that does not answer, such as a stopped one."""
        self.closing = self.closing or not self.ended.done()  # requests to an ended process are retried
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.call("ping")
        except TimeoutError:
            self.kill(f"it has not answered for {ANSWER_S:g} s", stacks=True)
        except LlamapoolError:
            return

    def kill(self, reason: str, *, stacks: bool = False) -> None:
        """Kill the process; with `stacks`, it first writes the stacks of its threads to the log."""
        first, self.kill_reason = not self.kill_reason, self.kill_reason or reason
        if self._process is None:
            if first:
                self.ended.set_result(reason)
        elif not stacks:
            self._process.kill()
            self._loop.call_later(EXIT_S, self._reap)  # a process that hangs in the kernel keeps its connection
        elif first:
            log.critical("model '%s' is killed: %s", self.name, reason)
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR1)
            self._loop.call_later(STACKS_S, self.kill, reason)

    def _reap(self) -> None:
        if self._exit is None and self._process is not None:
            self._exit = self._loop.create_task(self._wait(self._process))

    async def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        status = 0
        with contextlib.suppress(subprocess.TimeoutExpired):  # after the second timeout, it counts as ended
            try:
                status = await asyncio.to_thread(process.wait, EXIT_S)
            except subprocess.TimeoutExpired:
                self.kill("its process closed its connection and did not exit")
                status = await asyncio.to_thread(process.wait, EXIT_S)
        self.disconnect()
        self.ended.set_result(self.kill_reason or exit_reason(status))
        for engine in self.engines:
            engine.process_ended()
        self.fail_calls(self.ended_error)

    async def end(self) -> None:
        """Let the process exit; kill it after `EXIT_S`. Returns when it has ended."""
        self.disconnect()
        self._reap()
        await asyncio.shield(self.ended)


def _log(fields: Mapping[str, Any]) -> None:
    """Handle a log record of the worker in this process."""
    record = logging.makeLogRecord(dict(fields))
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def exit_reason(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    why = " (out of memory, or killed from outside)" if status == -signal.SIGKILL else ""
    return f"its process was ended by {name}{why}"
