"""Monitors available memory and kills a sandbox process before it runs out.

`MemoryWatch` compares the available memory of the control group or the machine with a reserve. Below it, the watch
kills the sandbox process that uses the most memory, and its request fails. Growth of the server itself (weights, KV
cells, prompts, compiled grammars) cannot be attributed to a request; ``shortage`` only reports it. `control_groups`
finds the groups whose limits apply, also those of CPUs.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from server.sandbox.process import Process

_MEMINFO = Path("/proc/meminfo")
_CGROUP, _OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_MIN_KILLED_BYTES = 64 << 20
"""Smaller processes are not killed, as they are not the cause of a shortage."""
log = logging.getLogger(__name__)


def control_groups() -> Iterator[Path]:
    """Yield the folders of this process's control group (cgroup v2) and of those that contain it, the root last.

    A container sees its own group as the root; limits of a systemd service (MemoryMax, CPUQuota) are not in the root.
    """
    try:
        lines = os.fsdecode(_OWN_GROUP.read_bytes()).splitlines()
        named = [line.removeprefix("0::") for line in lines if line.startswith("0::/")]
    except OSError:
        named = []
    own = PurePosixPath(named[0] if named else "/")
    for group in (own, *own.parents):
        yield _CGROUP / group.relative_to("/")


def _limits() -> Iterator[tuple[Path, int]]:
    """Yield the control groups that limit memory, with their limits in bytes."""
    for group in control_groups():
        with contextlib.suppress(OSError, ValueError):
            yield group, int((group / "memory.max").read_text())


def total_bytes(otherwise: int) -> int:
    """Return the memory of this process's control groups or of the machine; `otherwise` if unknown."""
    try:
        total = int(_MEMINFO.read_text().split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return otherwise
    return min([total, *(limit for _, limit in _limits())])


def available_bytes() -> int:
    """Return the memory that can be allocated without swapping, within this process's control groups; 0 if unknown.

    ``memory.current`` (cgroup v2) counts cached files, such as a GGUF that was just read, but the kernel evicts them
    when memory is short. So they count as available, as in ``MemAvailable``.
    """
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0
    for group, limit in _limits():
        with contextlib.suppress(OSError, ValueError):
            used = int((group / "memory.current").read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            cached = int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
            available = min(available, limit - used + cached)
    return max(1, available)


class MemoryWatch:
    """Kills sandbox processes when less than `reserve_bytes` are available (0 = never). `at_work` returns the processes
    that work for requests. ``shortage``: the reason why the server should get no more requests; "" = memory is
    sufficient.
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
        message = f"memory is short: {left >> 20} MiB are left, {self._reserve >> 20} are kept free (memory_reserve)"
        if not self.shortage:
            log.error("%s", message)
        self.shortage = message
        sizes = [(process.resident_bytes, process) for process in self._at_work()]
        size, process = max(sizes, key=lambda each: each[0], default=(0, None))
        if process is not None and size >= _MIN_KILLED_BYTES:
            reason = f"the server's memory is short, and this took {size >> 20} MiB"
            log.error("%s: process %d is ended, which takes %d MiB for a request", message, process.pid, size >> 20)
            process.kill(reason)
        return True
