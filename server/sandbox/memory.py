"""Monitors available memory and kills a sandbox process before it runs out.

`MemoryWatch` compares the available memory of the control group or the machine with a reserve. Below it, the watch
kills the sandbox process that uses the most memory, and the request that it works for fails. Growth inside the
server itself (weights, KV cells, prompts, compiled grammars) can't be attributed to a request; `short` only reports
it.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from server.sandbox.process import Process

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_LEAST_BYTES = 64 << 20
"""Of a process that is ended: a smaller one is not why memory is short."""
log = logging.getLogger(__name__)


def total_bytes(otherwise: int) -> int:
    """Memory of this process's control group, or of the machine; `otherwise` when unknown."""
    try:
        total = int(_MEMINFO.read_text().split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return otherwise
    try:
        return min(total, int((_CGROUP / "memory.max").read_text()))
    except (OSError, ValueError):
        return total


def available_bytes() -> int:
    """Return the memory that can be allocated without swapping, within this process's control group; 0 if unknown.

    ``memory.current`` (cgroup v2) counts cached files, but the kernel evicts them under pressure, and a GGUF that
    was just read or downloaded is one. So they count as available here, as in ``MemAvailable``.
    """
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        cached = int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        return available
    return max(1, min(available, limit - used + cached))


class MemoryWatch:
    """``at_work``: returns the sandbox processes that work for requests. ``reserve_bytes``: 0 = no limit. ``shortage``:
    why the server should get no more requests, "" while memory is sufficient.
    """

    def __init__(
        self,
        reserve_bytes: int,
        at_work: Callable[[], Iterable[Process]],
        available: Callable[[], int] = available_bytes,
    ) -> None:
        self._reserve, self._at_work, self._available = reserve_bytes, at_work, available
        self.shortage = ""

    def check(self) -> bool:
        """Check once and return whether memory is low. Logs the start, each killed process, and the end."""
        left = self._available()
        if not 0 < left < self._reserve:
            if self.shortage:
                log.warning("memory is enough again: %d MiB are left", left >> 20)
            self.shortage = ""
            return False
        said = f"memory is short: {left >> 20} MiB are left, {self._reserve >> 20} are kept free (memory_reserve)"
        if not self.shortage:
            log.error("%s", said)
        self.shortage = said
        sizes = [(process.resident_bytes, process) for process in self._at_work()]
        size, process = max(sizes, key=lambda each: each[0], default=(0, None))
        if process is not None and size >= _LEAST_BYTES:
            reason = f"the server's memory is short, and this took {size >> 20} MiB"
            log.error("%s: process %d is ended, which takes %d MiB for a request", said, process.pid, size >> 20)
            process.kill(reason)
        return True
