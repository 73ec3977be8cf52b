"""The child process of `process`: reads requests from standard input and writes replies to standard output.

Each message has a header (`HEAD`: kind, length, and for a reply whether the process can be reused) and a body. The
process can't open files or connections. It exits when its input ends, and by a signal when a request exceeds its CPU
time.
"""

import importlib
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path

HEAD = struct.Struct("<1sQ?")
FAULT = b"f"
"""A reply with an error message."""

Answer = Callable[[bytes, bytes], tuple[bytes, bytes]]
"""Takes the kind and the body of a request; returns the kind and the body of the reply."""


def main(function: str, cpu_s: float, memory_bytes: int, answer_bytes: int) -> None:
    """Serve until the input ends. `function` makes the `Answer`, with all modules and files loaded that it needs."""
    module, _, name = function.partition(":")
    answer: Answer = getattr(importlib.import_module(module), name)()
    to = os.dup(1)
    os.dup2(2, 1)  # a library's output must not mix with replies
    _confine(memory_bytes)
    while True:
        what, size, _ = HEAD.unpack(_read(HEAD.size))
        request = _read(size)
        _allow(cpu_s)
        try:
            kind, said = answer(what, request)
        except Exception as error:  # noqa: BLE001 - such as an import that finds no file: that is an answer, too
            kind, said = FAULT, f"{type(error).__name__}: {error}".encode("utf-8", "replace")
        del request
        if len(said) > answer_bytes:
            kind, said = FAULT, f"the answer has more than {answer_bytes} bytes".encode()
        short = kind == FAULT and said.startswith(
            MemoryError.__name__.encode()
        )  # the remaining CPU time may not suffice
        _write(to, HEAD.pack(kind, len(said), not short))
        _write(to, said)


def _confine(memory_bytes: int) -> None:
    """Forbid files and sockets, and limit memory to the current usage plus this much."""
    most = _mapped() + memory_bytes
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _mapped() -> int:
    """Bytes of addresses in use: those of a large library are many more than it touches."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:  # no Linux
        return 0


def _allow(cpu_s: float) -> None:
    """Let the kernel end the process by SIGPROF after `cpu_s` more seconds of CPU time."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def _read(n_bytes: int) -> bytes:
    parts: list[bytes] = []
    while n_bytes:
        part = os.read(0, min(n_bytes, 1 << 20))
        if not part:
            sys.exit(0)
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)


def _write(to: int, answer: bytes) -> None:
    view = memoryview(answer)
    while view:
        view = view[os.write(to, view) :]
