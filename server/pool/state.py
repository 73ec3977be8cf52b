"""What a model of the pool can be, and what may follow what."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from server.engine.lora import Adapter
from server.media.bitmap import BitmapKind
from server.pool.memory import Fit, Footprint
from server.pool.protocols import FileProgress, ModelInfo
from server.pool.spec import ModelSpec
from server.templates.template import ChatTemplate

if TYPE_CHECKING:
    from server.pool.model import LoadedModel


class Status(StrEnum):
    """The state of one configured model.

    llama-server (tools/server/server-models.h, server_model_status) says "loaded" for READY, also for DRAINING
    (a stopping instance counts as loaded until it has exited), and "unloaded" with ``failed: true`` for FAILED.
    """

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"  # takes no new lease; becomes UNLOADED or SLEEPING once it is freed
    SLEEPING = "sleeping"  # freed after idling; the next acquire loads it again
    FAILED = "failed"  # the last load or download failed, freeing it did, or its process has ended
    DOWNLOADING = "downloading"  # its files are fetched; becomes UNLOADED or FAILED


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.UNLOADED: frozenset({Status.LOADING, Status.DOWNLOADING}),
    Status.DOWNLOADING: frozenset({Status.UNLOADED, Status.FAILED}),
    Status.LOADING: frozenset({Status.READY, Status.FAILED, Status.UNLOADED}),
    Status.READY: frozenset({Status.DRAINING, Status.FAILED}),
    Status.DRAINING: frozenset({Status.UNLOADED, Status.SLEEPING, Status.FAILED}),
    Status.SLEEPING: frozenset({Status.LOADING, Status.UNLOADED}),
    Status.FAILED: frozenset({Status.LOADING, Status.DOWNLOADING, Status.UNLOADED}),
}

OCCUPYING = frozenset({Status.LOADING, Status.READY, Status.DRAINING})
"""The states that hold native memory, and so count against ``models_max``."""

LOADABLE = frozenset({Status.UNLOADED, Status.SLEEPING, Status.FAILED})

NO_ROOM = "the other models leave no room"
"""The failure of a model whose process has ended and that waits for room to be loaded again."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What stays known of a loaded model while it sleeps: nothing here refers to native memory."""

    info: ModelInfo
    template: ChatTemplate
    n_ctx_seq: int
    n_slots: int
    loaded_at: float  # unix seconds
    footprint: Footprint = field(default_factory=dict)  # what it has taken, or takes when it wakes up
    fit: Fit | None = None  # as what it was loaded


@dataclass(frozen=True, slots=True)
class ModelState:
    """One model at one moment, for ``GET /models``, ``/health``, ``/props`` and ``/metrics``.

    ``loaded`` is for looking only (statistics, slots): what it holds may be freed at the next ``await``. A caller
    that uses the model takes a lease.
    """

    spec: ModelSpec
    status: Status
    progress: float  # 0..1 while loading, 1 when ready
    failure: str  # "" unless the status is FAILED, or an instance of a loaded model no longer steps
    facts: ModelFacts | None  # from the first load until the model is unloaded, also while it sleeps
    loaded: "LoadedModel | None"
    sleeps_in_s: float | None  # until it is freed if nobody asks it for anything; None = never
    n_leases: int
    n_waiting: int  # callers of acquire that wait for this model
    queued: bool  # waits for its turn under models_max
    pinned: bool  # never unloaded for other models
    downloads: tuple[FileProgress, ...] = ()  # its files, while they are fetched
    media: frozenset[BitmapKind] = frozenset()  # what it sees or hears
    adapters: tuple[Adapter, ...] = ()  # LoRA adapters that were loaded at runtime
    restarting: bool = False  # its process has ended, and it is loaded again

    @property
    def failed(self) -> bool:
        """It can't serve: its load has failed, its process has ended, or no instance is left that steps."""
        return (
            self.status is Status.FAILED
            or self.restarting
            or (self.status is Status.READY and self.loaded is not None and not self.loaded.serves)
        )

    @property
    def info(self) -> ModelInfo | None:
        """The GGUF's facts, where they are known."""
        return self.facts.info if self.facts else None

    @property
    def generates(self) -> bool:
        """Return whether it generates text; by the settings until the file is known."""
        return self.info.generates if self.info else self.spec.configured_for("generate")

    @property
    def embeds(self) -> bool:
        """Return whether it computes vectors; by the settings until the file is known."""
        return self.info.embeds if self.info else not self.generates
