"""Templates rendered by processes of their own, each of which can be stopped: `isolated_worker` is what runs there.

A template is a program that comes with a model. The sandbox of `jinja` keeps it from Python, but not from computing
without end, nor within one operation that holds the interpreter: here that costs a process that is replaced, and
never the event loop or the step threads. The process has neither files nor network to open.
"""

import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from server.templates.isolated_worker import BROKEN, CHECK, FAULT, HEAD, OPENED, REFUSAL, RENDER, TEXT
from server.templates.rendering import RenderFault, RenderRefusal, RenderStopped, TemplateBroken

_BOOT = (
    "import sys; sys.path[:] = sys.argv[4:]; from server.templates.isolated_worker import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))"
)

_INHERITED = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")  # to find libpython, and for strftime_now; no secrets


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one rendering may take: ``cpu_s`` of a processor, ``wall_s`` in all, memory and text in bytes."""

    cpu_s: int = 5
    wall_s: float = 30.0
    memory_bytes: int = 1 << 30
    text_bytes: int = 64 << 20


class IsolatedRenderer:
    """Processes are started when they are first needed, one for each thread that renders at the same time."""

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self._limits = limits or RenderLimits()
        self._idle: list[_Worker] = []
        self._lock = Lock()
        self._closed = False

    def check(self, source: str) -> None:
        """Compile it there."""
        self._ask(CHECK, (source,))

    def render(self, source: str, arguments: Mapping[str, Any]) -> str:
        """Render it there."""
        return self._ask(RENDER, (source, dict(arguments)))

    def render_opened(self, source: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Render both there, with one question: the way takes as long as a short chat's rendering."""
        n_chars, _, texts = self._ask(OPENED, (source, dict(arguments))).partition("\n")
        return texts[: int(n_chars)], texts[int(n_chars) :]

    def close(self) -> None:
        """End the processes; those at work end with their work."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.stop()

    def _ask(self, what: bytes, given: tuple[Any, ...]) -> str:
        try:
            request = pickle.dumps(given, pickle.HIGHEST_PROTOCOL)
        except RecursionError as error:
            raise RenderFault("RecursionError: what the template is given nests too deeply") from error
        try:
            kind, text = self._answer(what, request)
        except (
            _KilledError
        ):  # by somebody else, such as a system that is short of memory: not what was asked is to blame
            kind, text = self._answer(what, request)
        if kind == TEXT:
            return text
        raise {REFUSAL: RenderRefusal, BROKEN: TemplateBroken, FAULT: RenderFault}[kind](text)

    def _answer(self, what: bytes, request: bytes) -> tuple[bytes, str]:
        worker = self._taken() or _Worker(self._limits)
        try:
            kind, text = worker.ask(what, request)
        except BaseException:
            worker.stop()
            raise
        if kind == FAULT and text.startswith(MemoryError.__name__):  # what is left of it may be too little
            worker.stop()
        else:
            self._give_back(worker)
        return kind, text

    def _taken(self) -> "_Worker | None":
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.lives:
                    return worker
                worker.stop()
        return None

    def _give_back(self, worker: "_Worker") -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(worker)
                return
        worker.stop()


class _KilledError(RenderStopped):
    """The process was ended from outside."""


class _Worker:
    """One process. Not safe for threads."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        given = (str(limits.cpu_s), str(limits.memory_bytes), str(limits.text_bytes), *map(os.path.abspath, sys.path))
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, these arguments
            [sys.executable, "-I", "-B", "-c", _BOOT, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: os.environ[name] for name in _INHERITED if name in os.environ},
            cwd="/",
            start_new_session=True,  # a Ctrl-C is for the server
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)

    @property
    def lives(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def ask(self, what: bytes, request: bytes) -> tuple[bytes, str]:
        """Its answer. Raises `RenderStopped` when the process went past a limit; it is of no use then."""
        deadline = time.monotonic() + self._limits.wall_s
        try:
            self._write(HEAD.pack(what, len(request)) + request, deadline)
            kind, size = HEAD.unpack(self._read(HEAD.size, deadline))
            if size > self._limits.text_bytes:
                raise RenderStopped(f"its text has more than {self._limits.text_bytes} bytes")
            return kind, self._read(size, deadline).decode("utf-8", "surrogatepass")
        except TimeoutError:
            raise RenderStopped(f"it took more than {self._limits.wall_s:g} s") from None
        except (EOFError, BrokenPipeError):
            raise self._end() from None

    def _end(self) -> RenderStopped:
        status = self._process.wait()
        if status == -signal.SIGXCPU:
            return RenderStopped(f"it took more than {self._limits.cpu_s} s of a processor")
        if status == -signal.SIGKILL:
            return _KilledError("the process that renders it was killed, twice")
        return RenderStopped(f"it took more than {self._limits.memory_bytes >> 20} MiB of memory, or crashed")

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def _read(self, n_bytes: int, deadline: float) -> bytes:
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        parts: list[bytes] = []
        while n_bytes:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            part = os.read(self._from, min(n_bytes, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            n_bytes -= len(part)
        return b"".join(parts)

    def _write(self, request: bytes, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._to, select.POLLOUT)
        view = memoryview(request)
        while view:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            view = view[os.write(self._to, view) :]
