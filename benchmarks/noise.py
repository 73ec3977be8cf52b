"""How quiet the machine was: what of its processors others took while something was measured.

Others are all processes but the measuring one, its children, and the server; what a hypervisor kept for other
machines (steal) counts, too. With as many compute threads as cores, one other busy process makes any server several
times slower.
"""

import os
import time
from pathlib import Path

from benchmarks.resources import cpu_s, with_children

CALM = 0.04
"""A share of all processors; what was measured beside more is measured again."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""idle and iowait of /proc/stat's first line. The first eight fields are all there is: guests are in them."""


class Others:
    def __init__(self, *servers: int) -> None:
        self._servers = servers
        self._began, self._before = time.monotonic(), self._taken_s()

    def share(self) -> float:
        """Of all processors, since the beginning. The kernel counts ticks of 10 ms: a moment's share says little."""
        took, elapsed = self._taken_s() - self._before, time.monotonic() - self._began
        return min(max(took, 0.0) / (elapsed * (os.cpu_count() or 1)), 1.0)

    def _taken_s(self) -> float:
        fields = [int(field) for field in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
        busy = sum(ticks for i, ticks in enumerate(fields) if i not in _IDLE) / _TICKS_PER_S
        mine = os.times()
        return busy - sum(cpu_s(pid) for server in self._servers for pid in with_children(server)) - sum(mine[:4])
