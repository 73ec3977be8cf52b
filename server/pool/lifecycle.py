"""Carries out loads and frees: threads, engines, state transitions, events. Decides nothing."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from server.engine.lora import default_set
from server.errors import InternalError, LlamapoolError, ModelFailed
from server.pool.entry import Download, Entry
from server.pool.events import DownloadProgress, FanOut, LoadProgress, StatusChanged
from server.pool.loading import Factories, Load, assemble
from server.pool.memory import Footprint, Memory, held, readable, totals
from server.pool.model import LoadedModel
from server.pool.protocols import Fetcher, FileProgress, Loader
from server.pool.spec import ModelSpec
from server.pool.state import ModelFacts, Status, check_transition
from server.pool.worker.parent import WorkerSupervisor
from server.pool.worker.proxies import IsolatedWeights

log = logging.getLogger(__name__)

T = TypeVar("T")


N_DOWNLOADS = 4  # at a time
KEPT_S = 30.0
"""So long a process that has measured a model waits for the load."""
ENDED_S = 5.0
"""That processes which were killed may take to end; only the system can keep one longer."""


class Lifecycle:
    """Moves one entry at a time through `TRANSITIONS`; every move is an event."""

    def __init__(
        self,
        loader: Loader,
        factories: Factories,
        fan_out: FanOut,
        threads: Executor,
        clock: Callable[[], float],
        quiet: Callable[[], bool],
        fetcher: Fetcher | None = None,
    ) -> None:
        """`quiet`: whether no model has anything to do; asked from other threads. `fetcher` downloads missing files."""
        self._loader = loader
        self._factories = factories
        self._fan_out = fan_out
        self._threads = threads
        self._clock = clock
        self._quiet = quiet
        self.fetcher = fetcher
        self._downloads = ThreadPoolExecutor(N_DOWNLOADS, thread_name_prefix="download")
        self._measured_by: dict[str, tuple[ModelSpec, WorkerSupervisor, asyncio.TimerHandle]] = {}
        self._at_work: set[WorkerSupervisor] = set()  # whose processes measure or load
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    # ---- loading

    async def size(self, entry: Entry) -> tuple[Footprint, Mapping[str, Memory]]:
        """Return the least memory a model takes and the memory there is; nothing for an unreadable model, whose load
        reports why.
        """
        spec = entry.spec

        def measured() -> tuple[Footprint, Mapping[str, Memory]]:
            memory: Mapping[str, Memory] = {}
            try:
                memory = loader.memory()
                least = loader.least(spec)
            except LlamapoolError:
                least = {}
            except Exception:  # no retry: requests for the model would wait forever
                log.exception(
                    "model '%s' could not be measured; this is a bug, please report it",
                    entry.id,
                )
                least = {}
            return least, memory

        try:
            loader = self._loader_of(spec)
        except ModelFailed:
            return {}, {}
        if not isinstance(loader, WorkerSupervisor):
            return await self._in_thread(measured)
        with self._watched(loader):
            try:
                least, memory = await self._in_thread(measured)
            except asyncio.CancelledError:
                self._abandon(loader)
                raise
        # Mostly the load follows at once.
        timer = asyncio.get_running_loop().call_later(KEPT_S, self._give_up, entry.id)
        self._measured_by[entry.id] = spec, loader, timer
        if not least or self._closed:
            self._give_up(entry.id)
        return least, memory

    def _give_up(self, model: str) -> None:
        """End the process that has measured a model, if it still waits."""
        _, loader, timer = self._measured_by.pop(model)
        timer.cancel()
        self._abandon(loader)

    def _abandon(self, loader: Loader) -> None:
        """Stop the process of a load that is unwanted or has failed."""
        if isinstance(loader, WorkerSupervisor):
            loader.abandon()
            ending = asyncio.get_running_loop().create_task(loader.close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    @contextlib.contextmanager
    def _watched(self, loader: Loader) -> Iterator[None]:
        """Register the loader while it works."""
        if isinstance(loader, WorkerSupervisor):
            self._at_work.add(loader)
        try:
            yield
        finally:
            self._at_work -= {loader}

    def check_progress(self, limit_s: float) -> None:
        """End processes that measure or load a model without progress. Call it periodically."""
        for loader in self._at_work:
            loader.check_progress(limit_s)

    def stop(self) -> None:
        """Accept no more loads, and end measuring and loading, which might never end."""
        self._closed = True
        for model in list(self._measured_by):
            self._give_up(model)
        for loader in self._at_work:
            self._abandon(loader)

    async def close(self) -> None:
        """Wait for abandoned loads to end."""
        self._downloads.shutdown(wait=False)
        if self._ending:
            await asyncio.wait(self._ending, timeout=ENDED_S)

    def begin_load(self, entry: Entry, granted: Mapping[str, int] | None) -> None:
        """Reserve the model's place and all `granted` memory until its size is known; `load` must follow."""
        loop = asyncio.get_running_loop()

        def report(value: float) -> None:
            loop.call_soon_threadsafe(self._progressed, entry, load, value)

        factories = self._factories
        load = Load(
            *(entry.spec, self._loader_of(entry.spec), factories.template, report, self._clock),
            *(factories.grammar, self._quiet, granted or {}, entry.fit),
        )
        entry.load = load
        entry.taken = granted or {}
        entry.fitting = granted is not None
        entry.after_drain = Status.UNLOADED
        entry.progress = 0.0
        entry.failure = ""
        self.move(entry, Status.LOADING)

    def _isolates(self, spec: ModelSpec) -> bool:
        """Whether a model runs in its own process: ``auto`` does so if devices besides the CPU compute."""
        if spec.isolation == "auto":
            return self._factories.in_process is not None and self._loader.uses_devices(spec)
        return spec.isolation == "process"

    async def memory(self, entries: Sequence[Entry]) -> Mapping[str, Memory]:
        """Return the memory of the machine and its devices, now. Empty if no process can read it.

        If an isolated model uses a device, the process of a loaded one reads it: reading a GPU's memory opens a context
        on it, which the server would keep until it ends, and which a device error breaks.
        """
        isolated = [e for e in entries if self._isolates(e.spec) and self._loader.uses_devices(e.spec)]
        if not isolated:
            return await self._in_thread(self._loader.memory)
        loaded = (entry.loaded.weights for entry in isolated if entry.loaded is not None)
        supervisor = next((weights.supervisor for weights in loaded if isinstance(weights, IsolatedWeights)), None)
        try:
            return {} if supervisor is None else dict(await supervisor.call("memory"))
        except LlamapoolError as error:
            log.warning("the memory of devices can't be read: %s", error)
            return {}

    def _loader_of(self, spec: ModelSpec) -> Loader:
        if not self._isolates(spec):
            return self._loader
        if spec.id in self._measured_by:
            measured, loader, timer = self._measured_by[spec.id]
            if measured == spec:
                timer.cancel()
                del self._measured_by[spec.id]
                return loader
            self._give_up(spec.id)
        if self._factories.in_process is None:
            raise ModelFailed(spec.id, "isolation: process needs a system with Unix sockets")
        return WorkerSupervisor(
            *(spec.id, self._factories.in_process, asyncio.get_running_loop(), self._loader, spec.engine.disk_place)
        )

    async def load(self, entry: Entry, fitted: Callable[[], None] = lambda: None) -> None:
        """Load; the entry ends READY, FAILED with the reason, or UNLOADED when the load was cancelled. `fitted` is
        called between, where memory was granted, once it is known how much of it the model takes."""
        load, begun = entry.load, self._clock()
        assert load is not None
        try:
            with self._watched(load.loader):
                if entry.fitting:
                    taken = totals((await self._in_thread(load.fit)).footprint)
                    entry.taken = {device: min(n, load.granted.get(device, n)) for device, n in taken.items()}
                    entry.fitting = False
                    fitted()
                parts = await self._in_thread(load.run)
            model = await assemble(load, parts, self._factories, self._in_thread)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            load.cancel()
            self._abandon(load.loader)
            raise
        except BaseException as error:  # noqa: BLE001 (a Rust library's panic, too, is the model's failure)
            entry.load = None
            self._abandon(load.loader)
            self._not_loaded(entry, load, error)
        else:
            entry.load, entry.load_s = None, self._clock() - begun
            self._loaded(entry, model)

    def _loaded(self, entry: Entry, model: LoadedModel) -> None:
        woke = entry.facts is not None
        entry.loaded = model
        if entry.adapters is not None and model.generator is not None:
            model.generator.set_adapter_scales(entry.adapters)
        entry.adapters = None
        entry.fit = model.fit
        measured = model.weights.footprint()
        footprint = held(measured, model.fit)
        entry.facts = ModelFacts(
            *(model.info, model.template, model.n_ctx_seq, model.n_slots, model.loaded_at, footprint, model.fit)
        )
        if entry.taken:
            entry.taken = self._measured(entry, totals(footprint) if measured else {})
        entry.progress = 1.0
        entry.last_used = self._clock()
        log.info("model '%s' is %s: %s", entry.id, "awake" if woke else "loaded", described(entry.facts))
        self.move(entry, Status.READY, first_load=not woke)

    def _measured(self, entry: Entry, measured: Mapping[str, int]) -> Mapping[str, int]:
        """Return what it really took; for a model without fit at most what was granted."""
        if not measured or not entry.spec.native.fit:
            return entry.taken
        for device, n in measured.items():
            if n > 1.1 * entry.taken.get(device, n):
                expected, taken = readable(entry.taken[device]), readable(n)
                log.warning(
                    "model '%s' took %s of %s, %s were expected; a smaller `memory` leaves room for that",
                    entry.id,
                    taken,
                    device,
                    expected,
                )
        return measured

    def _not_loaded(self, entry: Entry, load: Load, error: BaseException) -> None:
        entry.progress = 0.0
        entry.facts = entry.adapters = entry.need = entry.fit = (
            None  # the file may be another one when it is tried again
        )
        entry.taken, entry.fitting = {}, False
        if load.cancelled:
            log.info("the load of model '%s' was cancelled: %s", entry.id, error)
            self.move(entry, Status.UNLOADED)
            return
        expected = isinstance(error, LlamapoolError)
        said = error if isinstance(error, ModelFailed) else f"model '{entry.id}' failed to load: {error}"
        log.error("%s", said, exc_info=None if expected else error)
        self.fail(entry, _reason(error))

    def _progressed(self, entry: Entry, load: Load, value: float) -> None:
        if entry.load is load and not load.cancelled:
            entry.progress = min(max(value, 0.0), 1.0)
            self._fan_out.publish(LoadProgress(entry.id, entry.progress))

    async def describe(self, entry: Entry) -> ModelFacts:
        """Describe a model without loading it: facts of its file, and its template. Raises `ModelFailed`."""

        def read() -> ModelFacts:
            info = self._loader.describe(entry.spec)
            return ModelFacts(info, self._factories.template(info, entry.spec), n_ctx_seq=0, n_slots=0, loaded_at=0.0)

        if entry.described is None:
            try:
                entry.described = await self._in_thread(read)
            except ModelFailed as error:
                raise ModelFailed(entry.id, entry.spec.by_name(error.reason)) from error
        return entry.described

    # ---- downloading

    def begin_download(self, entry: Entry) -> None:
        """Announce a download; `download` must follow."""
        entry.download = Download()
        entry.failure = ""
        log.info("model '%s': its files are missing; they are downloaded", entry.id)
        self.move(entry, Status.DOWNLOADING)

    async def download(self, entry: Entry) -> bool:
        """Download; the entry ends UNLOADED with its files known (True), FAILED with the reason, or UNLOADED when the
        download was cancelled.
        """
        download, fetcher = entry.download, self.fetcher
        assert download is not None
        assert fetcher is not None
        loop = asyncio.get_running_loop()

        def received(progress: FileProgress) -> None:
            if entry.download is download and not download.cancelled.is_set():
                download.files[progress.url] = progress
                self._fan_out.publish(DownloadProgress(entry.id, tuple(download.files.values())))

        def report(progress: FileProgress) -> None:
            loop.call_soon_threadsafe(received, progress)

        def fetch() -> ModelSpec:
            return fetcher.fetch(entry.spec, report, lambda: not download.cancelled.is_set())

        try:
            spec = await loop.run_in_executor(self._downloads, fetch)
        except asyncio.CancelledError:
            download.cancelled.set()
            raise
        except Exception as error:
            entry.download = None
            if download.cancelled.is_set():
                log.info("the download of model '%s' was cancelled", entry.id)
                self.move(entry, Status.UNLOADED)
                return False
            log.error(
                "model '%s' could not be downloaded; loading it again tries once more: %s",
                entry.id,
                error,
                exc_info=None if isinstance(error, LlamapoolError) else error,
            )
            self.fail(entry, _reason(error))
            return False
        entry.download = None
        entry.spec, entry.described, entry.need, entry.fit = spec, None, None, None
        log.info("model '%s' was downloaded: %s", entry.id, spec.path)
        self.move(entry, Status.UNLOADED)
        return True

    # ---- freeing

    def begin_drain(self, entry: Entry, target: Status) -> None:
        """Refuse further leases; `drain` must follow."""
        entry.after_drain = target
        entry.giving_way = entry.cut_off = False
        entry.keep_alive_s = None
        self.move(entry, Status.DRAINING)

    async def drain(self, entry: Entry, grace_s: float) -> None:
        """Free a draining model: the engine first, then the weights, never under a lease.

        Leases get `grace_s` seconds. Then the engine fails what still runs, so that leases end. If they do not
        within ``entry.abandon_s`` (None = wait forever), the weights stay in memory and the model stays DRAINING: a
        leak is better than using freed memory.
        """
        model = entry.loaded
        assert model is not None
        try:
            if not await self._vacated(entry, grace_s):
                log.warning("model '%s': %d requests are cancelled after %g s", entry.id, len(entry.leases), grace_s)
            entry.cut_off = True
            await self._close_engines(entry, model)
            if not await self._vacated(entry, entry.abandon_s):
                log.error(
                    "model '%s': %d leases were never released; a restart gives its memory back. Report it",
                    entry.id,
                    len(entry.leases),
                )
                return
            await self._in_thread(model.weights.close)
        except Exception as error:
            log.exception(
                "model '%s' could not be freed; a restart gives its memory back. Report what follows",
                entry.id,
            )
            entry.loaded = None
            entry.taken = {}
            entry.leases.clear()  # of a model that stays in memory: nothing waits for them any more
            entry.vacant.set()
            self.fail(entry, f"could not be freed: {_reason(error)}")
            return
        entry.loaded = None
        entry.taken = {}
        entry.progress = 0.0
        if entry.after_drain is Status.UNLOADED:
            entry.facts = None
        elif model.generator is not None:
            entry.adapters = default_set(model.generator.adapters)
        log.info("model '%s' is %s", entry.id, entry.after_drain)
        self.move(entry, entry.after_drain)

    async def _close_engines(self, entry: Entry, model: LoadedModel) -> None:
        """End the step threads. After ``entry.end_s`` seconds the process of an isolated model is killed; where the
        threads are in this process, InternalError is raised."""
        try:
            async with asyncio.timeout(entry.end_s) as entry.ending:
                await model.close()
        except TimeoutError:
            if not isinstance(model.weights, IsolatedWeights):
                raise InternalError(f"a step or a media encoder has not ended within {entry.end_s:g} s") from None
            model.weights.supervisor.kill("the server stops, and a step or a media encoder has not ended")
        finally:
            entry.ending = None

    async def _vacated(self, entry: Entry, timeout_s: float | None) -> bool:
        """Wait until no lease is left; False when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s) as entry.grace:
                await entry.vacant.wait()
        entry.grace = None
        return not entry.leases

    def forget(self, entry: Entry) -> None:
        """Make a sleeping model an unloaded one."""
        entry.facts = entry.adapters = None
        self.move(entry, Status.UNLOADED)

    # ---- both

    def fail(self, entry: Entry, reason: str) -> None:
        """Record that a model could not be loaded or freed."""
        entry.failure = entry.spec.by_name(reason)  # all of it is in the log
        entry.failed_at = self._clock()
        entry.facts = None
        self.move(entry, Status.FAILED)

    def move(self, entry: Entry, status: Status, *, first_load: bool = False) -> None:
        """Change the state and notify subscribers. Raises if the transition is not allowed."""
        previous = entry.status
        check_transition(entry.id, previous, status)
        entry.status = status
        info = entry.facts.info if first_load and entry.facts else None
        self._fan_out.publish(StatusChanged(entry.id, status, previous, entry.failure, info))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def described(facts: ModelFacts) -> str:
    """Context, slots and memory of a loaded model, in a line."""
    shared = facts.fit is not None and facts.fit.spec.native.unified
    n, each = facts.n_slots, facts.n_ctx_seq
    slots = "1 slot" if n == 1 else f"{n} slots"
    said = f"{each} tokens that {slots} share" if shared and n > 1 else f"{slots} of {each} tokens"
    return ", ".join([said, *(f"{readable(taken.total)} of {name}" for name, taken in facts.footprint.items())])


def _reason(error: BaseException) -> str:
    if isinstance(error, ModelFailed):
        return error.reason
    if isinstance(error, LlamapoolError):
        return error.message
    return f"{type(error).__name__}: {error}"
