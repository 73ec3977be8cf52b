"""A sandbox process computes, and reaches nothing outside itself."""

import ctypes
import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from server.sandbox import seccomp
from server.sandbox.process import Processes, WorkLimits

if sys.platform != "linux" or os.uname().machine not in seccomp._ARCHES:
    pytest.skip("no seccomp filter for this machine", allow_module_level=True)  # as `confine` decides


def _in_thread(_: str) -> None:
    done: list[int] = []
    thread = Thread(target=done.append, args=(1,))
    thread.start()
    thread.join()
    assert done


def _library_call(name: str, *args: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)


ALLOWED: dict[str, Callable[[str], object]] = {
    "thread": _in_thread,
    "own limits": lambda _: resource.getrlimit(resource.RLIMIT_AS),
}
REFUSED: dict[str, Callable[[str], object]] = {
    "fork": lambda _: os.fork(),
    "program": lambda _: os.execv("/bin/true", ["true"]),
    "signal": lambda _: os.kill(os.getppid(), 0),
    "other limits": lambda _: resource.prlimit(os.getppid(), resource.RLIMIT_NPROC),
    "limit": lambda _: _library_call("setrlimit", resource.RLIMIT_CPU, (ctypes.c_ulong * 2)(9999, 9999)),
    "trace": lambda _: _library_call("ptrace", 16, 0, 0, 0),  # PTRACE_ATTACH; without the filter ESRCH
    "delete": os.unlink,
    "rename": lambda path: os.rename(path, path + "2"),
    "mode": lambda path: os.chmod(path, 0o777),
    "times": os.utime,
    "truncate": lambda path: os.truncate(path, 0),
    "folder": lambda path: os.mkdir(path + "3"),
    "link": lambda path: os.symlink(path, path + "4"),
}


def answerer() -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
    """Return the function of the sandbox process: runs an action, returns the error's number."""
    actions = ALLOWED | REFUSED

    def answer(_: bytes, request: bytes) -> tuple[bytes, bytes]:
        name, path = request.decode().split("\n")
        try:
            actions[name](path)
        except OSError as error:
            return b"e", str(error.errno).encode()
        return b"e", b"0"

    return answer


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    made = Processes(f"{__name__}:answerer", WorkLimits())
    yield made
    made.close()


@pytest.mark.parametrize("name", [*ALLOWED, *REFUSED])
def test_a_sandbox_process_reaches_nothing_outside_itself(processes: Processes, tmp_path: Path, name: str) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    _, answer = processes.ask(b"a", f"{name}\n{file}".encode())
    assert int(answer) == (0 if name in ALLOWED else errno.EPERM)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "kept"


@pytest.mark.parametrize("machine", seccomp._ARCHES)
def test_every_jump_of_the_filter_ends_inside_it(machine: str) -> None:
    code = seccomp._program(machine)
    for at, (kind, if_true, if_false, _) in enumerate(code):
        assert at + 1 + max(if_true, if_false) < len(code) or kind == seccomp._RETURN
    assert code[-1][0] == seccomp._RETURN
