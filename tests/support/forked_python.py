"""Start the Python processes of tests as forks of one process that has imported the server.

A new Python with the server's modules takes about a second of CPU time, and `make test` starts thousands: servers,
workers of models, sandboxes and downloads. `install` replaces `subprocess` in the modules that start them. With
``EXHAUSTIVE=1``, and on versions of Python whose `Popen` is not known here, each process is started as in production.
A forked process is killed when the process that started it ends. The sandboxes of a forked server are forks, too.

`run` and `Popen` are those of `subprocess`, with forks. `write_command` writes the program `llamapool` for shells.
"""

import atexit
import fcntl
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from tests.support.sampling import EXHAUSTIVE

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = {"server": ("server.cli.command_line", "server.model_pool", "server.app")}
"""What ``python -m NAME`` imports; the modules of ``-c`` are found in its code and arguments."""
_MODULE = re.compile(r"from (server[\w.]*) import|import (server[\w.]+|openai)\b|^(server[\w.]+):\w+$")
_LOADING = ("LD_", "PYTHON", "GGML_")
"""Variables that are read when a program or a library is loaded. A process that sets one is started as usual."""
_FREE_FD = 200
_FORKER_SOCKET: list[str] = []
"""In a forked process: the socket path of the process that forked it."""
FORKS = not EXHAUSTIVE and sys.version_info[:2] == (3, 11)
"""Whether processes are forked. `ForkedPopen` overrides private methods of this version of Python."""
_COMMAND = """#!{python} -IS
import json, os, signal, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({path!r})
request = {{"argv": ["-m", "server", *sys.argv[1:]], "environment": dict(os.environ), "cwd": os.getcwd()}}
socket.send_fds(connection, [b"\\n"], [0, 1, 2])
request |= {{"session": False, "parent": os.getpid(), "fds": [0, 1, 2]}}
connection.sendall(json.dumps(request).encode() + b"\\n")
lines = connection.makefile()
pid = int(lines.readline())
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
status = int(lines.readline() or -9)
sys.exit(status if status >= 0 else 128 - status)
"""


def install(*modules: ModuleType) -> None:
    """Make ``subprocess.Popen`` of these modules start forks."""
    for module in modules if FORKS else ():
        module.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": ForkedPopen})  # type: ignore[attr-defined]


def write_command(folder: Path) -> None:
    """Write the program `llamapool` into `folder`. It has the server forked and waits until it exits."""
    program = folder / "llamapool"
    if FORKS:
        program.write_text(_COMMAND.format(python=sys.executable, path=_forker()))
        program.chmod(0o755)
    else:
        program.symlink_to(Path(sys.executable).with_name("llamapool"))


class ForkedPopen(subprocess.Popen[Any]):
    """A process of this Python (``-c`` or ``-m``) that is forked. Other commands are started as usual."""

    _status: socket.socket | None = None

    def _execute_child(self, args: Any, *more: Any) -> None:
        (_, _, _, pass_fds, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite) = more[:15]
        start_new_session = more[20]
        own_python = not isinstance(args, str) and args[0] == sys.executable and not {"-c", "-m"}.isdisjoint(args)
        if not own_python or any(name.startswith(_LOADING) and name not in os.environ for name in env or ()):
            super()._execute_child(args, *more)  # type: ignore[misc]
            return
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(_forker())
        own = [fd if fd != -1 else default for default, fd in enumerate((p2cread, c2pwrite, errwrite))]
        request = {
            "argv": [os.fspath(word) for word in args[1:]],
            "environment": dict(os.environ if env is None else env),
            "cwd": os.fspath(cwd or os.getcwd()),
            "session": start_new_session,
            "parent": os.getpid(),
            "fds": [0, 1, 2, *pass_fds],
        }
        socket.send_fds(connection, [b"\n"], [*own, *pass_fds])
        connection.sendall(json.dumps(request).encode() + b"\n")
        self.pid, self._child_created, self._status = int(_line(connection)), True, connection
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self._status is None:
            return super()._internal_poll(*_, **__)  # type: ignore[misc,no-any-return]
        try:
            return self._wait(0)
        except subprocess.TimeoutExpired:
            return None

    def _wait(self, timeout: float | None) -> int:
        if self._status is None:
            return super()._wait(timeout)  # type: ignore[misc,no-any-return]
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                milliseconds = None if timeout is None else max(timeout, 0) * 1000
                poll = select.poll()
                poll.register(self._status, select.POLLIN)
                if not poll.poll(milliseconds):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                self.returncode = int(_line(self._status) or -signal.SIGKILL)
                self._status.close()
        return self.returncode


run, Popen = subprocess.run, subprocess.Popen
if FORKS:
    Popen = ForkedPopen
    run = FunctionType(subprocess.run.__code__, {**vars(subprocess), "Popen": ForkedPopen})
    run.__kwdefaults__ = subprocess.run.__kwdefaults__


def _line(connection: socket.socket) -> bytes:
    """Read a line, without its end."""
    line = b""
    while (byte := connection.recv(1)) not in (b"", b"\n"):
        line += byte
    return line


@cache
def _forker() -> str:
    """Start the process that forks, and return the path of its socket."""
    if _FORKER_SOCKET:
        return _FORKER_SOCKET[0]
    folder = tempfile.TemporaryDirectory(prefix="forker-")
    path = f"{folder.name}/socket"
    forker = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forked_python", path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    atexit.register(folder.cleanup)
    atexit.register(forker.communicate)  # closes its stdin, which ends it
    assert forker.stdout is not None
    assert forker.stdout.readline(), "the process that forks has exited"
    return path


def main(path: str) -> None:
    """Fork for each connection to the socket until stdin ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        fds = socket.recv_fds(connection, 1, 64)[1]
        request = json.loads(connection.makefile("rb").readline() or "null")
        if request:  # otherwise the client was killed before it sent the request
            _import(request["argv"])
            if os.fork() == 0:
                listener.close()
                _FORKER_SOCKET.append(path)
                _watch(connection, fds, request)
                return
        for fd in (*fds, connection.detach()):
            os.close(fd)


def _import(argv: list[str]) -> None:
    names = {name for word in argv for found in _MODULE.findall(word) for name in found if name}
    names.update(IMPORTS.get(argv[argv.index("-m") + 1], ()) if "-m" in argv else ())
    for name in names:
        importlib.import_module(name)
    gc.freeze()


def _watch(connection: socket.socket, fds: list[int], request: dict[str, Any]) -> None:
    """Fork the process, report its id and its status, and exit. Returns in the new process, which runs the program."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        for fd in fds:
            os.close(fd)
        Thread(target=_kill_with_parent, args=(connection, pid), daemon=True).start()
        with suppress(OSError):  # the parent has exited
            connection.sendall(b"%d\n" % pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(OSError):
            connection.sendall(b"%d\n" % status)
        os._exit(0)
    connection.close()
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, _FREE_FD) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, target in zip(moved, request["fds"], strict=True):
        os.dup2(fd, target)
        os.close(fd)
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.getppid = lambda: int(request["parent"])
    _run(request["argv"])


def _kill_with_parent(connection: socket.socket, pid: int) -> None:
    """Kill the process when the other end of the connection is closed."""
    with suppress(OSError):
        connection.recv(1)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _run(argv: list[str]) -> None:
    """Run ``python ARGV``."""
    at = next(i for i, word in enumerate(argv) if word in ("-c", "-m"))
    if argv[at] == "-c":
        sys.argv = ["-c", *argv[at + 2 :]]
        exec(compile(argv[at + 1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        if argv[at + 1] == "server":
            install(sys.modules["server.sandbox.process"])
        sys.argv = [argv[at + 1], *argv[at + 2 :]]
        runpy.run_module(argv[at + 1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
