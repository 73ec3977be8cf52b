"""What a process costs the machine, from /proc: processor time and memory. Linux only, as the rest of these figures."""

import os
import threading
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Processor seconds of the process so far, all threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def idle_percent(pid: int, seconds: float) -> float:
    """Processor use over the next `seconds`, in percent of one core."""
    before, began = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / (time.monotonic() - began)


def resident_mb(pid: int) -> float:
    """Memory that the process holds now."""
    return _status_kb(pid, "VmRSS") / 1024


def peak_mb(pid: int) -> float:
    """The most it ever held."""
    return _status_kb(pid, "VmHWM") / 1024


def with_children(pid: int) -> list[int]:
    """The process, and all that it has started, or they have, and that live."""
    found = [pid]
    for each in found:
        try:
            tasks = list(Path(f"/proc/{each}/task").iterdir())
            found += [int(child) for at in tasks for child in (at / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended, or one of its threads has
    return found


def _status_kb(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(f"/proc/{pid}/status has no {name}")


def cpu_of_threads_s() -> list[tuple[str, float]]:
    """Processor seconds of each of this process' threads so far, with its name ("" for those that are not Python's)."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    return [(names.get(int(at.name), ""), _scheduled_s(at)) for at in Path("/proc/self/task").iterdir()]


def cpu_of_children_s() -> list[tuple[int, float]]:
    """Processor seconds of each process that this one has started and that lives, with its id."""
    pids = [pid for at in Path("/proc/self/task").iterdir() for pid in (at / "children").read_text().split()]
    return [(int(pid), _scheduled_s(Path(f"/proc/{pid}"))) for pid in pids]


def _scheduled_s(at: Path) -> float:
    """To the nanosecond, unlike `cpu_s`; of the first thread of a process."""
    return int((at / "schedstat").read_text().split()[0]) / 1e9
