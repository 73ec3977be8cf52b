"""Sandbox processes for work that may not terminate, exhaust memory or crash. A failure ends only a process, which is
replaced.

`server.sandbox.seccomp` has a table of permitted and refused actions. A process runs one function of bytes, which is
named ``module:function`` (see `worker.main`).
"""

import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from server.sandbox.worker import HEAD

_BOOT = (
    "import sys; sys.path[:] = sys.argv[5:]; from server.sandbox.worker import main; "
    "main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))"
)
_INHERITED = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")  # to find libpython, and for strftime_now; no secrets
_SECRET = re.compile(r"LLAMAPOOL_|LLAMA_(ARG_|API_KEY)|HF_TOKEN|HUGGING_FACE_HUB_TOKEN|OTEL_\w*HEADERS")


def public_environment() -> dict[str, str]:
    """Return the environment without the server's options, keys and tokens."""
    return {name: value for name, value in os.environ.items() if not _SECRET.match(name)}


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """Limits of one request: ``cpu_s`` of CPU time, ``wall_s`` in total, ``memory_bytes`` in addition to the process's
    memory at start, and ``answer_bytes``.
    """

    cpu_s: float = 5.0
    wall_s: float = 30.0
    memory_bytes: int = 1 << 30
    answer_bytes: int = 64 << 20


class Stopped(Exception):
    """The request exceeded a limit, or the process crashed."""


class TookTooLong(Stopped):
    """The request exceeded its CPU time."""


class NoAnswer(Stopped):
    """There was no reply in time, perhaps because the machine is busy."""


class MemoryShort(Stopped):
    """The process was killed because the server's memory is short."""


class Killed(Stopped):
    """The process was killed, for example by the kernel's OOM killer."""


class Processes:
    """A pool that starts a process for each concurrent caller on demand. Thread-safe.

    `max_idle`: maximum number of idle processes.
    """

    def __init__(self, function: str, limits: WorkLimits, max_idle: int = 64) -> None:
        self._function, self._limits, self._max_idle = function, limits, max_idle
        self._idle: list[Process] = []
        self._busy: set[Process] = set()
        self._lock = Lock()
        self._closed = False

    @property
    def at_work(self) -> list["Process"]:
        with self._lock:
            return list(self._busy)

    def ask(self, what: bytes, *request: bytes) -> tuple[bytes, bytes]:
        """Send a request of one kind (one byte) and return the kind of the reply and the reply. Raises `Stopped`.
        Retries once after `Killed`.
        """
        try:
            return self._answer(what, request)
        except Killed:  # the request did not cause it
            return self._answer(what, request)

    @contextmanager
    def borrowed(self, key: bytes = b"") -> Iterator["Process"]:
        """Yield an idle process with that `key`, or a new one, which replaces the oldest if there are too many."""
        process = self._take(key)
        try:
            yield process
        finally:
            self._give_back(process)

    def warm(self) -> None:
        """Start an idle process, so that the next request does not wait for the start."""
        if not self._closed and not self._idle:
            self._give_back(Process(self._function, self._limits))

    def close(self, *, kill: bool = False) -> None:
        """Stop idle processes. Busy ones end after their request, or immediately if `kill`."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for process in self._busy if kill else ():
                process.kill()
        for process in idle:
            process.stop()

    def _answer(self, what: bytes, request: tuple[bytes, ...]) -> tuple[bytes, bytes]:
        with self.borrowed() as process:
            kind, answer, _ = process.ask(what, *request)
        return kind, answer

    def _take(self, key: bytes) -> "Process":
        found: Process | None = None
        ended: list[Process] = []
        with self._lock:
            for process in reversed(self._idle[:]):
                if found is None and process.key is key:
                    self._idle.remove(process)
                    if process.lives:
                        found = process
                    else:
                        ended.append(process)
            if found is None and len(self._idle) >= self._max_idle:
                ended.append(self._idle.pop(0))
        for process in ended:
            process.stop()
        found = found or Process(self._function, self._limits, key)
        with self._lock:
            self._busy.add(found)
        return found

    def _give_back(self, process: "Process") -> None:
        with self._lock:
            self._busy.discard(process)
            is_kept = process.is_reusable and not self._closed and len(self._idle) < self._max_idle
            if is_kept:
                self._idle.append(process)
        if not is_kept:
            process.stop()


class Process:
    """One process. Only `kill` may be called while another thread uses it.

    ``key``: names what it has been prepared for. ``n_done``: answered requests. ``is_reusable``: whether it is idle.
    """

    def __init__(self, function: str, limits: WorkLimits, key: bytes = b"") -> None:
        self.key, self.n_done, self.is_reusable = key, 0, True
        self._limits = limits
        self._reason, self._unread = "", b""
        numbers = (limits.cpu_s, limits.memory_bytes, limits.answer_bytes)
        arguments = (function, *map(str, numbers), *map(os.path.abspath, sys.path))
        self._process = subprocess.Popen(  # noqa: S603 - fixed program and arguments
            [sys.executable, "-I", "-B", "-c", _BOOT, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: os.environ[name] for name in _INHERITED if name in os.environ},
            cwd="/",
            start_new_session=True,  # a Ctrl-C reaches only the server
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self, what: bytes, *request: bytes) -> tuple[bytes, bytes, bool]:
        """Send a request. Return the kind of the reply, the reply, and whether the process can be reused.

        Raises `Stopped` if the request exceeded a limit; then the process cannot be reused.
        """
        deadline = time.monotonic() + self._limits.wall_s
        self.is_reusable = False
        try:
            self._write((HEAD.pack(what, sum(map(len, request)), True), *request), deadline)
            kind, size, is_reusable = HEAD.unpack(self._read(HEAD.size, deadline))
            if size > self._limits.answer_bytes:
                raise Stopped(f"the answer has more than {self._limits.answer_bytes} bytes")
            answer = self._read(size, deadline)
        except TimeoutError:
            raise NoAnswer(f"it took more than {self._limits.wall_s:g} s") from None
        except (EOFError, BrokenPipeError):
            raise self._end() from None
        self.n_done += 1
        self.is_reusable = is_reusable
        return kind, answer, is_reusable

    def _end(self) -> Stopped:
        status = self._process.wait()
        if self._reason:
            return MemoryShort(self._reason)
        if status == -signal.SIGPROF:
            return TookTooLong(f"it took more than {self._limits.cpu_s:g} s of CPU time")
        if status == -signal.SIGKILL:
            return Killed("the process that worked on it was killed, twice")
        return Stopped(f"it took more than {self._limits.memory_bytes >> 20} MiB of memory, or crashed")

    @property
    def resident_bytes(self) -> int:
        """Return the process's resident memory; 0 if it has ended or the system doesn't report it."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        except (OSError, IndexError):
            return 0

    def kill(self, reason: str = "") -> None:
        """Kill the process. A waiting `ask` raises `MemoryShort` with `reason`; without a reason, `Killed`."""
        self._reason = reason
        self._process.kill()

    def stop(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def _read(self, n_bytes: int, deadline: float) -> bytes:
        """Return the next `n_bytes`, and keep further bytes for the next call. A reply thus takes fewer reads, each of
        which releases the GIL.
        """
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        parts, n_read = [self._unread], len(self._unread)
        while n_read < n_bytes:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            part = os.read(self._output, 1 << 16)  # the capacity of a pipe
            if not part:
                raise EOFError
            parts.append(part)
            n_read += len(part)
        found = b"".join(parts)
        self._unread = found[n_bytes:]
        return found[:n_bytes]

    def _write(self, parts: Sequence[bytes], deadline: float) -> None:
        poll = select.poll()
        poll.register(self._input, select.POLLOUT)
        left = [memoryview(part) for part in parts if part]
        while left:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            n_written = os.writev(self._input, left)
            while left and n_written >= len(left[0]):
                n_written -= len(left.pop(0))
            if left:
                left[0] = left[0][n_written:]
