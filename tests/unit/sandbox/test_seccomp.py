"""The seccomp filter of sandbox processes: permitted and refused system calls."""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest

from server.sandbox import seccomp
from server.sandbox.process import Processes, WorkLimits

if sys.platform != "linux" or os.uname().machine not in seccomp._ARCHES:
    pytest.skip("no seccomp filter for this machine", allow_module_level=True)  # as in `install_filter`


def _start_thread(_: str) -> None:
    done: list[int] = []
    thread = Thread(target=done.append, args=(1,))
    thread.start()
    thread.join()
    assert done


def _library_call(name: str, *args: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)


def _clone_with_new_network(_: str) -> None:
    stack = ctypes.create_string_buffer(1 << 16)
    pause = ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p)
    top = (ctypes.addressof(stack) + (1 << 15)) & ~15
    memory, files, handlers, thread, new_network = 0x100, 0x400, 0x800, 0x10000, 0x40000000
    flags = memory | files | handlers | thread | new_network
    _library_call("clone", pause, ctypes.c_void_p(top), flags, None)
    os._exit(1)  # the thread would use its stack after it is freed


def _call_32_bit(_: str) -> None:
    getpid = b"\xb8\x14\0\0\0\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
    code = mmap.mmap(-1, len(getpid), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(getpid)
    found = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    if found < 0:
        raise OSError(-found, "int 0x80")


_EXECUTOR = ThreadPoolExecutor(1)
"""Its thread starts before the filter is installed."""

ALLOWED: dict[str, Callable[[str], object]] = {
    "thread": _start_thread,
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
    "target": lambda _: os.readlink(f"/proc/{os.getppid()}/exe"),
    "earlier thread": lambda path: _EXECUTOR.submit(os.unlink, path).result(),
    "delayed signal": lambda _: fcntl.fcntl(2, fcntl.F_SETOWN, os.getppid()),  # sent when the log can be written
    "terminal input": lambda _: fcntl.ioctl(2, termios.TIOCSTI, b"x"),
    "size of the log": lambda _: os.ftruncate(2, 1 << 40),  # without the filter EFBIG
    "mode of the log": lambda _: os.fchmod(2, os.fstat(2).st_mode & 0o777),
    "shared memory": lambda _: _library_call("shmat", 0, None, 0),  # without the filter EINVAL
    "kernel log": lambda _: _library_call("klogctl", 10, None, 0),  # SYSLOG_ACTION_SIZE_BUFFER
    "scheduling": lambda _: os.sched_setparam(os.getppid(), os.sched_param(0)),
    "network namespace": _clone_with_new_network,
    "new system call": lambda path: _library_call(
        "syscall", 463, -100, path.encode(), 0, b"user.a", b"", 0
    ),  # setxattrat
}
if os.uname().machine == "x86_64":
    REFUSED["32-bit system call"] = _call_32_bit


def answerer() -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
    """Return the function of the sandbox process, which runs an action and returns the error number."""
    actions = ALLOWED | REFUSED
    _EXECUTOR.submit(int).result()  # starts its thread

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
    started = Processes(f"{__name__}:answerer", WorkLimits())
    yield started
    started.close()


@pytest.mark.parametrize("name", [*ALLOWED, *REFUSED])
def test_sandbox_process_cannot_affect_anything_outside_itself(processes: Processes, tmp_path: Path, name: str) -> None:
    file = tmp_path / "file"
    file.write_text("unchanged")
    _, error_number = processes.ask(b"a", f"{name}\n{file}".encode())
    assert int(error_number) in ((0,) if name in ALLOWED else (errno.EPERM, errno.ENOSYS))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "unchanged"


def test_filter_is_installed_on_kernels_without_seccomp_get_action_avail() -> None:
    """gVisor and Linux before 4.14 refuse that operation of seccomp(2), and support the others."""
    code = """
import errno, os
from server.sandbox import seccomp as s
call = s._SECCOMP[list(s._ARCHES).index(os.uname().machine)]
code = [(s._LOAD, 0, 0, s._NUMBER), (s._EQUAL, 0, 3, call), (s._LOAD, 0, 0, s._FIRST_ARGUMENT), (s._EQUAL, 0, 1, 2)]
code += [(s._RETURN, 0, 0, s._ERROR | errno.EINVAL), (s._RETURN, 0, 0, s._ALLOW)]
complete, s._program = s._program, lambda _: code
s.install_filter()
s._program = complete
s.install_filter()
try:
    os.fork()
except PermissionError:
    print(s.problem() or "installed")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "installed\n", done.stderr


@pytest.mark.parametrize("machine", seccomp._ARCHES)
def test_all_jumps_of_the_filter_have_targets_inside_it(machine: str) -> None:
    code = seccomp._program(machine)
    for at, (kind, if_true, if_false, _) in enumerate(code):
        assert at + 1 + max(if_true, if_false) < len(code) or kind == seccomp._RETURN
    assert code[-1][0] == seccomp._RETURN
