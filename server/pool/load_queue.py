"""The queue of models to load: executes the decisions of `policy` and grants leases."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial

from server.errors import ModelFailed, NoRoom
from server.pool import policy
from server.pool.entry import Entry
from server.pool.events import DownloadEnded, FanOut
from server.pool.lifecycle import Lifecycle
from server.pool.memory import Budget, needed
from server.pool.model import Lease
from server.pool.state import LOADABLE, OCCUPYING, Status

log = logging.getLogger(__name__)

RETRY_AFTER_S = 10
POLL_S = 0.05  # an engine doesn't say when it has ended a cancelled request; looked at only while a model waits


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How much the pool holds, and how long it waits. Seconds."""

    models_max: int = 0  # models in memory at a time, sleeping ones not counted; 0 = unlimited
    autoload: bool = True  # whether a request loads an unloaded model
    stop_timeout_s: float = 10.0  # leases' grace when a model is unloaded (llama-server's stop-timeout)
    budget: Budget | None = None  # of memory; None: models are not measured
    wait_s: float = 0.0  # after which requests for a model that finds no room are refused; 0 = they wait for ever
    patience_s: float = 10.0  # after which the first in the queue makes a busy model take no new lease
    retry_failed_s: float = 10.0  # after a failed load, requests get its reason for so long before one tries again
    linger_s: float = 0.0  # for tests of eviction: seconds that a request holds its lease before it starts
    end_s: float = 10.0  # on close, how long a last step and the writing of states may take, until it counts as hung
    abandon_s: float = 5.0  # on close, how long cancelled requests may take to give their leases back


class LoadQueue:
    """The queue of wanted models. After every change `advance` loads, unloads and grants what is due."""

    def __init__(
        self,
        entries: Mapping[str, Entry],
        limits: PoolLimits,
        lifecycle: Lifecycle,
        clock: Callable[[], float],
        fan_out: FanOut,
    ) -> None:
        self.queue: dict[str, float] = {}  # model -> since when it is wanted, in order of arrival
        self.stopped = False
        self._entries = entries
        self._limits = limits
        self._lifecycle = lifecycle
        self._clock = clock
        self._fan_out = fan_out
        self._nudge = asyncio.Event()
        self.budget: Mapping[str, int] = {}  # bytes by device, known once the first model was measured

    # ---- leases

    def lease(self, entry: Entry) -> Lease:
        """A hold on a serving model."""
        assert entry.loaded is not None
        lease = Lease(entry.loaded, partial(self._released, entry))
        entry.leases.add(lease)
        entry.vacant.clear()
        entry.last_used = now = self._clock()
        entry.uses = policy.used_again(entry.uses, now)
        return lease

    def _released(self, entry: Entry, lease: Lease) -> None:
        entry.leases.discard(lease)
        entry.last_used = self._clock()
        if lease.keep_alive_s is not None:
            entry.keep_alive_s = lease.keep_alive_s
            self._nudge.set()
        if not entry.leases:
            entry.vacant.set()
        if self.queue:
            self.advance()

    def _grant(self, entry: Entry) -> None:
        """Grant a lease to every waiter of a serving model."""
        waiters, entry.waiters = entry.waiters, []
        entry.asked = False
        self.queue.pop(entry.id, None)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(self.lease(entry))

    # ---- the queue

    async def wait(self, entry: Entry) -> Lease:
        """Return a lease when it is the model's turn. Raises what ended the wait. May be cancelled at any time."""
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        entry.waiters.append(waiter)
        self.enqueue(entry)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._forget(entry, waiter)
            raise

    def _forget(self, entry: Entry, waiter: asyncio.Future[Lease]) -> None:
        """A waiter was cancelled, perhaps right after it had got its lease."""
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            waiter.result().release()
        if waiter in entry.waiters:
            entry.waiters.remove(waiter)
            if not entry.wanted:
                self.queue.pop(entry.id, None)
            self.advance()

    def enqueue(self, entry: Entry) -> None:
        """Put a wanted model in the queue, unless a load that will serve is under way; its files are fetched first."""
        if (
            entry.download is None
            and entry.status in LOADABLE
            and self._lifecycle.fetcher is not None
            and entry.spec.missing
        ):
            if entry.status is Status.SLEEPING:
                self._lifecycle.forget(entry)
            self.fetch(entry, self._fetched)
        if entry.download is not None:
            return
        if entry.load is None or entry.load.cancelled:
            self.queue.setdefault(entry.id, self._clock())
            self.advance()

    def advance(self) -> None:
        """Execute what the policy decides now."""
        self._decide()
        self._nudge.set()

    def _decide(self) -> None:
        if self.stopped:
            return
        for model in self.queue:
            self._measure(self._entries[model])
        decision = policy.decide(
            self._candidates(),
            [self._waiting(model, since) for model, since in self.queue.items()],
            models_max=self._limits.models_max,
            now=self._clock(),
            patience_s=self._limits.patience_s,
            budget=self.budget,
        )
        for model in decision.left_out:
            log.warning("'%s' is not loaded at the start, as the others leave no room; a request loads it", model)
            del self.queue[model]
            self._entries[model].asked = self._entries[model].starting = False
        for model in decision.evict:
            log.info("unloading '%s', which is idle: other models have no room", model)
            self.drain(self._entries[model], Status.UNLOADED, 0.0)
        for entry in self._entries.values():
            entry.giving_way = entry.id in decision.give_way
            if entry.serving and entry.wanted:
                self._grant(entry)
        for model in decision.load:
            del self.queue[model]
            self._begin_load(self._entries[model])

    def _waiting(self, model: str, since: float) -> policy.Waiting:
        entry = self._entries[model]
        return policy.Waiting(model, since, at_start=entry.starting and not entry.waiters)

    def _candidates(self) -> list[policy.Candidate]:
        sized = self._limits.budget is not None
        return [entry.candidate(sized=sized) for entry in self._entries.values()]

    # ---- bytes

    def _measure(self, entry: Entry) -> None:
        """Begin to, where memory has a budget and the model's share of it isn't known."""
        if self._limits.budget is None or entry.need is not None or entry.sizing is not None or entry.fitting:
            return
        entry.sizing = asyncio.create_task(self._sized(entry, self._limits.budget), name=f"pool: {entry.id}: size")
        entry.sizing.add_done_callback(log_failure)

    async def _sized(self, entry: Entry, budget: Budget) -> None:
        try:
            least, memory = await self._lifecycle.size(entry)
            self.budget = self.budget or (budget.limits(memory) if memory else {})
            entry.need = needed(entry.spec, least, self.budget)
        finally:
            entry.sizing = None
            self.advance()

    def _granted(self, entry: Entry) -> Mapping[str, int] | None:
        """Return what `entry` may take: free memory minus the needs of later waiters; None without a budget."""
        if self._limits.budget is None:
            return None
        others = [self._entries[model].need or {} for model in self.queue]
        need = entry.need or {}
        free = {device: n - self.taken().get(device, 0) for device, n in self.budget.items()}
        spared = {device: n - sum(other.get(device, 0) for other in others) for device, n in free.items()}
        return {device: max(0, min(n, max(spared[device], need.get(device, 0)))) for device, n in free.items()}

    def taken(self, *, at_least: bool = False) -> dict[str, int]:
        """Bytes by device that models hold, or may take; `at_least`: that they are sure to."""
        found: dict[str, int] = {}
        for entry in self._entries.values():
            if entry.status in OCCUPYING:
                taken = entry.need or {} if at_least and entry.fitting else entry.taken
                found |= {device: found.get(device, 0) + n for device, n in taken.items()}
        return found

    def _share_caches(self) -> None:
        """Divide what models leave of the budget among the caches of generating models."""
        if self._limits.budget is None:
            return
        engines = [e.loaded.generator for e in self._entries.values() if e.loaded is not None and e.loaded.generator]
        n_bytes = self._limits.budget.for_caches(self.budget, self.taken(at_least=True))
        for engine in engines:
            engine.limit_caches(n_bytes // len(engines) if n_bytes >= 0 else n_bytes)

    # ---- downloading, loading and freeing

    def fetch(self, entry: Entry, then: Callable[[Entry, bool], Awaitable[None]]) -> None:
        """Start downloading a model's files; `then` is called with whether they exist."""
        self._lifecycle.begin_download(entry)
        self._spawn(entry, self._download(entry, then))

    async def _download(self, entry: Entry, then: Callable[[Entry, bool], Awaitable[None]]) -> None:
        ok = False
        try:
            ok = await self._lifecycle.download(entry)
        finally:
            await then(entry, ok)
            self._fan_out.publish(DownloadEnded(entry.id, ok))

    async def _fetched(self, entry: Entry, ok: bool) -> None:
        """Continue the load of a downloaded model if it is still wanted."""
        if entry.status is Status.FAILED:
            entry.starting = False
            entry.refuse(lambda: ModelFailed(entry.id, entry.failure))
        if entry.wanted and not self.stopped:
            self.enqueue(entry)

    def _begin_load(self, entry: Entry) -> None:
        self._lifecycle.begin_load(entry, self._granted(entry))
        self._share_caches()
        self._spawn(entry, self._load(entry))

    async def _load(self, entry: Entry) -> None:
        try:
            await self._lifecycle.load(entry, fitted=self._fitted)
        finally:
            entry.starting = False
            self._share_caches()
            if entry.status is Status.READY:
                self._grant(entry)
            elif entry.status is Status.FAILED:
                entry.refuse(lambda: ModelFailed(entry.id, entry.failure))
            self.advance()

    def _fitted(self) -> None:
        self._share_caches()  # before the load takes what they hold
        self.advance()

    def drain(self, entry: Entry, target: Status, grace_s: float) -> None:
        """Begin to free a ready model, which then is `target`."""
        self._lifecycle.begin_drain(entry, target)
        self._spawn(entry, self._drain(entry, grace_s))

    async def _drain(self, entry: Entry, grace_s: float) -> None:
        try:
            await self._lifecycle.drain(entry, grace_s)
        finally:
            self._share_caches()
            self.advance()

    def _spawn(self, entry: Entry, work: Coroutine[None, None, None]) -> None:
        entry.task = asyncio.create_task(work, name=f"pool: {entry.id}: {entry.status}")
        entry.task.add_done_callback(log_failure)

    # ---- time

    async def keep(self) -> None:
        """Tick whenever it is time to, for ever."""
        while True:
            self._nudge.clear()
            delay_s = self.tick()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._nudge.wait()

    def tick(self) -> float | None:
        """Do what is due by the clock; return the seconds until the next tick, None = after the next change."""
        now = self._clock()
        for entry in self._entries.values():
            if entry.status is Status.READY and not entry.leases and not entry.idle:
                entry.last_used = now  # the last step of a request whose client has left
        if not self.stopped:
            for model in policy.overdue(self._candidates(), now):
                self.drain(self._entries[model], Status.SLEEPING, 0.0)
        self._decide()
        self._refuse_late(now)
        if self.queue:
            return POLL_S
        due = policy.next_sleep(self._candidates(), now)
        return None if due is None else max(due - now, POLL_S)

    def _refuse_late(self, now: float) -> None:
        """Requests don't wait for room for ever."""
        wait_s = self._limits.wait_s
        late = [model for model, since in self.queue.items() if wait_s and now - since >= wait_s]
        for model in late:
            entry = self._entries[model]
            if entry.starting:
                continue  # nobody asked for it with a request
            del self.queue[model]
            entry.refuse(partial(NoRoom, model, wait_s, RETRY_AFTER_S))


def log_failure(task: asyncio.Task[None]) -> None:
    """Log the exception of a task that nobody awaits."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed; this is a bug, please report it", task.get_name(), exc_info=error)
