"""The scheduler of models: executes the decisions of `policy` by downloading, loading and freeing models."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TypeVar

from server.engine.lora import default_set
from server.errors import InternalError, LlamapoolError, ModelFailed, NoRoom
from server.pool import policy
from server.pool.admission import MemoryAdmission
from server.pool.entry import Download, Entry, log_failure
from server.pool.events import DownloadEnded, DownloadProgress, FanOut, LoadProgress, StatusChanged
from server.pool.loading import Factories, Load
from server.pool.memory import Budget, held, readable, totals
from server.pool.model import Lease, LoadedModel
from server.pool.protocols import Fetcher, FileProgress
from server.pool.spec import ModelSpec
from server.pool.state import LOADABLE, NO_ROOM, TRANSITIONS, ModelFacts, Status
from server.pool.worker.loaders import Loaders
from server.pool.worker.parent import WorkerProcess

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CONCURRENT_DOWNLOADS = 4
RETRY_AFTER_S = 10
HEALTHY_S = 60.0  # a process that ran this long is restarted without a pause
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0  # between later restarts of a process
POLL_S = 0.05  # interval of ticks while a model waits: an engine does not report the end of cancelled requests


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits on the number and memory of models, and on waits."""

    models_max: int = 0  # models in memory, without sleeping ones; 0 = unlimited
    autoload: bool = True  # whether a request loads an unloaded model
    stop_timeout_s: float = 10.0  # for leases on a model that is unloaded (llama-server's stop-timeout)
    budget: Budget = field(default_factory=Budget)  # of memory
    wait_s: float = 0.0  # after which a request for a model that does not fit is refused; 0 = never
    patience_s: float = 10.0  # after which busy models get no new leases, so that the first of the queue can load
    retry_failed_s: float = 10.0  # after a failed load, in which requests get its reason instead of another load
    linger_s: float = 0.0  # for tests of eviction: seconds that a request holds its lease before it starts
    end_s: float = 10.0  # on close, for the last step and for writing states; later they count as hung
    abandon_s: float = 5.0  # on close, for cancelled requests to release their leases


class Scheduler:
    """The queue of requested models. After every change, `advance` loads and unloads models and grants leases.

    Loads, downloads and drains change the status of one entry (`TRANSITIONS`) and publish each change. They start
    immediately and continue in the entry's task.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        limits: PoolLimits,
        loaders: Loaders,
        factories: Factories,
        fan_out: FanOut,
        threads: Executor,
        clock: Callable[[], float],
        fetcher: Fetcher,
    ) -> None:
        self.queue: dict[str, float] = {}  # model -> time from which it may be loaded, in the order of arrival
        self.freeing: set[asyncio.Task[None]] = set()  # models whose processes have ended
        self.stopped = False
        self.memory = MemoryAdmission(limits.budget, entries, loaders, self.in_thread)
        self._entries = entries
        self._limits = limits
        self._loaders = loaders
        self._factories = factories
        self._fan_out = fan_out
        self._threads = threads
        self._clock = clock
        self._fetcher = fetcher
        self._downloads = ThreadPoolExecutor(MAX_CONCURRENT_DOWNLOADS, thread_name_prefix="download")
        self._wake = asyncio.Event()
        self._draining: dict[asyncio.Timeout, float | None] = {}  # see `_limited`

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _quiet(self) -> bool:
        """Return whether no request runs or waits for a model; called in other threads."""
        return all(entry.idle and not entry.waiters for entry in list(self._entries.values()))

    def stop(self, grace_s: float) -> None:
        """Empty the queue, and limit running drains: `grace_s` seconds for leases, fixed limits for later phases."""
        self.stopped = True
        self.queue.clear()
        now = asyncio.get_running_loop().time()
        for timeout, limit_s in self._draining.items():
            when = now + (grace_s if limit_s is None else limit_s)
            if when < (timeout.when() or inf):
                timeout.reschedule(when)

    async def close(self) -> None:
        """Stop downloads, and wait until abandoned loads have ended."""
        self._downloads.shutdown(wait=False)
        await self._loaders.close()

    # ---- leases

    def lease(self, entry: Entry) -> Lease:
        assert entry.loaded is not None
        lease = Lease(entry.loaded, partial(self._released, entry))
        entry.loaded.leases.add(lease)
        entry.loaded.vacant.clear()
        entry.last_used = now = self._clock()
        entry.uses = policy.used_again(entry.uses, now)
        return lease

    def _released(self, entry: Entry, lease: Lease) -> None:
        lease.model.leases.discard(lease)
        entry.last_used = self._clock()
        if lease.keep_alive_s is not None:
            entry.keep_alive_s = lease.keep_alive_s
            self._wake.set()
        if not lease.model.leases:
            lease.model.vacant.set()
        if self.queue:
            self.advance()

    def _grant(self, entry: Entry) -> None:
        waiters, entry.waiters = entry.waiters, {}
        entry.requested = False
        self.queue.pop(entry.id, None)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(self.lease(entry))

    # ---- the queue

    async def wait(self, entry: Entry, *, may_load: bool = True) -> Lease:
        """Return a lease when it is the model's turn. Raises the error with which the request is refused. May be
        cancelled. Without `may_load`, no other model is unloaded for it.
        """
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        if may_load and entry.restarting and entry.without_request and entry.id in self.queue:
            self.queue[entry.id] = max(self.queue.pop(entry.id), self._clock())  # its place is that of the request
        if not entry.waiters:
            entry.asked_at = self._clock()
        entry.waiters[waiter] = may_load
        self.enqueue(entry)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._remove_waiter(entry, waiter)
            raise

    def _remove_waiter(self, entry: Entry, waiter: asyncio.Future[Lease]) -> None:
        """Remove a cancelled waiter, which may have been granted its lease in the same step."""
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            waiter.result().release()
        if waiter in entry.waiters:
            del entry.waiters[waiter]
            if not entry.wanted:
                self.queue.pop(entry.id, None)
            self.advance()

    def enqueue(self, entry: Entry, pause_s: float = 0.0) -> None:
        """Queue a requested model, unless it is being replaced or loaded. Missing files are downloaded first. After
        `pause_s` seconds, the model is measured if its files changed, and then loaded.
        """
        if entry.n_replacing:
            return
        if self.fetch_missing(entry) or entry.download is not None:
            return
        if entry.load is None or entry.load.cancelled:
            if entry.id not in self.queue:
                self.queue[entry.id] = self._clock() + pause_s
                entry.compared = False
            self.advance()

    def advance(self) -> None:
        """Execute what the policy decides now."""
        self._decide()
        self._wake.set()

    def _decide(self) -> None:
        if self.stopped:
            return
        entries, now = self._entries, self._clock()
        due = {model: since for model, since in self.queue.items() if since <= now}
        for model in due:
            self._measure(entries[model])
        shared = self.memory.shared()
        decision = policy.decide(
            [entry.candidate(shared.get(entry.id, {}), self.memory.budget) for entry in entries.values()],
            due,
            models_max=self._limits.models_max,
            now=now,
            patience_s=self._limits.patience_s,
            budget=self.memory.budget,
        )
        for model in decision.left_out:
            if entries[model].requested and entries[model].failure != NO_ROOM:
                log.warning("'%s' is not loaded, as the others leave no room; a request loads it", model)
            entries[model].starting = False
            entries[model].refuse(partial(ModelFailed, model, NO_ROOM))
            self._dequeue_unfit(entries[model])
        for model in decision.evict:
            log.info("unloading idle model '%s' for other models", model)
            self.drain(entries[model], Status.UNLOADED, 0.0)
        for entry in entries.values():
            entry.giving_way = entry.id in decision.give_way
            if entry.serving and entry.wanted:
                self._grant(entry)
        for model in decision.load:
            del self.queue[model]
            self._start_load(entries[model])

    def _dequeue_unfit(self, entry: Entry) -> None:
        """Remove a model that does not fit from the queue. A pinned or startup model whose process has ended is queued
        again after a pause.
        """
        del self.queue[entry.id]
        if entry.restarting and (entry.pinned or entry.spec.load == "startup"):
            entry.failure, entry.requested = NO_ROOM, True
            self.queue[entry.id], entry.compared = self._clock() + FIRST_PAUSE_S, False
        elif entry.restarting:
            self.forget(entry)

    # ---- loading

    def _measure(self, entry: Entry) -> None:
        """Start to measure a model, unless it is measured or being measured."""
        is_measured = entry.compared and entry.measured is not None
        if not is_measured and entry.sizing is None and not entry.fitting:
            entry.sizing = asyncio.create_task(self._measure_or_fail(entry), name=f"pool: {entry.id}: size")
            entry.sizing.add_done_callback(log_failure)
            entry.sizing.add_done_callback(lambda _: self._end_measure(entry))

    async def _measure_or_fail(self, entry: Entry) -> None:
        """Measure a model. If its file cannot be loaded, fail it before others are unloaded for it."""
        try:
            await self.memory.measure(entry)
        except ModelFailed as error:
            if entry.status not in LOADABLE:
                entry.measured, entry.compared = {}, True
            elif self.queue.pop(entry.id, None) is not None:  # it is still queued
                self._set_status(entry, Status.LOADING)
                self._not_loaded(entry, entry.spec, error)
                self._handle_failure(entry)

    def _end_measure(self, entry: Entry) -> None:
        """Permit another measurement. A callback, as a task that is cancelled before it starts runs no `finally`."""
        entry.sizing = None
        self.advance()

    def _start_load(self, entry: Entry) -> None:
        """Start a load, after which the entry is READY, FAILED, or UNLOADED if the load was cancelled. No other load
        starts until the size of this one is known, since it may take all free memory.
        """
        loop, granted = asyncio.get_running_loop(), self.memory.granted(entry, self.queue)

        def report(value: float) -> None:
            loop.call_soon_threadsafe(self._progressed, entry, load, value)

        spec = entry.spec if entry.adapters is None else entry.spec.with_adapters(entry.adapters)
        loader = self._loaders.of(entry.spec)
        load = Load(spec, loader, self._factories, report, self._quiet, granted, entry.fit, entry.stamps)
        entry.load = load
        entry.fitting = True
        self.memory.reserve(entry, granted)
        entry.after_drain = Status.UNLOADED
        entry.progress = 0.0
        if not entry.restarting:
            entry.failure = ""
        self._set_status(entry, Status.LOADING)
        self.memory.share_caches()
        self._start_task(entry, self._load(entry, load))

    async def _load(self, entry: Entry, load: Load) -> None:
        started = self._clock()
        try:
            fit = await self.in_thread(load.fit)
            self.memory.fitted(entry, fit, load.granted)
            self.rebalance()
            model = await load.loaded(fit, self.in_thread)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            load.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 (a panic of a Rust library also fails the model)
            entry.load = None
            self._loaders.abandon(load.loader)
            self._not_loaded(entry, load.spec, error, cancelled=load.cancelled)
        else:
            entry.load, entry.load_s = None, self._clock() - started
            self._loaded(entry, load, model)
        finally:
            entry.starting = False
            self.memory.share_caches()
            if entry.status is Status.READY:
                self._grant(entry)
            elif entry.status is Status.FAILED:
                self._handle_failure(entry)
            self.advance()

    def _loaded(self, entry: Entry, load: Load, model: LoadedModel) -> None:
        woke = entry.facts is not None
        entry.loaded = model
        if entry.adapters is not None and model.generator is not None:
            model.generator.set_adapter_scales(default_set(entry.adapters))
        entry.adapters = None
        entry.fit = model.fit
        if load.stamps != entry.stamps:  # files were replaced after it was measured
            entry.stamps, entry.measured = load.stamps, None
        measured = model.weights.footprint()
        footprint = held(measured, model.fit)
        entry.facts = ModelFacts(
            *(model.info, model.template, model.n_ctx_seq, model.n_slots, model.loaded_at, footprint, model.fit)
        )
        self.memory.loaded(entry, totals(footprint) if measured else {})
        entry.n_adapter_bytes = sum(adapter.n_bytes for adapter in entry.runtime_adapters) if entry.taken else 0
        entry.progress, entry.failure = 1.0, ""
        entry.last_used = entry.ready_at = self._clock()
        how = "loaded again" if entry.n_restarts else "awake" if woke else "loaded"
        log.info("model '%s' is %s: %s", entry.id, how, described(entry.facts))
        if isinstance(model.weights, WorkerProcess):
            model.weights.ended.add_done_callback(lambda ended: self._ended(entry, model, ended.result()))
        self._set_status(entry, Status.READY, first_load=not woke)

    def _not_loaded(self, entry: Entry, spec: ModelSpec, error: BaseException, *, cancelled: bool = False) -> None:
        entry.progress = 0.0
        entry.facts = entry.measured = entry.fit = None
        entry.taken, entry.fitting = {}, False
        if cancelled or not entry.restarting:
            entry.adapters = None
        if cancelled:
            log.info("the load of model '%s' was cancelled: %s", entry.id, error)
            self._set_status(entry, Status.UNLOADED)
            return
        expected = isinstance(error, LlamapoolError)
        message = error if isinstance(error, ModelFailed) else f"model '{entry.id}' failed to load: {error}"
        log.error("%s", message, exc_info=None if expected else error)
        self._fail(entry, spec.without_folders(_reason(error)))

    def _handle_failure(self, entry: Entry) -> None:
        """Refuse the requests for a model that failed to load; load it again if its process had ended."""
        entry.starting = False
        entry.refuse(lambda: ModelFailed(entry.id, entry.failure))
        if entry.restarting:
            self._restart(entry)

    def _progressed(self, entry: Entry, load: Load, value: float) -> None:
        if entry.load is load and not load.cancelled:
            entry.progress = min(max(value, 0.0), 1.0)
            self._fan_out.publish(LoadProgress(entry.id, entry.progress))

    def _ended(self, entry: Entry, model: LoadedModel, reason: str) -> None:
        """Restart a model whose process has ended, unless it was being freed. Leases on the ended one end later."""
        if entry.loaded is not model or entry.status is not Status.READY:
            return
        model.engines[0].stats.n_restarts += 1
        if model.generator is not None:
            entry.adapters = model.generator.adapters
        if self._clock() - entry.ready_at >= HEALTHY_S:
            entry.n_restarts = 0
        task = asyncio.create_task(self._free(entry, model, 0.0), name=f"pool: {entry.id}: ended")
        self.freeing.add(task)
        task.add_done_callback(self.freeing.discard)
        task.add_done_callback(log_failure)
        entry.loaded, entry.taken, entry.giving_way = None, {}, False
        self._fail(entry, reason)
        self._restart(entry)

    def _restart(self, entry: Entry) -> None:
        """Queue a failed model: immediately the first time, then after growing pauses."""
        pause_s = min(FIRST_PAUSE_S * 2.0 ** (entry.n_restarts - 1), MAX_PAUSE_S) if entry.n_restarts else 0.0
        entry.n_restarts += 1
        entry.requested = True
        log.error("model '%s': %s; it is loaded again in %g s", entry.id, entry.failure, pause_s)
        self.enqueue(entry, pause_s)

    # ---- downloading

    def fetch_missing(self, entry: Entry) -> bool:
        """Start to download a model's missing files; return whether there are any. It is loaded if it is requested."""
        if entry.download is not None or entry.status not in LOADABLE or not entry.spec.missing:
            return False
        if entry.status is Status.SLEEPING:
            self.forget(entry)
        self.fetch(entry, self._fetched)
        return True

    def fetch(self, entry: Entry, ended: Callable[[Entry, bool], Awaitable[None]]) -> None:
        """Start a download, after which the entry is UNLOADED with the paths of its files, FAILED, or UNLOADED because
        the download was cancelled. Then `ended` is called with the entry and whether its files were downloaded.
        """
        entry.download = Download()
        entry.failure = ""
        log.info("model '%s': its files are missing; they are downloaded", entry.id)
        self._set_status(entry, Status.DOWNLOADING)
        self._start_task(entry, self._download(entry, entry.download, ended))

    async def _fetched(self, entry: Entry, ok: bool) -> None:
        """Load a downloaded model if it is still requested."""
        if entry.status is Status.FAILED:
            entry.starting, entry.n_restarts = False, 0
            entry.refuse(lambda: ModelFailed(entry.id, entry.failure))
        if entry.wanted and not self.stopped:
            self.enqueue(entry)

    async def _download(
        self, entry: Entry, download: Download, ended: Callable[[Entry, bool], Awaitable[None]]
    ) -> None:
        loop = asyncio.get_running_loop()
        ok = False

        def received(progress: FileProgress) -> None:
            if entry.download is download and not download.cancelled.is_set():
                download.files[progress.url] = progress
                self._fan_out.publish(DownloadProgress(entry.id, tuple(download.files.values())))

        def report(progress: FileProgress) -> None:
            loop.call_soon_threadsafe(received, progress)

        wanted, fetch = (lambda: not download.cancelled.is_set()), self._fetcher.fetch
        try:
            spec = await loop.run_in_executor(self._downloads, fetch, entry.spec, report, wanted)
        except asyncio.CancelledError:
            download.cancelled.set()
            raise
        except Exception as error:
            entry.download = None
            if download.cancelled.is_set():
                log.info("the download of model '%s' was cancelled", entry.id)
                self._set_status(entry, Status.UNLOADED)
            else:
                log.error(
                    "model '%s' could not be downloaded; the next load tries again: %s",
                    *(entry.id, error),
                    exc_info=None if isinstance(error, LlamapoolError) else error,
                )
                self._fail(entry, _reason(error))
        else:
            ok, entry.download = True, None
            entry.spec = replace(
                entry.spec, path=spec.path, mmproj=spec.mmproj, draft=spec.draft
            )  # a reload may have changed the rest
            entry.described, entry.measured, entry.fit = None, None, None
            log.info("model '%s' was downloaded: %s", entry.id, spec.path)
            self._set_status(entry, Status.UNLOADED)
        finally:
            await ended(entry, ok)
            self._fan_out.publish(DownloadEnded(entry.id, ok))

    # ---- freeing

    def drain(self, entry: Entry, target: Status, grace_s: float) -> None:
        """Free a ready model, whose status is then `target`: first the engine, then the weights after the last lease.

        Leases get `grace_s` seconds. Then the engine fails running requests, so that leases are released. If some are
        not within the limit of that phase, the weights stay in memory and the model stays DRAINING: a leak is better
        than using freed memory.
        """
        entry.after_drain = target
        entry.giving_way = False
        entry.keep_alive_s = None
        self._set_status(entry, Status.DRAINING)
        assert entry.loaded is not None
        self._start_task(entry, self._free(entry, entry.loaded, grace_s))

    def rebalance(self) -> None:
        """Divide the memory for caches again, and `advance`, after the memory of a model or an adapter has changed."""
        self.memory.share_caches()
        self.advance()

    async def _free(self, entry: Entry, model: LoadedModel, grace_s: float) -> None:
        failure = ""
        try:
            if entry.loaded is model and not await self._await_leases(model, grace_s, None):
                log.warning("model '%s': %d requests are cancelled after %g s", entry.id, len(model.leases), grace_s)
            await self._close_engines(model)
            if not await self._await_leases(model, None, self._limits.abandon_s):
                log.error(
                    "model '%s': %d leases were never released; a restart frees its memory; please report it",
                    *(entry.id, len(model.leases)),
                )
                return
            await self.in_thread(model.free)
        except Exception as error:
            log.exception("model '%s' could not be freed; a restart frees its memory; please report it", entry.id)
            failure = f"could not be freed: {_reason(error)}"
        if entry.loaded is model:
            self._freed(entry, model, failure)

    def _freed(self, entry: Entry, model: LoadedModel, failure: str) -> None:
        entry.loaded, entry.taken = None, {}
        entry.progress = 0.0
        if failure or entry.after_drain is Status.UNLOADED:
            entry.facts = None
        elif model.generator is not None:
            entry.adapters = model.generator.adapters
        if failure:
            self._fail(entry, failure)
        else:
            log.info("model '%s' is %s", entry.id, entry.after_drain)
            self._set_status(entry, entry.after_drain)
        self.rebalance()

    async def _close_engines(self, model: LoadedModel) -> None:
        """End the step threads. After the limit, kill the process of an isolated model, and raise InternalError for
        threads of this process.
        """
        try:
            async with self._limited(None, self._limits.end_s):
                await model.close()
        except TimeoutError:
            if not isinstance(model.weights, WorkerProcess):
                raise InternalError("a step or a media encoder has not ended in time") from None
            model.weights.kill("the server stops, and a step or a media encoder has not ended", stacks=True)

    async def _await_leases(self, model: LoadedModel, limit_s: float | None, stopping_s: float | None) -> bool:
        """Wait until all leases are released. Return False after the time limit."""
        with contextlib.suppress(TimeoutError):
            async with self._limited(limit_s, stopping_s):
                await model.vacant.wait()
        return not model.leases

    @contextlib.asynccontextmanager
    async def _limited(self, limit_s: float | None, stopping_s: float | None) -> AsyncGenerator[None, None]:
        """Limit the seconds of a phase of a drain, to `stopping_s` once the server stops; None = `grace_s` of `stop`.
        Raises TimeoutError.
        """
        if self.stopped and stopping_s is not None:
            limit_s = stopping_s
        async with asyncio.timeout(limit_s) as timeout:
            self._draining[timeout] = stopping_s
            try:
                yield
            finally:
                del self._draining[timeout]

    def forget(self, entry: Entry) -> None:
        """Turn a sleeping or failed model into an unloaded one."""
        entry.facts = entry.adapters = None
        self._set_status(entry, Status.UNLOADED)

    # ---- status

    def _start_task(self, entry: Entry, coroutine: Coroutine[None, None, None]) -> None:
        entry.task = asyncio.create_task(coroutine, name=f"pool: {entry.id}: {entry.status}")
        entry.task.add_done_callback(log_failure)

    def _fail(self, entry: Entry, reason: str) -> None:
        entry.failure = entry.spec.without_folders(reason)  # the log has the text with folders
        entry.failed_at = self._clock()
        self._set_status(entry, Status.FAILED)

    def _set_status(self, entry: Entry, status: Status, *, first_load: bool = False) -> None:
        """Change the status and notify subscribers. Raises `InternalError` if the transition is not allowed."""
        if status not in TRANSITIONS[entry.status]:
            raise InternalError(f"model '{entry.id}' cannot go from {entry.status} to {status}")
        entry.status = status
        if status in (Status.UNLOADED, Status.DRAINING):
            entry.failure, entry.n_restarts = "", 0
        info = entry.facts.info if first_load and entry.facts else None
        self._fan_out.publish(StatusChanged(entry.id, status, entry.failure, info))

    # ---- time

    async def run_timer(self) -> None:
        """Call `tick` whenever it is due, for ever."""
        while True:
            self._wake.clear()
            delay_s = self.tick()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()

    def tick(self) -> float | None:
        """Do what is due by the clock; return the seconds until the next tick, None = after the next change."""
        now = self._clock()
        for entry in self._entries.values():
            if entry.status is Status.READY and not entry.leases and not entry.idle:
                entry.last_used = now  # the last step of a cancelled request
        if not self.stopped:
            for entry in self._entries.values():
                if entry.idle and entry.sleeps_in_s(now) == 0:
                    self.drain(entry, Status.SLEEPING, 0.0)
        self._decide()
        wait_s = self._limits.wait_s
        for model, since in [*self.queue.items()]:
            entry = self._entries[model]
            if not wait_s or now - max(since, entry.asked_at) < wait_s:
                continue
            if entry.starting and any(each.status is Status.LOADING for each in self._entries.values()):
                continue  # it may fit, and waits for the loads of other models
            if entry.waiters or not entry.without_request:  # otherwise no request waits
                entry.starting = False
                entry.refuse(partial(NoRoom, model, wait_s, RETRY_AFTER_S))
                self._dequeue_unfit(entry)
        due_in_s = [s for entry in self._entries.values() if (s := entry.sleeps_in_s(now)) is not None]
        due_in_s += [since - now for since in self.queue.values()]
        return max(min(due_in_s), POLL_S) if due_in_s else None


def described(facts: ModelFacts) -> str:
    """Return the context, slots and memory of a loaded model as one line."""
    shared = facts.fit is not None and facts.fit.spec.native.unified
    n, each = facts.n_slots, facts.n_ctx_seq
    slots = "1 slot" if n == 1 else f"{n} slots"
    context = f"{each} tokens that {slots} share" if shared and n > 1 else f"{slots} of {each} tokens"
    return ", ".join([context, *(f"{readable(taken.total)} of {name}" for name, taken in facts.footprint.items())])


def _reason(error: BaseException) -> str:
    if isinstance(error, LlamapoolError):
        return getattr(error, "reason", "") or error.message
    return f"{type(error).__name__}: {error}"
