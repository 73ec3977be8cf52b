"""Every configured model, its state, and the leases on it. See `Pool`."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from math import ceil, inf

from server.errors import (
    ConfigError,
    InvalidRequest,
    LlamapoolError,
    ModelFailed,
    ModelLoading,
    ModelRestarting,
    NotFound,
    NotSupported,
    PermissionDenied,
    ShuttingDown,
    Unavailable,
    short,
)
from server.pool.entry import Entry, log_failure
from server.pool.events import EVERY_MODEL, FanOut, ListChanged, Subscription
from server.pool.loading import Factories
from server.pool.memory import Memory
from server.pool.model import Embedder, Generator, Lease
from server.pool.names import LATEST, Names, hub_name
from server.pool.protocols import Fetcher, Loader
from server.pool.scheduler import RETRY_AFTER_S, PoolLimits, Scheduler
from server.pool.spec import NOT_HERE, ModelSpec, RemoteFiles, Task
from server.pool.state import NO_ROOM, ModelFacts, ModelState, Status
from server.pool.worker.loaders import Loaders

log = logging.getLogger(__name__)

MIN_THREADS = 8  # models may be added later
MAX_RESTART_WAIT_S = 5.0
"""A request waits for a restart that is due within this time; otherwise it gets an error."""


class _Replaced(Exception):
    """The entry of a request is being removed or replaced."""


class Pool:
    """Loads models on demand, shares loads, unloads idle models for others, and puts unused ones to sleep. All methods
    run on the event loop's thread. ``policy`` decides, ``scheduler`` has the queue and the leases and carries out loads
    and frees, ``admission`` counts memory.
    """

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        loader: Loader,
        limits: PoolLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        factories: Factories | None = None,
        threads: Executor | None = None,
        *,
        in_process: Callable[[], Loader],
        fetcher: Fetcher,
        reread: Callable[[], Sequence[ModelSpec]] | None = None,
        downloads: bool = True,
    ) -> None:
        """`threads` runs blocking work (loads, frees) and is shut down by the pool. `in_process` creates the loader in
        a worker process. `fetcher` downloads missing files. `reread` reads and checks the configured models; it blocks
        and raises ConfigError. Without `downloads`, only the files of configured models are downloaded.
        """
        self.limits = limits or PoolLimits()
        self._may_use: Callable[[Iterable[str]], bool] | None = None  # by id and aliases; None: all
        self._all_names = Names(specs)
        self._clock = clock
        self._all_entries = {spec.id: Entry(spec, clock()) for spec in specs}
        self._fan_out = FanOut()
        self._threads = threads or ThreadPoolExecutor(max(MIN_THREADS, len(specs)), thread_name_prefix="pool")
        self._fetcher = fetcher
        self._may_download = downloads
        self._reread = reread
        self._factories = factories or Factories()
        self._loaders = Loaders(loader, in_process)
        self._scheduler = Scheduler(
            *(self._all_entries, self.limits, self._loaders, self._factories, self._fan_out, self._threads),
            *(clock, fetcher),
        )
        self.reloading = asyncio.Lock()  # held from reading to applying a configuration, so that no older one wins
        self._timer: asyncio.Task[None] | None = None

    # ---- queries

    @property
    def _entries(self) -> Mapping[str, Entry]:
        """The entries that this key may use."""
        if self._may_use is None:
            return self._all_entries
        return {entry.id: entry for entry in self._all_entries.values() if self._may_use(entry.names)}

    @property
    def _names(self) -> Names:
        if self._may_use is None:
            return self._all_names
        visible = self._entries
        return Names([entry.spec for entry in visible.values()], is_part=len(visible) < len(self._all_entries))

    def resolve(self, name: str | None, task: Task = "generate") -> ModelSpec:
        """Return the model of a request; see `Names.resolve`. The name of a LoRA adapter that was loaded at runtime
        selects its model.
        """
        entry = self._entry_of_adapter(name)
        return self._names.resolve(name, task) if entry is None else entry.spec

    def names_adapter(self, name: str | None) -> bool:
        """Return whether this is the name of a LoRA adapter that was loaded at runtime, and of no model."""
        return self._entry_of_adapter(name) is not None

    def _entry_of_adapter(self, name: str | None) -> Entry | None:
        if not name or self.knows(name):
            return None
        entries = self._entries.values()
        return next((e for e in entries if any(adapter.name == name for adapter in e.runtime_adapters)), None)

    def check_adapter_name(self, name: str, model: str) -> None:
        """Raise `InvalidRequest` if `name` selects a model, or an adapter of another model than `model` (an id)."""
        other = self._entry_of_adapter(name)
        if self.knows(name) or (other is not None and other.id != model):
            fault = f"'{short(name)}' is the name of a model or of another model's adapter"
            raise InvalidRequest(f"lora_name: {fault}; choose another one", "lora_name")

    def find(self, name: str) -> ModelSpec | None:
        """Return the model with this id or alias, or the download with this name."""
        return self._names.find(name)

    def knows(self, name: str) -> bool:
        """Return whether a model has this id or alias."""
        return self.find(name) is not None

    def serves(self, name: str | None, task: Task = "generate") -> bool:
        """Return whether a request for the model would be served without a wait. Raises `ModelNotFound`."""
        return self._entries[self.resolve(name, task).id].serving

    def states(self) -> list[ModelState]:
        """Return every model in the order of the configuration. Wakes and loads nothing."""
        return [self._state(e) for e in self._entries.values()]

    def state(self, name: str | None, task: Task = "generate") -> ModelState:
        """Return one model, resolved as for a request. Wakes and loads nothing."""
        return self._state(self._entries[self.resolve(name, task).id])

    def _state(self, entry: Entry) -> ModelState:
        mmproj = entry.spec.mmproj
        if entry.media is None and entry.facts is None and mmproj is not None and mmproj.is_file():
            entry.media = self._loaders.local.media_kinds(entry.spec)  # reads a few kB, once
        return entry.state(queued=entry.id in self._scheduler.queue, now=self._clock())

    async def describe(self, name: str | None) -> ModelState:
        """Return the `state`, with facts of the file if it is not loaded. Raises `ModelNotFound`, `ModelFailed`, and
        `NotFound` if its files are missing.
        """
        entry = self._entries[self.resolve(name).id]
        if entry.facts is None and entry.spec.missing:
            raise NotFound(f"model '{entry.id}' is not downloaded yet")

        def read() -> ModelFacts:
            info = self._loaders.local.describe(entry.spec)
            return ModelFacts(info, self._factories.template(info, entry.spec), n_ctx_seq=0, n_slots=0, loaded_at=0.0)

        if entry.facts is None and entry.described is None:
            try:
                entry.described = await self._scheduler.in_thread(read)
            except LlamapoolError as error:  # of the file or of its template
                raise ModelFailed(
                    entry.id, entry.spec.without_folders(getattr(error, "reason", error.message))
                ) from error
        state = self._state(entry)
        return replace(state, facts=state.facts or entry.described)

    def check_progress(self, limit_s: float) -> None:
        """Give up engines whose step takes more than `limit_s` seconds, and end processes whose load does not advance.
        Call it periodically.
        """
        self._loaders.check_progress(limit_s)
        for engine in self._engines():
            engine.check_progress(limit_s)

    @property
    def hangs(self) -> bool:
        """Whether a step of a loaded model hangs. Only the end of the process stops such a step."""
        return any(engine.hangs for engine in self._engines())

    def _engines(self) -> "Iterator[Generator | Embedder]":
        for entry in self._entries.values():
            yield from entry.loaded.engines if entry.loaded is not None else ()

    @property
    def starting(self) -> bool:
        """Whether a model is still being loaded at startup."""
        return any(entry.starting for entry in self._entries.values())

    @property
    def budget(self) -> Mapping[str, int]:
        """Bytes by device that all models may take together; empty until one was measured."""
        return self._scheduler.memory.budget

    async def memory(self) -> Mapping[str, Memory]:
        return await self._loaders.memory(list(self._entries.values()))

    def subscribe(self) -> Subscription:
        """Return an async iterator over later events of the models that this key may use. Close it, or use it in a
        ``with``.
        """
        return self._fan_out.subscribe(self._may_see)

    def _may_see(self, model: str) -> bool:
        if self._may_use is None or model == EVERY_MODEL:
            return True
        entry = self._all_entries.get(model)  # None: a download that has just ended
        return self._may_use([model] if entry is None else entry.names)

    def seen_by(self, may_use: Callable[[Iterable[str]], bool]) -> "Pool":
        """Return the pool restricted to the models that a key may use, by their ids and aliases. It cannot change the
        list of models.
        """
        restricted = copy(self)
        restricted._may_use = may_use
        return restricted

    def _check_unrestricted(self) -> None:
        if self._may_use is not None:
            raise PermissionDenied("this API key is restricted to some models, so it may not add or remove models")

    # ---- leases

    async def acquire(self, name: str | None, *, autoload: bool | None = None, task: Task = "generate") -> Lease:
        """Return a lease, after loading or waking the model when it is its turn. Callers share a load, which continues
        when one of them is cancelled.

        `autoload` overrides the option for this call. Raises `ModelNotFound`; `InvalidRequest` (not loaded, without
        `autoload`); `ModelFailed` with the reason; `ModelLoading` while the only model loads at startup;
        `Unavailable` if the model was unloaded meanwhile; `ShuttingDown`.
        """
        lease = None
        while lease is None:
            if self._scheduler.stopped:
                raise ShuttingDown()
            entry = self._entries[self.resolve(name, task).id]
            if entry.serving:
                lease = self._scheduler.lease(entry)
            else:
                with contextlib.suppress(_Replaced):
                    lease = await self._wait_for_lease(entry, autoload)
        if self.limits.linger_s and len(self._entries) > 1:
            try:
                await asyncio.sleep(self.limits.linger_s)
            except asyncio.CancelledError:
                lease.release()
                raise
        return lease

    async def _wait_for_lease(self, entry: Entry, autoload: bool | None) -> Lease:
        if entry.n_replacing:
            try:
                async with asyncio.timeout(self.limits.wait_s or None):
                    return await self._scheduler.wait(entry)
            except TimeoutError:
                error = f"model '{entry.id}' is still being unloaded; try again later"
                raise Unavailable(error, RETRY_AFTER_S) from None
        if entry.starting and len(self._entries) == 1:
            raise ModelLoading()
        if entry.transient:
            raise Unavailable(f"model '{entry.id}' is being downloaded")
        if (pause_s := self._scheduler.queue.get(entry.id, -inf) - self._clock()) > MAX_RESTART_WAIT_S:
            raise ModelRestarting(entry.id, entry.failure, ceil(pause_s))
        may_load = self.limits.autoload if autoload is None else autoload
        if entry.id not in self._scheduler.queue:
            self._check_may_load(entry, may_load)
        return await self._scheduler.wait(entry, may_load=may_load)

    def _check_may_load(self, entry: Entry, autoload: bool) -> None:
        if entry.status is Status.FAILED:
            cooling = self._clock() < entry.failed_at + self.limits.retry_failed_s
            if cooling or not autoload:
                raise ModelFailed(entry.id, entry.failure)
        being_unloaded = entry.leaving and entry.after_drain is Status.UNLOADED
        if not autoload and (being_unloaded or entry.status in (Status.UNLOADED, Status.DOWNLOADING)):
            raise InvalidRequest(f"model is not loaded: '{entry.id}'", "model")

    async def load(self, name: str) -> None:
        """Load or wake a model by id or alias, queued if ``models_max`` is reached. Returns immediately, as ``POST
        /models/load`` does.

        Raises `ModelNotFound`, `InvalidRequest` if it is loaded or loading, `Unavailable` while it is reconfigured, and
        `ShuttingDown`.
        """
        if self._scheduler.stopped:
            raise ShuttingDown()
        entry = self._entries[self._names.exact(name).id]
        if entry.n_replacing:
            raise Unavailable(f"model '{entry.id}' is being unloaded and configured again; load it after that")
        if entry.status is Status.FAILED and entry.failure == NO_ROOM and entry.without_request:
            self._scheduler.queue.pop(entry.id, None)  # from now on, other models are unloaded for it
            self._scheduler.forget(entry)
            entry.requested = False
        loading = entry.status is Status.LOADING and not entry.leaving
        if entry.status is Status.READY or loading or entry.requested or entry.transient:
            raise InvalidRequest("model is already running", "model")
        entry.requested = True
        self._scheduler.enqueue(entry)

    def adapters_changed(self) -> None:
        """Count the memory of LoRA adapters that were loaded or unloaded at runtime."""
        self._scheduler.rebalance()

    def pin(self, name: str, *, pinned: bool) -> None:
        """Pin or unpin a model until the server ends, overriding the settings. Raises `ModelNotFound`."""
        self._entries[self._names.exact(name).id].pin = pinned
        self._scheduler.advance()  # an unpinned model may be unloaded for a queued one

    async def unload(self, name: str, *, wait: bool = False) -> None:
        """Free a model by id or alias: no new leases, ``stop_timeout_s`` for existing ones, then their requests end.

        A queued or running load is cancelled, and its waiters get `Unavailable`. Returns immediately, as ``POST
        /models/unload`` does, unless `wait`. Raises `ModelNotFound`, and `InvalidRequest` if there is nothing to
        unload.
        """
        entry = self._entries[self._names.exact(name).id]
        queued = self._scheduler.queue.pop(entry.id, None) is not None
        if entry.status in (Status.UNLOADED, Status.FAILED) and not queued:
            raise InvalidRequest("model is not running", "model")
        if queued:
            entry.starting = False
        if entry.status is Status.FAILED:  # its restart was queued
            self._scheduler.forget(entry)
        if not entry.n_replacing:  # otherwise its requests wait for the entry that replaces it
            entry.refuse(lambda: Unavailable(f"model '{entry.id}' was unloaded while this request waited for it"))
        self._begin_unload(entry, self.limits.stop_timeout_s)
        self._scheduler.advance()
        if wait:
            await self._settled([entry])

    def _begin_unload(self, entry: Entry, grace_s: float) -> None:
        if entry.sizing is not None:
            entry.sizing.cancel()
        if entry.download is not None:
            entry.download.cancelled.set()
        elif entry.load is not None:
            entry.failure, entry.n_restarts = "", 0
            entry.load.cancel()
        elif entry.status is Status.READY:
            self._scheduler.drain(entry, Status.UNLOADED, grace_s)
        elif entry.status is Status.DRAINING:
            entry.after_drain = Status.UNLOADED
        elif entry.status is Status.SLEEPING:
            self._scheduler.forget(entry)

    # ---- the list of models

    async def download(self, name: str) -> None:
        """Start to download a model from the hub, as ``POST /models`` does.

        A repository without a quantization, or with `LATEST`, means the newest version of the default quantization.
        Raises `InvalidRequest` for an invalid or known name, `NotSupported`, and the errors of `Fetcher.check`.
        """
        self._check_unrestricted()
        name = name.removesuffix(LATEST)
        if not self._may_download:
            raise NotSupported("This server does not serve the models of its cache. Start it with `--models-cache`")
        self._check_new(name)
        await asyncio.to_thread(self._fetcher.check, name, lambda: not self._scheduler.stopped)
        self._check_new(name)  # another request may have started a download meanwhile
        remote = RemoteFiles(hf=name, requested=True)
        spec = ModelSpec(name, NOT_HERE, remote=remote, origin="cache", source="POST /models")
        entry = Entry(spec, self._clock(), transient=True)
        self._all_entries[name] = entry
        self._update_names()
        self._scheduler.fetch(entry, self._downloaded)

    def fetch(self, name: str) -> bool:
        """Start to download the missing files of a model, without loading it; return whether there are any. Raises
        `ModelNotFound`, `ShuttingDown`.
        """
        if self._scheduler.stopped:
            raise ShuttingDown()
        entry = self._entries[self._names.exact(name).id]
        return not entry.n_replacing and self._scheduler.fetch_missing(entry)

    def _check_new(self, name: str) -> None:
        if self._scheduler.stopped:
            raise ShuttingDown()
        known = self._names.find(name)
        if known is not None and not (known.origin == "cache" and name in known.aliases):
            raise InvalidRequest(f"model '{name}' already exists", "model")

    async def _downloaded(self, entry: Entry, ok: bool) -> None:
        """Replace the download's entry by that of the cached model."""
        self._drop(entry)
        if ok:
            await self._reload_cached()

    async def _reload_cached(self) -> None:
        """Reload the list of cached models, and the models that repository names select."""
        if not self._scheduler.stopped:
            try:
                await self.reload()
            except ConfigError as error:
                log.error("the models of the cache are served as they were before the last change of it: %s", error)

    async def remove(self, name: str) -> None:
        """Unload a cached model, or stop its download, and delete its files, as ``DELETE /models`` does.

        Raises `ModelNotFound`, `Unavailable`, `ShuttingDown`, and `InvalidRequest` for a model that is not in the cache
        or a repository with several cached models.
        """
        self._check_unrestricted()
        entry = self._entries[self._names.exact(name).id]
        if entry.spec.origin != "cache":
            raise InvalidRequest(f"model '{entry.id}' is not removable: it is not in the hub's cache", "model")
        if entry.n_replacing:
            raise Unavailable(f"model '{entry.id}' is being unloaded; try again later", RETRY_AFTER_S)
        repository = hub_name(name)
        several = sorted(each for each in self._entries if each.startswith(f"{repository}:"))
        if entry.id != repository and len(several) > 1:
            raise InvalidRequest(f"model: '{name}' may be one of several: {', '.join(several)}", "model")
        with self._replacing([entry]):
            await self._unloaded([entry])
            if self._scheduler.stopped:
                raise ShuttingDown
            await asyncio.to_thread(self._fetcher.remove, entry.id)
            self._fan_out.publish(ListChanged(entry.id))
            self._drop(entry)
        await self._reload_cached()

    def _drop(self, entry: Entry) -> None:
        if self._all_entries.get(entry.id) is entry:
            del self._all_entries[entry.id]
            self._scheduler.queue.pop(entry.id, None)
            self._update_names()

    def _update_names(self) -> None:
        self._all_names = Names([entry.spec for entry in self._all_entries.values()])

    async def reload(self, configured: Sequence[ModelSpec] | None = None) -> None:
        """Serve the models in `configured`, which the caller has read while it holds `reloading`. None: read the
        configuration again.

        Removed and changed models are unloaded first; the others are not interrupted. New and changed models with
        ``load: startup`` are loaded. If `ConfigError` is raised, nothing has changed.
        """
        self._check_unrestricted()
        if self._reread is None:
            return
        if configured is None:
            async with self.reloading:
                await self.reload(await asyncio.to_thread(self._reread))
            return
        specs = {spec.id: spec for spec in configured}
        stale = [entry for entry in self._all_entries.values() if _is_stale(entry, specs.get(entry.id))]
        with self._replacing(stale):
            await self._unloaded(stale)
            if self._scheduler.stopped:
                return
            unchanged = {entry.id: entry for entry in self._all_entries.values() if entry not in stale}
            for entry in unchanged.values():
                if not entry.transient:
                    entry.spec = specs[entry.id]
            pins, now = {entry.id: entry.pin for entry in stale}, self._clock()
            fresh = [Entry(spec, now, pin=pins.get(id_)) for id_, spec in specs.items() if id_ not in unchanged]
            entries = unchanged | {entry.id: entry for entry in fresh}
            self._all_entries.clear()
            self._all_entries.update({id_: entries[id_] for id_ in (*specs, *unchanged)})  # downloads are last
            self._update_names()
        self._fan_out.publish(ListChanged(EVERY_MODEL))
        self._load_startup_models(fresh, starting=len(specs) > 1)  # requests wait for the only model
        self._scheduler.advance()

    @contextlib.contextmanager
    def _replacing(self, entries: Collection[Entry]) -> Iterator[None]:
        """Prevent loads of `entries` inside the context. Requests for them wait until its end, and then resolve their
        model again.
        """
        for entry in entries:
            entry.n_replacing += 1
            self._scheduler.queue.pop(entry.id, None)
            entry.refuse(_Replaced)
        try:
            yield
        finally:
            for entry in entries:
                entry.n_replacing -= 1
                entry.refuse(_Replaced)

    async def _unloaded(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._begin_unload(entry, self.limits.stop_timeout_s)
        await self._settled(entries)

    # ---- start and end

    async def start(self) -> None:
        """Start the timer and the loads of ``load: startup`` models. A second call does nothing."""
        if self._timer is not None:
            return
        self._timer = asyncio.create_task(self._scheduler.run_timer(), name="pool: timer")
        self._timer.add_done_callback(log_failure)
        self._load_startup_models(list(self._entries.values()), starting=True)

    def _load_startup_models(self, entries: Sequence[Entry], *, starting: bool) -> None:
        for entry in entries:
            if entry.spec.load == "startup" and not entry.wanted:
                entry.requested, entry.starting = True, starting
                self._scheduler.enqueue(entry)

    async def settled(self) -> None:
        """Wait until no model is being loaded or drained."""
        await self._settled(list(self._entries.values()))
        while self._scheduler.freeing:
            await asyncio.wait(self._scheduler.freeing)

    async def _settled(self, entries: Sequence[Entry]) -> None:
        while tasks := [task for e in entries for task in (e.task if e.under_way else None, e.sizing) if task]:
            await asyncio.wait(tasks)

    async def close(self, drain_s: float | None = None) -> None:
        """Refuse new work, give leases `drain_s` seconds (default: ``stop_timeout_s``), and free everything.

        Running loads are cancelled and awaited. Subscriptions end. A second call waits for the first.
        """
        if not self._scheduler.stopped:
            grace_s = self.limits.stop_timeout_s if drain_s is None else drain_s
            self._scheduler.stop(grace_s)
            for entry in self._entries.values():
                entry.refuse(ShuttingDown)
                self._begin_unload(entry, grace_s)
        self._loaders.stop()
        await self.settled()
        await self._scheduler.close()
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.wait([self._timer])
        self._threads.shutdown(wait=False)
        self._fan_out.close()


def _is_stale(entry: Entry, spec: ModelSpec | None) -> bool:
    """Return whether a model must be unloaded, as it is now configured as `spec` (None = removed). Failed models must,
    so that the next request loads them again.
    """
    if entry.transient:
        return False
    if spec is None or (entry.status is Status.FAILED and not entry.wanted):
        return True
    # Changes of these fields do not require that the model is loaded again.
    old, new = (
        replace(each, source="", load="on_demand", args=(), preset="", aliases=()) for each in (entry.spec, spec)
    )
    return old != new
