"""The pool's record of one configured model."""

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass, field
from math import inf

from server.engine.lora import Adapter
from server.media.bitmap import BitmapKind
from server.pool.loading import Load
from server.pool.memory import HOST, Fit, without
from server.pool.model import Lease, LoadedModel
from server.pool.policy import Candidate
from server.pool.protocols import FileProgress
from server.pool.spec import ModelSpec, Stamps
from server.pool.state import ModelFacts, ModelState, Status

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Download:
    """A running download of a model's files."""

    files: dict[str, FileProgress] = field(default_factory=dict)  # by URL
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True, eq=False)
class Entry:
    """The state of one model. Only the pool changes it, on the event loop."""

    spec: ModelSpec
    last_used: float
    uses: float = -inf  # as `policy.used_again` counts them, also while it is unloaded
    load_s: float = 0.0  # duration of its last load
    status: Status = Status.UNLOADED
    progress: float = 0.0
    failure: str = ""
    failed_at: float = 0.0
    ready_at: float = 0.0
    n_restarts: int = 0  # since its process ran for `HEALTHY_S`; 0 = its next load is not a restart
    facts: ModelFacts | None = None
    described: ModelFacts | None = None  # facts of its file, if `Pool.describe` was called before the first load
    adapters: tuple[Adapter, ...] | None = None  # while it sleeps or restarts: its adapters before
    loaded: LoadedModel | None = None
    load: Load | None = None
    download: Download | None = None
    transient: bool = False  # exists only during the download; then an entry of the cached model replaces it
    requested: bool = False  # an explicit load, or one that the pool queued itself
    starting: bool = False  # its load at startup has not ended
    giving_way: bool = False  # it gets no new leases, because it is to be unloaded for another model
    n_replacing: int = 0  # running removals and reloads that replace it; it is not loaded meanwhile
    pin: bool | None = None  # overrides the settings' pinned
    keep_alive_s: float | None = None  # overrides the settings' sleep_idle_s while it is loaded
    waiters: dict[asyncio.Future[Lease], bool] = field(default_factory=dict)  # whether it may load the model
    asked_at: float = -inf  # when the first of the waiters began to wait
    after_drain: Status = Status.UNLOADED
    task: asyncio.Task[None] | None = None  # the last load or drain
    sizing: asyncio.Task[None] | None = None  # measures it
    measured: Mapping[str, int] | None = None  # bytes by device that its load needs, without runtime adapters
    taken: Mapping[str, int] = field(default_factory=dict)  # bytes by device: ``need`` until its load reports its fit
    n_adapter_bytes: int = 0  # in ``taken``: of the adapters that it had when it was put to sleep
    fit: Fit | None = None  # of its last load
    stamps: Stamps = field(default_factory=list)  # of the files to which ``measured`` and ``fit`` apply
    compared: bool = False  # since it was queued, its files were compared with ``stamps``
    shared: Mapping[str, int] = field(default_factory=dict)  # of ``taken``: weights that other entries may share
    weights: Hashable = None  # equal in entries that share weights; None = it runs in its own worker process
    fitting: bool = False  # the bytes that its load takes are not known yet
    media: frozenset[BitmapKind] | None = None  # kinds that its projector supports; None = not read yet

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def names(self) -> tuple[str, ...]:
        return self.spec.id, *self.spec.aliases

    @property
    def leases(self) -> Set[Lease]:
        loaded = self.loaded  # read once: other threads call this
        return frozenset() if loaded is None else loaded.leases

    @property
    def restarting(self) -> bool:
        """Whether its process has ended, so that it is loaded again without a request."""
        return self.n_restarts > 0 and self.loaded is None

    @property
    def runtime_adapters(self) -> tuple[Adapter, ...]:
        """The LoRA adapters that were loaded at runtime, also while it sleeps."""
        generator = None if self.loaded is None else self.loaded.generator
        adapters = (self.adapters or ()) if generator is None else generator.adapters
        return tuple(adapter for adapter in adapters if adapter.name)

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes by device: ``taken``, and later adapters, which count for the device with most of the bytes."""
        if self.loaded is None:
            return self.taken
        return self._with_adapters(self.taken, self.n_adapter_bytes)

    def need(self, budget: Mapping[str, int]) -> Mapping[str, int] | None:
        """Return the bytes by device that its load needs, with its runtime adapters; None = unknown.

        Adapters do not raise the need above the `budget`: the policy unloads no model for one that can never fit.
        """
        if self.measured is None:
            return None
        measured = self.measured
        need = self._with_adapters(measured, 0)
        return {device: max(min(n, budget.get(device, n)), measured.get(device, 0)) for device, n in need.items()}

    def _with_adapters(self, amounts: Mapping[str, int], n_counted: int) -> Mapping[str, int]:
        n_bytes = sum(adapter.n_bytes for adapter in self.runtime_adapters) - n_counted
        device = max(amounts, key=amounts.__getitem__, default=HOST)
        return {**amounts, device: amounts.get(device, 0) + n_bytes} if n_bytes else amounts

    @property
    def idle(self) -> bool:
        """Whether it has no lease and its engines have nothing to do."""
        loaded = self.loaded  # read once: other threads call this
        return not self.leases and (loaded is None or not loaded.busy)

    @property
    def leaving(self) -> bool:
        """Whether it is being unloaded, so that its place becomes free."""
        return self.status is Status.DRAINING or (self.load is not None and self.load.cancelled)

    @property
    def under_way(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def wanted(self) -> bool:
        """Whether a request waits for it, or a load is requested."""
        return self.requested or bool(self.waiters)

    @property
    def without_request(self) -> bool:
        """Whether no other model is unloaded for it, because it is loaded at startup, after the end of its process, or
        for requests without autoload.
        """
        return (self.starting or self.restarting or not self.requested) and not any(self.waiters.values())

    @property
    def serving(self) -> bool:
        """Whether a lease is granted without a wait."""
        return self.status is Status.READY and not self.giving_way

    def refuse(self, error: Callable[[], Exception]) -> None:
        """Fail each waiter with a new `error`, and drop a requested load."""
        self.requested = False
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error())

    def candidate(self, others: Mapping[str, int], budget: Mapping[str, int]) -> Candidate:
        """Return the facts for the policy. `others`: bytes that count for another model."""
        need = self.need(budget) if self.compared else None
        return Candidate(
            self.id,
            self.status,
            idle=self.idle,
            last_used=self.last_used,
            uses=self.uses,
            load_s=self.load_s,
            leaving=self.leaving,
            giving_way=self.giving_way,
            pinned=self.pinned,
            taken=without(self.held, others),
            need=None if need is None else without(need, others),
            fitting=self.fitting,
            without_request=self.without_request,
        )

    @property
    def pinned(self) -> bool:
        return self.spec.pinned if self.pin is None else self.pin

    def state(self, *, queued: bool, now: float) -> ModelState:
        return ModelState(
            spec=self.spec,
            status=self.status,
            progress=self.progress,
            failure=self.failure or (self.loaded.failure if self.loaded is not None else ""),
            facts=self.facts,
            loaded=self.loaded,
            sleeps_in_s=self.sleeps_in_s(now),
            n_leases=len(self.leases),
            n_waiting=len(self.waiters),
            queued=queued,
            pinned=self.pinned,
            downloads=tuple(self.download.files.values()) if self.download else (),
            media=self.facts.info.media if self.facts else self.media or frozenset(),
            adapters=self.runtime_adapters,
            restarting=self.restarting,
        )

    def sleeps_in_s(self, now: float) -> float | None:
        """Return the seconds until it is freed if nothing uses it; None = never."""
        after_s = self.spec.sleep_idle_s if self.keep_alive_s is None else self.keep_alive_s
        if self.status is not Status.READY or after_s < 0:
            return None
        return max((self.last_used if self.idle else now) + after_s - now, 0.0)


def log_failure(task: asyncio.Task[None]) -> None:
    """Log the exception of a task that nobody awaits."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed; this is a bug, please report it", task.get_name(), exc_info=error)
