"""The pool's record of one configured model, and a proof that all of them agree with each other."""

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
    """One download of one model's files."""

    files: dict[str, FileProgress] = field(default_factory=dict)  # by URL
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True, eq=False)
class Entry:
    """Everything about one model; changed by the pool only, on the event loop."""

    spec: ModelSpec
    last_used: float
    uses: float = -inf  # as `policy.used_again` counts them, also while it is unloaded
    load_s: float = 0.0  # what its last load took
    status: Status = Status.UNLOADED
    progress: float = 0.0
    failure: str = ""
    failed_at: float = 0.0
    ready_at: float = 0.0
    n_restarts: int = 0  # since its process lived for a while; 0 = its next load is not a restart
    facts: ModelFacts | None = None
    described: ModelFacts | None = None  # what its file says, once somebody has asked before the first load
    adapters: tuple[Adapter, ...] | None = None  # while it sleeps or restarts: those that it had
    loaded: LoadedModel | None = None
    load: Load | None = None
    download: Download | None = None
    transient: bool = False  # here only while its files are downloaded; then the cache has it
    asked: bool = False  # an explicit load, which nobody needs to wait for
    starting: bool = False  # its load at start-up has not ended
    giving_way: bool = False
    n_replacing: int = 0  # removals and reloads under way that replace it; it is not loaded then
    pin: bool | None = None  # in place of the settings' pinned
    keep_alive_s: float | None = None  # in place of the settings' sleep_idle_s, while it is loaded
    waiters: dict[asyncio.Future[Lease], bool] = field(default_factory=dict)  # whether it may load the model
    after_drain: Status = Status.UNLOADED
    task: asyncio.Task[None] | None = None  # the last load or drain
    sizing: asyncio.Task[None] | None = None  # measures it
    measured: Mapping[str, int] | None = (
        None  # bytes by device that must be free for its load, without runtime adapters
    )
    taken: Mapping[str, int] = field(default_factory=dict)  # bytes by device: ``need`` until its load says more
    n_adapter_bytes: int = 0  # in ``taken``: of the adapters that it had when it fell asleep
    fit: Fit | None = None  # as what it was last loaded
    stamps: Stamps = field(default_factory=list)  # of its files as ``measured`` and ``fit`` are for
    compared: bool = False  # since it was queued, its files were compared with ``stamps``
    shared: Mapping[str, int] = field(default_factory=dict)  # of both: weights that other entries may load, too
    weights: Hashable = None  # equal in entries that share them; None = its process is its own
    fitting: bool = False  # its load has not said yet what it takes
    media: frozenset[BitmapKind] | None = None  # what its projector is for, once somebody has asked

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def names(self) -> tuple[str, ...]:
        return self.spec.id, *self.spec.aliases

    @property
    def leases(self) -> Set[Lease]:
        loaded = self.loaded  # once: other threads ask, too
        return frozenset() if loaded is None else loaded.leases

    @property
    def restarting(self) -> bool:
        """Its process has ended, and it is loaded again without a request."""
        return self.n_restarts > 0 and self.loaded is None

    @property
    def runtime_adapters(self) -> tuple[Adapter, ...]:
        """The LoRA adapters that were loaded at runtime, or had been when it fell asleep."""
        generator = None if self.loaded is None else self.loaded.generator
        adapters = (self.adapters or ()) if generator is None else generator.adapters
        return tuple(adapter for adapter in adapters if adapter.name)

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes by device: ``taken``, and the adapters that were loaded since, where most of the weights are."""
        if self.loaded is None:
            return self.taken
        return self._with_adapters(self.taken, self.n_adapter_bytes)

    def need(self, budget: Mapping[str, int]) -> Mapping[str, int] | None:
        """Return the bytes by device that must be free for its load, with the adapters that it had; None = not known.

        Adapters alone do not make it a model that never fits the `budget`, for which no other one is unloaded.
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
        """No lease, and the engine has nothing left to do."""
        loaded = self.loaded  # once: other threads ask, too
        return not self.leases and (loaded is None or not loaded.busy)

    @property
    def leaving(self) -> bool:
        """Its place under ``models_max`` becomes free by itself."""
        return self.status is Status.DRAINING or (self.load is not None and self.load.cancelled)

    @property
    def under_way(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def wanted(self) -> bool:
        """Somebody waits for it, or asked for it."""
        return self.asked or bool(self.waiters)

    @property
    def without_request(self) -> bool:
        """No other model is unloaded for it: it is loaded at the start, again after its process has ended, or for
        requests that may load no model.
        """
        return (self.starting or self.restarting or not self.asked) and not any(self.waiters.values())

    @property
    def serving(self) -> bool:
        """A lease can be had at once."""
        return self.status is Status.READY and not self.giving_way

    def refuse(self, error: Callable[[], Exception]) -> None:
        """Give every waiter an `error` of its own, and forget that anybody wanted the model."""
        self.asked = False
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error())

    def candidate(self, others: Mapping[str, int], budget: Mapping[str, int]) -> Candidate:
        """Return what the policy decides on. `others`: bytes that count for another model."""
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
