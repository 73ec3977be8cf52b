"""Another process that wants the machine: it keeps one core busy for as long as a block runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOOP = """
import os, sys
if core := sys.argv[1]:
    os.sched_setaffinity(0, {int(core)})
print("busy", flush=True)
while True:
    pass
"""


@contextmanager
def busy_core() -> Iterator[None]:
    """Pinned to the last core that this process may use, where the system knows pinning."""
    core = str(max(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ""
    process = subprocess.Popen([sys.executable, "-S", "-c", _LOOP, core], stdout=subprocess.PIPE)  # noqa: S603 - our own
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()
