"""What both engines share: the instances of one model and their step threads."""

import asyncio
import contextlib
import logging
import math
import os
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from typing import Generic, TypeVar

from server.engine.arrivals import Arrivals
from server.engine.params import EngineParams
from server.engine.runner_api import EmbeddingRunner, Runner
from server.engine.stats import EngineStats, combined
from server.errors import InternalError, LlamapoolError, ShuttingDown, Unavailable

log = logging.getLogger(__name__)

MAX_RETRY_AFTER_S = 60
ENGINE_THREADS = ("llamapool-step", "llamapool-embed", "llamapool-encode")
"""Prefixes of the names of threads that call into the native library: step threads, and encoders of media."""
JOIN_POLL_S = 5.0
"""Seconds for which one call waits for the end of such a thread, because a wait in a worker thread cannot be cancelled.
"""


class StepThread(ABC):
    """Instance number `number`: the thread that owns the native context `runner` and is the only one to call into it.

    ``failure``: why it stopped; "" while it runs. ``heartbeat`` increases with each action. ``at_rest``: it waits to be
    woken, or has ended.
    """

    runner: Runner | EmbeddingRunner

    def __init__(
        self, name: str, number: int, params: EngineParams, clock: Callable[[], float], arrivals: Arrivals
    ) -> None:
        self.number = number
        self.params = params
        self.stats = EngineStats()
        self.failure = ""
        self.heartbeat = 0
        self.at_rest = False
        self.last_s = 0.0  # seconds of its last decode
        self._clock = clock
        self._arrivals = arrivals
        self._woken = threading.Event()  # new work, a cancellation, a stop, or a finished preparation
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the step thread, which owns the context from now on."""
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """Fail open requests and end the thread; `join` waits for it. Called on the event loop."""
        self._stopping = True
        self.wake()

    def join(self, timeout_s: float | None = None) -> bool:
        """Block until the thread has freed the context. Return False on timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @abstractmethod
    def give_up(self, error: LlamapoolError) -> None:
        """Fail all requests because the thread does not return from a call. If it returns later, it ends itself. Called
        on the event loop.
        """

    # ---- the step thread

    @abstractmethod
    def _iterate(self) -> None:
        """Run one step; if there is nothing to do, `_rest`."""

    @abstractmethod
    def _fail_all(self, error: LlamapoolError) -> None:
        """Fail all open requests after an unexpected error in an iteration."""

    @abstractmethod
    def _end_all(self, error: LlamapoolError) -> None:
        """Fail all requests, and refuse new ones from now on."""

    def _run(self) -> None:
        try:
            cpus = self.params.cpus  # one set per instance, or one for all
            bind(cpus[self.number % len(cpus)] if cpus else frozenset(), self.params.prio)
            while not self._stopping and not self.failure:
                try:
                    self.heartbeat += 1
                    self._iterate()
                except Exception:
                    log.exception("a step failed; every request of this instance ends; this is a bug, please report it")
                    self._fail_all(InternalError("the engine failed; see the server's log"))
        except BaseException as error:  # no ordinary error: the state of this thread cannot be trusted
            self.failure = f"{type(error).__name__}: {error}"
            log.critical(
                "the step thread has failed; this instance takes no more requests until its model is loaded again",
                exc_info=error,
            )
        try:
            self._end_all(has_failed(self.failure) if self.failure else ShuttingDown("model"))
        finally:
            self.runner.close()
            self.at_rest = True

    @property
    def _is_wanted(self) -> bool:
        return self._woken.is_set() or self._stopping or bool(self.failure)

    def _rest(self, timeout_s: float | None = None) -> None:
        self.at_rest = True
        self._woken.wait(timeout_s)
        self.at_rest = False
        self.heartbeat += 1

    def _gather(self) -> None:
        """Wait for expected requests, at most ``gather_ms``."""
        deadline = self._clock() + self.params.gather_ms / 1e3
        while self._arrivals.expected and not self._stopping and (left := deadline - self._clock()) > 0:
            self._woken.wait(left)
            self._woken.clear()


def has_failed(reason: str) -> InternalError:
    """Return the error for requests of a failed instance."""
    return InternalError(f"the engine has failed and must be reloaded ({reason})")


M = TypeVar("M", bound=StepThread)


class Instances(ABC, Generic[M]):
    """Starts the instances of a model, tracks whether all are idle, and ends them."""

    def __init__(
        self,
        params: EngineParams,
        n_slots_each: int,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.params = params
        self.n_slots_each = n_slots_each
        self._loop = loop
        self._clock = clock
        self._arrivals = Arrivals(
            loop,
            params.gather_ms / 1e3,
            last_step_s=lambda: max(instance.last_s for instance in self._instances),
            is_full=lambda: self.n_load >= self.n_slots,
            wake=self._wake_all,
        )
        self._closing = False
        self._ended = asyncio.Event()  # set whenever a request has ended
        self._instances: Sequence[M] = ()
        self._heartbeats: dict[int, tuple[int, float]] = {}  # last heartbeat of an instance, and since when
        self.hangs = False  # a thread did not return from a step

    def _start(self, instances: Sequence[M]) -> None:
        self._instances = instances
        for instance in instances:
            instance.start()

    def _wake_all(self) -> None:
        for instance in self._instances:
            instance.wake()

    @property
    def n_slots(self) -> int:
        return self.n_slots_each * len(self._instances)

    @property
    @abstractmethod
    def n_load(self) -> int:
        """Waiting and running work; exact on the event loop."""

    @property
    def busy(self) -> bool:
        return self.n_load > 0

    @property
    def failure(self) -> str:
        """Why an instance has failed, "" if none has; the others continue."""
        return next((one.failure for one in self._instances if one.failure), "")

    @property
    def serves(self) -> bool:
        """Whether at least one instance works."""
        return not all(one.failure for one in self._instances)

    def _check_open(self) -> None:
        """Raise `ShuttingDown` or `Unavailable` if no requests are accepted."""
        if self._closing:
            raise ShuttingDown("model")
        if not self.serves:
            raise Unavailable(
                f"the model's engine has failed ({self.failure}); unload the model, then the next request reloads it"
            )

    @property
    def stats(self) -> EngineStats:
        """Totals over the instances; a copy."""
        return reduce(combined, (instance.stats for instance in self._instances), EngineStats())

    def hung(self, limit_s: float) -> list[tuple[M, float]]:
        """Return the instances whose thread has made no progress for `limit_s` seconds, and since how many. Called
        periodically.
        """
        now = self._clock()
        found: list[tuple[M, float]] = []
        for instance in self._instances:
            heartbeat, since = self._heartbeats.get(instance.number, (-1, now))
            if instance.failure or instance.at_rest or instance.heartbeat != heartbeat:
                self._heartbeats[instance.number] = instance.heartbeat, now
            elif now - since >= limit_s:
                found.append((instance, now - since))
        return found

    def check_progress(self, limit_s: float) -> None:
        """Give up the `hung` instances: their requests fail. Their memory stays allocated, because nothing can stop
        the thread. Called periodically.
        """
        for instance, seconds in self.hung(limit_s):
            self.hangs = True
            log.critical(
                "no step has ended for %.0f s; only a restart ends it (isolation: process); every thread:\n%s",
                *(seconds, stacks()),
            )
            instance.failure = f"no step has ended for {seconds:.0f} s"
            instance.give_up(has_failed(instance.failure))

    async def wait_idle(self) -> None:
        """Return when no request waits or runs."""
        await self._until(lambda: not self.busy)

    async def _until(self, is_true: Callable[[], bool]) -> None:
        """Return when `is_true`, which only the end of a request changes."""
        while not is_true():
            self._ended.clear()
            await self._ended.wait()

    def preparing(self) -> AbstractContextManager[None]:
        """Return a context manager around the preparation of a request: idle step threads wait briefly for it."""
        return self._arrivals.preparing()

    async def close(self, drain_s: float = 0.0) -> None:
        """Refuse new requests, give running ones `drain_s` seconds, then fail them and free the contexts."""
        self._closing = True
        if drain_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait_idle(), drain_s)
        for instance in self._instances:
            instance.stop()
        if not all([await self._wait_ended(one.join) for one in self._instances]):
            raise InternalError("a step hangs, so that its memory can't be freed")

    async def _wait_ended(self, join: Callable[[float], bool]) -> bool:
        """Wait until `join` returns True: its thread has ended. Return False when the watchdog has found a hung step.

        A caller that cannot wait for the watchdog cancels this.
        """
        while not await asyncio.to_thread(join, JOIN_POLL_S):
            if self.hangs:
                return False
        return True

    def _on_ended(self) -> None:
        """Record that requests have ended: their clients may send others."""
        self._ended.set()
        self._arrivals.expect()

    def _retry_after_s(self) -> int:
        """Return the seconds until about half of the queue is served at the average rate so far."""
        durations = [instance.stats.request_duration for instance in self._instances]
        n = sum(sum(one.counts) for one in durations)
        mean_s = sum(one.sum for one in durations) / n if n else 1.0
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(mean_s * self.n_load / self.n_slots / 2)))


def stacks() -> str:
    """Return the stack of every thread of the process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"-- {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


NICE = {-1: 5, 0: 0, 1: -5, 2: -10, 3: -20}  # by ``prio`` (llama.cpp common/common.cpp, set_process_priority)
PRIORITIES_BY_THREAD = sys.platform == "linux"  # elsewhere a process has one priority for all threads


def bind(cpus: frozenset[int], prio: int = 0) -> None:
    """Restrict the calling thread, and threads it starts later, to `cpus` as far as permitted, and set their priority.
    A process that is already niced more stays so at -1.

    The library's compute threads are started by the first decode of a step thread (libgomp keeps a team per
    computing thread), so they inherit this. Does nothing without `cpus` and with priority 0. Raises OSError if the
    priority is not permitted.
    """
    if cpus:
        os.sched_setaffinity(0, cpus & os.sched_getaffinity(0))
    if prio:
        nice = NICE[prio]
        os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)) if prio < 0 else nice)


ENCODER_NICE = 10
"""Additional niceness of the encoder thread: it gets about a tenth of a contended CPU, and all of an idle one."""


def yield_to_steps() -> None:
    """Let the calling thread, and threads that it starts later, yield their CPUs to step threads."""
    if PRIORITIES_BY_THREAD:
        nice = os.getpriority(os.PRIO_PROCESS, 0) + ENCODER_NICE
        os.setpriority(os.PRIO_PROCESS, 0, min(nice, 19))
