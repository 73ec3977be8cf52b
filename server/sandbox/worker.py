"""The process behind `process`: reads requests from its standard input, answers on its standard output.

Both ways a head (`HEAD`: kind, bytes, and of an answer whether the process can go on) and a body. The process can open
no file and no connection; it ends with its input, and by a signal when a request takes too much of the processor.
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
"""An answer that says what went wrong."""

Answer = Callable[[bytes, bytes], tuple[bytes, bytes]]
"""What is asked and what is given, to the kind of an answer and the answer."""


def main(function: str, cpu_s: float, memory_bytes: int, answer_bytes: int) -> None:
    """Serve until the input ends. `function` makes the `Answer`, with all modules and files loaded that it needs."""
    module, _, name = function.partition(":")
    answer: Answer = getattr(importlib.import_module(module), name)()
    to = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
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
        short = kind == FAULT and said.startswith(MemoryError.__name__.encode())  # what is left may be too little
        _write(to, HEAD.pack(kind, len(said), not short))
        _write(to, said)


def _confine(memory_bytes: int) -> None:
    """From here on: no file, no socket, and no more memory than what there is and that."""
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
