"""The pool's record of one configured model, and a proof that all of them agree with each other."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from server.engine.request import Adapters
from server.media.bitmap import BitmapKind
from server.pool.loading import Load
from server.pool.memory import Fit
from server.pool.model import Lease, LoadedModel
from server.pool.policy import Candidate
from server.pool.protocols import FileProgress
from server.pool.spec import ModelSpec
from server.pool.state import OCCUPYING, ModelFacts, ModelState, Status


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


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
    facts: ModelFacts | None = None
    described: ModelFacts | None = None  # what its file says, once somebody has asked before the first load
    adapters: Adapters | None = None  # while it sleeps: the LoRA set of requests that ask for none
    loaded: LoadedModel | None = None
    load: Load | None = None
    download: Download | None = None
    transient: bool = False  # here only while its files are downloaded; then the cache has it
    asked: bool = False  # an explicit load, which nobody needs to wait for
    starting: bool = False  # its load at start-up has not ended
    giving_way: bool = False
    pin: bool | None = None  # in place of the settings' pinned
    keep_alive_s: float | None = None  # in place of the settings' sleep_idle_s, while it is loaded
    leases: set[Lease] = field(default_factory=set)
    waiters: list[asyncio.Future[Lease]] = field(default_factory=list)
    vacant: asyncio.Event = field(default_factory=_set_event)  # set while there is no lease
    after_drain: Status = Status.UNLOADED
    grace: asyncio.Timeout | None = None  # while draining: how long leases may stay
    cut_off: bool = False  # while draining: their requests were cancelled
    abandon_s: float | None = None  # how long they may stay after that; None = for ever
    end_s: float | None = None  # how long its engines may take to end; None = until the watchdog finds a hung step
    ending: asyncio.Timeout | None = None  # of engines that are to end
    task: asyncio.Task[None] | None = None  # the last load or drain
    sizing: asyncio.Task[None] | None = None  # measures it
    need: Mapping[str, int] | None = None  # bytes by device that must be free for its load
    taken: Mapping[str, int] = field(default_factory=dict)  # bytes by device that are its own, from the load's begin on
    fit: Fit | None = None  # as what it was last loaded, of the same files
    fitting: bool = False  # its load has not said yet what it takes
    media: frozenset[BitmapKind] | None = None  # what its projector is for, once somebody has asked

    @property
    def id(self) -> str:
        return self.spec.id

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
        """Whether it is being downloaded, loaded or freed."""
        return self.task is not None and not self.task.done()

    @property
    def wanted(self) -> bool:
        """Somebody waits for it, or asked for it."""
        return self.asked or bool(self.waiters)

    @property
    def serving(self) -> bool:
        """A lease can be had at once."""
        return self.status is Status.READY and not self.giving_way

    def refuse(self, error: Callable[[], Exception]) -> None:
        """Give every waiter an `error` of its own, and forget that anybody wanted the model."""
        self.asked = False
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error())

    def hurry(self, grace_s: float, abandon_s: float, end_s: float) -> None:
        """Shorten a drain, also one that is under way: seconds until requests are cut off, after that until leases are
        abandoned, and until engines that end are taken for hung."""
        self.abandon_s, self.end_s = abandon_s, end_s
        if self.ending is not None:
            self.ending.reschedule(asyncio.get_running_loop().time() + end_s)
        if self.grace is None:
            return
        when = asyncio.get_running_loop().time() + (abandon_s if self.cut_off else grace_s)
        old = self.grace.when()
        if old is None or when < old:
            self.grace.reschedule(when)

    def candidate(self, *, sized: bool) -> Candidate:
        """The view that the policy decides on; `sized`: by bytes, too."""
        return Candidate(
            self.id,
            self.status,
            idle=self.idle,
            last_used=self.last_used,
            uses=self.uses,
            load_s=self.load_s,
            leaving=self.leaving,
            giving_way=self.giving_way,
            sleep_idle_s=self.sleep_idle_s,
            pinned=self.pinned,
            taken=(self.need or {}) if self.fitting else self.taken,
            need=self.need if sized else {},
            fitting=self.fitting,
        )

    @property
    def sleep_idle_s(self) -> float:
        """Seconds without work after which it is freed; negative = never."""
        return self.spec.sleep_idle_s if self.keep_alive_s is None else self.keep_alive_s

    @property
    def pinned(self) -> bool:
        """Whether it is never unloaded for other models."""
        return self.spec.pinned if self.pin is None else self.pin

    def state(self, *, queued: bool, now: float) -> ModelState:
        """The view that endpoints show."""
        return ModelState(
            spec=self.spec,
            status=self.status,
            progress=self.progress,
            failure=self.failure or (self.loaded.failure if self.loaded is not None else ""),
            facts=self.facts,
            loaded=self.loaded,
            last_used=self.last_used,
            sleeps_in_s=self._sleeps_in_s(now),
            n_leases=len(self.leases),
            n_waiting=len(self.waiters),
            queued=queued,
            pinned=self.pinned,
            downloads=tuple(self.download.files.values()) if self.download else (),
            media=self.facts.info.media if self.facts else self.media or frozenset(),
        )

    def _sleeps_in_s(self, now: float) -> float | None:
        if self.status is not Status.READY or self.sleep_idle_s < 0:
            return None
        return max((self.last_used if self.idle else now) + self.sleep_idle_s - now, 0.0)


def check_integrity(entries: Sequence[Entry], queue: Mapping[str, float], models_max: int) -> None:
    """Raise AssertionError naming the model whose records contradict each other. To be called between events."""
    for entry in entries:
        _check_status(entry)
        _check_waiters(entry, queued=entry.id in queue)
    leases = [lease for entry in entries for lease in entry.leases]
    assert len(leases) == len({id(lease) for lease in leases}), "a lease is counted twice"
    held = [entry.id for entry in entries if entry.status in OCCUPYING]
    assert models_max <= 0 or len(held) <= models_max, f"{held} are more than models_max {models_max}"
    assert set(queue) <= {entry.id for entry in entries}, "an unknown model is queued"


def _check_status(entry: Entry) -> None:
    status, under_way = entry.status, entry.task is not None and not entry.task.done()
    assert entry.vacant.is_set() == (not entry.leases), f"{entry.id}: vacant does not match its leases"
    for lease in entry.leases:
        assert not lease.released, f"{entry.id}: a released lease is still counted"
        assert lease.model is entry.loaded, f"{entry.id}: a lease on a model that was freed"
    has_model = status in (Status.READY, Status.DRAINING)
    facts = (entry.load is not None, entry.download is not None, entry.loaded is not None, bool(entry.failure))
    expected = (status is Status.LOADING, status is Status.DOWNLOADING, has_model, status is Status.FAILED)
    assert facts == expected, f"{entry.id}: (load, download, loaded, failure) are {facts} while {status}"
    assert (entry.facts is not None) or status not in (Status.READY, Status.SLEEPING), f"{entry.id}: no facts"
    assert status is Status.READY or not entry.giving_way, f"{entry.id}: gives way while {status}"
    assert under_way or status is not Status.LOADING, f"{entry.id}: nobody loads it"


def _check_waiters(entry: Entry, *, queued: bool) -> None:
    loading = entry.download is not None or (entry.load is not None and not entry.load.cancelled)
    assert not queued or entry.wanted, f"{entry.id}: queued, and nobody wants it"
    assert not entry.wanted or queued or loading, f"{entry.id}: wanted, and nothing is done about it"
    assert not (queued and entry.serving), f"{entry.id}: queued while it serves"
