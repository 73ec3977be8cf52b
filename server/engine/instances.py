"""What every engine is: the instances of one model behind one door. Everything here runs on the event loop."""

import asyncio
import contextlib
import logging
import math
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Generic, Protocol, TypeVar

from server.engine.params import EngineParams
from server.engine.stats import EngineStats, combined
from server.errors import InternalError, ShuttingDown, Unavailable

log = logging.getLogger(__name__)

MAX_RETRY_AFTER_S = 60
HUNG_S = 5.0
"""For a thread that hung to come back when the model is freed."""


class Member(Protocol):
    """One instance, as far as all of them are alike."""

    stats: EngineStats
    failure: str  # why its thread steps no more; "" while it does
    pulse: int  # grows with all that its thread does
    at_rest: bool  # its thread waits to be woken

    def start(self) -> None: ...
    def wake(self) -> None: ...
    def stop(self) -> None: ...
    def join(self, timeout_s: float | None = None) -> bool: ...
    def give_up(self, reason: str) -> None: ...


M = TypeVar("M", bound=Member)


class Instances(ABC, Generic[M]):
    """Starts its instances, knows when all are idle, and ends them."""

    def __init__(self, params: EngineParams, n_slots_each: int, clock: Callable[[], float]) -> None:
        self.params = params
        self.n_slots_each = n_slots_each
        self._clock = clock
        self._n_preparing = 0
        self._closing = False
        self._idle = asyncio.Event()
        self._instances: Sequence[M] = ()
        self._pulses: dict[int, tuple[int, float]] = {}  # what was seen of an instance last, and since when
        self.hangs = False  # a thread did not come back from a step

    def _start(self, instances: Sequence[M]) -> None:
        self._instances = instances
        for instance in instances:
            instance.start()

    @property
    def n_slots(self) -> int:
        """Slots of all instances."""
        return self.n_slots_each * len(self._instances)

    @property
    @abstractmethod
    def n_load(self) -> int:
        """What waits or runs; exact on the event loop."""

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return self.n_load > 0

    @property
    def failure(self) -> str:
        """Why an instance no longer steps, when one has failed; the others go on."""
        return next((one.failure for one in self._instances if one.failure), "")

    @property
    def serves(self) -> bool:
        """Whether an instance is left that can."""
        return not all(one.failure for one in self._instances)

    def _check_open(self) -> None:
        """Raises `ShuttingDown` or `Unavailable` when nothing can be asked of it any more."""
        if self._closing:
            raise ShuttingDown("model")
        if not self.serves:
            raise Unavailable(
                f"the model's engine has failed ({self.failure}); unload the model to have it loaded anew"
            )

    @property
    def stats(self) -> EngineStats:
        """Totals over the instances; a copy."""
        return reduce(combined, (instance.stats for instance in self._instances), EngineStats())

    @property
    def pulses(self) -> tuple[tuple[int, bool], ...]:
        """Of each instance its pulse, and whether it waits for work or for the end."""
        return tuple((one.pulse, one.at_rest or bool(one.failure)) for one in self._instances)

    def check_progress(self, limit_s: float) -> None:
        """To be called now and then: an instance whose thread has been at one thing for `limit_s` seconds is given up,
        and its requests end. What the thread holds stays in memory: nothing can stop it."""
        now = self._clock()
        for i, instance in enumerate(self._instances):
            pulse, since = self._pulses.get(i, (-1, now))
            if instance.failure or instance.at_rest or instance.pulse != pulse:
                self._pulses[i] = instance.pulse, now
            elif now - since >= limit_s:
                self.hangs = True
                log.critical(
                    "no step has ended for %.0f s; only a restart ends it (isolation: process); every thread:\n%s",
                    now - since,
                    stacks(),
                )
                instance.give_up(f"no step has ended for {now - since:.0f} s")

    async def wait_idle(self) -> None:
        """Return when no request waits or runs."""
        if self.busy:
            await self._idle.wait()

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Around the preparation of a request: the step threads give it a moment to join the next batch."""
        self._n_preparing += 1
        try:
            yield
        finally:
            self._n_preparing -= 1
            if self._n_preparing == 0:
                for instance in self._instances:
                    instance.wake()

    async def close(self, drain_s: float = 0.0) -> None:
        """Take no more requests, give the running ones `drain_s` seconds, then fail them and free the contexts."""
        self._closing = True
        if drain_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait_idle(), drain_s)
        for instance in self._instances:
            instance.stop()
        joined = [await asyncio.to_thread(one.join, HUNG_S if self.hangs else None) for one in self._instances]
        if not all(joined):
            raise InternalError("a step hangs, so that its memory can't be freed")

    def _one_is_idle(self) -> None:
        if not self.busy:
            self._idle.set()

    def _count_preparing(self) -> int:
        return self._n_preparing

    def _retry_after_s(self) -> int:
        """Seconds until about half of the queue is gone, at the pace of the requests so far."""
        durations = [instance.stats.request_duration for instance in self._instances]
        n = sum(sum(one.counts) for one in durations)
        mean_s = sum(one.sum for one in durations) / n if n else 1.0
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(mean_s * self.n_load / self.n_slots / 2)))


def stacks() -> str:
    """Where every thread of the process is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"-- {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
