"""The states of a model and their transitions."""

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

    In llama-server (tools/server/server-models.h, server_model_status), READY and DRAINING are "loaded" (a stopping
    instance counts as loaded until it has exited), and FAILED is "unloaded" with ``failed: true``.
    """

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"  # gets no new leases; becomes UNLOADED or SLEEPING when it is freed
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
"""The states with native memory, which count against ``models_max``."""

LOADABLE = frozenset({Status.UNLOADED, Status.SLEEPING, Status.FAILED})

NO_ROOM = "the other models leave no room"
"""The failure of a model whose process has ended, and which cannot be loaded again because it does not fit."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a loaded model that remain known while it sleeps, without references to native memory."""

    info: ModelInfo
    template: ChatTemplate
    n_ctx_seq: int
    n_slots: int
    loaded_at: float  # unix seconds
    footprint: Footprint = field(default_factory=dict)  # the memory that it took
    fit: Fit | None = None  # of its last load


@dataclass(frozen=True, slots=True)
class ModelState:
    """A snapshot of one model for ``GET /models``, ``/health``, ``/props`` and ``/metrics``.

    ``loaded`` is only for reading statistics and slots: the model may be freed at the next ``await``. A caller that
    uses the model acquires a lease.
    """

    spec: ModelSpec
    status: Status
    progress: float  # 0..1 while loading, 1 when ready
    failure: str  # "" unless the status is FAILED, or an instance of a loaded model no longer steps
    facts: ModelFacts | None  # from the first load until the model is unloaded, also while it sleeps
    loaded: "LoadedModel | None"
    sleeps_in_s: float | None  # seconds until it sleeps if it gets no request; None = never
    n_leases: int
    n_waiting: int  # callers of acquire that wait for this model
    queued: bool  # waits for its turn under models_max
    pinned: bool  # never unloaded for other models
    downloads: tuple[FileProgress, ...] = ()  # its files while they are downloaded
    media: frozenset[BitmapKind] = frozenset()  # supported kinds of media
    adapters: tuple[Adapter, ...] = ()  # LoRA adapters that were loaded at runtime
    restarting: bool = False  # its process has ended, and it will be loaded again

    @property
    def failed(self) -> bool:
        """Whether it cannot serve: its load has failed, its process has ended, or no instance steps."""
        return (
            self.status is Status.FAILED
            or self.restarting
            or (self.status is Status.READY and self.loaded is not None and not self.loaded.serves)
        )

    @property
    def info(self) -> ModelInfo | None:
        """The facts of the GGUF, if they are known."""
        return self.facts.info if self.facts else None

    @property
    def generates(self) -> bool:
        """Whether it generates text; according to the settings until the file was read."""
        return self.info.generates if self.info else self.spec.configured_for("generate")

    @property
    def embeds(self) -> bool:
        """Whether it computes embeddings; according to the settings until the file was read."""
        return self.info.embeds if self.info else not self.generates
