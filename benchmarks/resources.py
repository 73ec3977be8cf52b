"""Read the CPU time and memory of processes from /proc. Linux only."""

import os
import threading
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def idle_percent(pid: int, seconds: float) -> float:
    """Return the CPU use over the next `seconds`, in percent of one core."""
    before, start = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / (time.monotonic() - start)


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    return _status_kb(pid, "VmRSS") / 1024


def peak_mb(pid: int) -> float:
    """Return the peak resident memory of a process."""
    return _status_kb(pid, "VmHWM") / 1024


def with_children(pid: int) -> list[int]:
    """Return a process and all its living descendants."""
    pids = [pid]
    for each in pids:
        try:
            tasks = list(Path(f"/proc/{each}/task").iterdir())
            pids += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process or one of its threads has exited
    return pids


def _status_kb(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(f"/proc/{pid}/status has no {name}")


def cpu_of_threads_s() -> list[tuple[str, float]]:
    """Return the CPU seconds of each thread of this process with its name, "" for threads outside Python."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    return [(names.get(int(at.name), ""), _scheduled_s(at)) for at in Path("/proc/self/task").iterdir()]


def cpu_of_children_s() -> list[tuple[int, float]]:
    """Return the CPU seconds of each living child process with its id."""
    pids = [pid for at in Path("/proc/self/task").iterdir() for pid in (at / "children").read_text().split()]
    return [(int(pid), _scheduled_s(Path(f"/proc/{pid}"))) for pid in pids]


def _scheduled_s(at: Path) -> float:
    """Return the CPU seconds of a thread, or of the first thread of a process, more exactly than `cpu_s`."""
    return int((at / "schedstat").read_text().split()[0]) / 1e9
