"""Measure the CPU share of other processes during a measurement.

Others are all processes except this one, its children and the server. CPU time that a hypervisor gave to other machines
(steal) counts, too. With as many compute threads as cores, one other busy process makes a server several times slower.
"""

import os
import time
from pathlib import Path

from benchmarks.resources import cpu_s, with_children

CALM = 0.04
"""A share of all CPUs. Measurements with a larger share of others are repeated."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""idle and iowait in the first line of /proc/stat. Its first eight fields include the times of guests."""


class Others:
    """The CPU time of other processes since the start."""

    def __init__(self, *servers: int) -> None:
        self._servers = servers
        self._started, self._before = time.monotonic(), self._taken_s()

    def share(self) -> float:
        """Return the share of all CPUs since the start, inexact for short times: the kernel counts ticks of 10 ms."""
        taken_s, elapsed_s = self._taken_s() - self._before, time.monotonic() - self._started
        return min(max(taken_s, 0.0) / (elapsed_s * (os.cpu_count() or 1)), 1.0)

    def _taken_s(self) -> float:
        fields = [int(field) for field in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
        busy = sum(ticks for i, ticks in enumerate(fields) if i not in _IDLE) / _TICKS_PER_S
        own = os.times()
        return busy - sum(cpu_s(pid) for server in self._servers for pid in with_children(server)) - sum(own[:4])
