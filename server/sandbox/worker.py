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
from collections.abc import Callable
from pathlib import Path

from server.sandbox import seccomp

HEAD = struct.Struct("<1sQ?")
FAULT = b"f"
"""A reply with an error message."""

Answer = Callable[[bytes, bytes], tuple[bytes, bytes]]
"""Takes the kind and the body of a request; returns the kind and the body of the reply."""


def main(function: str, cpu_s: float, memory_bytes: int, answer_bytes: int) -> None:
    """Serve until the input ends. `function` makes the `Answer`, with all modules and files loaded that it needs."""
    module, _, name = function.partition(":")
    answer: Answer = getattr(importlib.import_module(module), name)()
    requests, replies = open(0, "rb"), open(os.dup(1), "wb")  # noqa: SIM115 - until the process ends
    os.dup2(2, 1)  # a library's output must not mix with replies
    _confine(memory_bytes)
    while len(head := requests.read(HEAD.size)) == HEAD.size:
        what, size, _ = HEAD.unpack(head)
        request = requests.read(size)
        if len(request) < size:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # the kernel ends the process by SIGPROF after so much CPU time
        try:
            kind, said = answer(what, request)
        except Exception as error:  # noqa: BLE001 - such as an import that finds no file: that is an answer, too
            kind, said = FAULT, f"{type(error).__name__}: {error}".encode("utf-8", "replace")
        del request
        if len(said) > answer_bytes:
            kind, said = FAULT, f"the answer has more than {answer_bytes} bytes".encode()
        # after a MemoryError, what is left may not suffice for another request
        short = kind == FAULT and said.startswith(MemoryError.__name__.encode())
        replies.write(HEAD.pack(kind, len(said), not short))
        replies.write(said)
        replies.flush()


def _confine(memory_bytes: int) -> None:
    """Forbid files, sockets, other programs and processes, and limit memory to the current usage plus this much."""
    most = _mapped() + memory_bytes
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    seccomp.confine()


def _mapped() -> int:
    """Bytes of addresses in use: those of a large library are many more than it touches."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:  # no Linux
        return 0
