"""Measured worker processes. Each handles one item at a time and is killed if the item exceeds a limit.

The parent survives endless loops, runaway allocations and crashes of its workers.
"""

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Generic, TypeVar

from benchmarks.resources import peak_mb, resident_mb, with_children

Item = TypeVar("Item")
Result = TypeVar("Result")

_POLL_S = 0.05
_START_S = 120.0
_REPLACE_MB = 100.0  # more retained memory would hide the use of the next item


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an item: ``cpu_s`` CPU seconds, ten times that in wall time, and ``mb`` of additional memory."""

    cpu_s: float = 20.0
    mb: float = 2000.0


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Item, Result]):
    """``result`` is None if the worker was killed or died, which ``died`` explains.

    ``mb``: peak memory of the worker and its children beyond that of a new worker.
    """

    item: Item
    result: Result | None
    died: str
    cpu_s: float
    mb: float


class _Worker(Generic[Item, Result]):
    def __init__(self, make: Callable[[], Callable[[Item], Result]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, worker_end = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(worker_end, make), daemon=False)
        self.process.start()
        worker_end.close()
        if not self.connection.poll(_START_S) or self.connection.recv() is not None:
            raise RuntimeError("a worker did not start")
        self.fresh_mb = self.resident_mb()
        self.item: Item | None = None

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def give(self, item: Item) -> None:
        self.item, self.started, self.mb = item, time.monotonic(), 0.0
        for pid in with_children(self.pid):
            with suppress(OSError):  # without it, the peak is that of all items
                Path(f"/proc/{pid}/clear_refs").write_text("5")
        self.cpu_before = tree_cpu_s(self.pid)
        self.connection.send(item)

    def observe(self, *, peak: bool) -> None:
        """Update ``mb`` from the kernel's peak of this item (``peak``), or from the current memory."""
        self.mb = max(self.mb, self._sum_mb(peak_mb if peak else resident_mb) - self.fresh_mb)

    def resident_mb(self) -> float:
        """Return the resident memory of the worker and its children."""
        return self._sum_mb(resident_mb)

    def _sum_mb(self, memory_of: Callable[[int], float]) -> float:
        total = 0.0
        for pid in with_children(self.pid):
            with suppress(OSError, LookupError):
                total += memory_of(pid)
        return total

    def spent_cpu_s(self) -> float:
        return max(0.0, tree_cpu_s(self.pid) - self.cpu_before)

    def exceeded(self, limits: Limits) -> str:
        """Return which limit the item exceeds, "" if none."""
        self.observe(peak=False)
        if self.mb > limits.mb:
            return f"killed after {limits.mb:g} MB"
        wall_s = time.monotonic() - self.started
        if self.spent_cpu_s() > limits.cpu_s or wall_s > 10 * limits.cpu_s:
            return f"killed after {limits.cpu_s:g} s"
        return ""

    def stop(self) -> None:
        for pid in with_children(self.pid)[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.connection.close()


def tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its children, including those that have exited."""
    ticks = 0
    for each in with_children(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(
    make: Callable[[], Callable[[Item], Result]], items: Iterable[Item], n_workers: int, limits: Limits
) -> Iterator[Outcome[Item, Result]]:
    """Yield the outcome of ``make()(item)`` for each item, in the order of completion.

    ``make`` runs once in each worker. A worker that was killed, died or retains much memory is replaced.
    """
    waiting = iter(items)
    workers: list[_Worker[Item, Result]] = []
    try:
        workers += [_Worker(make) for _ in range(n_workers)]
        busy: list[_Worker[Item, Result]] = []
        idle = list(workers)
        while True:
            while idle and (item := next(waiting, None)) is not None:
                worker = idle.pop()
                worker.give(item)
                busy.append(worker)
            if not busy:
                return
            ready = wait([worker.connection for worker in busy], _POLL_S)
            for worker in list(busy):
                outcome = _outcome(worker, limits, ready=worker.connection in ready)
                if outcome is None:
                    continue
                busy.remove(worker)
                if outcome.result is None or worker.resident_mb() - worker.fresh_mb > _REPLACE_MB:
                    worker.stop()
                    workers.remove(worker)
                    worker = _Worker(make)  # noqa: PLW2901
                    workers.append(worker)
                idle.append(worker)
                yield outcome
    finally:
        for worker in workers:
            worker.stop()


def _outcome(worker: _Worker[Item, Result], limits: Limits, *, ready: bool) -> Outcome[Item, Result] | None:
    assert worker.item is not None
    died, result = "", None
    if ready:
        try:
            result = worker.connection.recv()
        except EOFError:
            worker.process.join()
            return Outcome(worker.item, None, f"died with exit code {worker.process.exitcode}", 0.0, worker.mb)
        worker.observe(peak=True)
    elif not (died := worker.exceeded(limits)):
        return None
    return Outcome(worker.item, result, died, worker.spent_cpu_s(), worker.mb)


def _serve(connection: Connection, make: Callable[[], Callable[[Item], Result]]) -> None:
    handle = make()
    _trim()
    connection.send(None)
    while True:
        try:
            item = connection.recv()
        except EOFError:
            return
        result = handle(item)
        _trim()
        with suppress(BrokenPipeError):  # the parent has stopped the run
            connection.send(result)


def _trim() -> None:
    """Return freed memory to the system, so that the next item's use is visible (glibc)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
