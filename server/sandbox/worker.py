"""The child process of `process`: reads requests from standard input and writes replies to standard output.

Each message has a header (`HEAD`: kind, length, and for a reply whether the process can be reused) and a body. The
process cannot open files or connections. It exits when its input ends, and is killed by a signal when a request exceeds
its CPU time.
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
"""The kind of a reply with an error message."""

Answer = Callable[[bytes, bytes], tuple[bytes, bytes]]
"""A function of the kind and the body of a request, which returns the kind and the body of the reply."""


def main(function: str, cpu_s: float, memory_bytes: int, answer_bytes: int) -> None:
    """Serve until the input ends. `function` returns the `Answer`, after loading all modules and files for it."""
    module, _, name = function.partition(":")
    answer: Answer = getattr(importlib.import_module(module), name)()
    requests, replies = open(0, "rb"), open(os.dup(1), "wb")  # noqa: SIM115 - until the process ends
    os.dup2(2, 1)  # a library's output must not mix with replies
    _restrict(memory_bytes)
    while len(head := requests.read(HEAD.size)) == HEAD.size:
        what, size, _ = HEAD.unpack(head)
        request = requests.read(size)
        if len(request) < size:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # SIGPROF ends the process after this CPU time
        try:
            kind, reply = answer(what, request)
        except Exception as error:  # noqa: BLE001 - the reply has any error, such as that of an import
            kind, reply = FAULT, f"{type(error).__name__}: {error}".encode("utf-8", "replace")
        del request
        if len(reply) > answer_bytes:
            kind, reply = FAULT, f"the answer has more than {answer_bytes} bytes".encode()
        # after a MemoryError, the rest of the memory may not suffice for another request
        out_of_memory = kind == FAULT and reply.startswith(MemoryError.__name__.encode())
        replies.write(HEAD.pack(kind, len(reply), not out_of_memory))
        replies.write(reply)
        replies.flush()


def _restrict(memory_bytes: int) -> None:
    """Forbid files, sockets, programs and processes, and limit memory to the current usage plus `memory_bytes`."""
    limit_bytes = _address_space_bytes() + memory_bytes
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    seccomp.install_filter()


def _address_space_bytes() -> int:
    """Return the bytes of the address space in use, most of which large libraries reserve."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux
        return 0
