"""The protocols that the pool needs from the native side, and the parts of a loaded model."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from server.engine.lora import Adapter
from server.engine.media import MediaPrompt
from server.engine.prefix_cache import SlotState
from server.engine.request import Adapters, Request, Sink
from server.engine.runner_api import EmbedderInfo, EmbeddingRunner, Runner, Vectors
from server.engine.sequence import Ticket
from server.engine.snapshots import ChoiceView, InstanceView, SlotSnapshot, TierView
from server.engine.stats import EngineStats
from server.media.bitmap import Bitmap, BitmapKind
from server.pool.block_events import BlockReport
from server.pool.memory import Fit, Footprint, Memory
from server.pool.spec import ModelSpec
from server.vocab import Vocab


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts read from the GGUF, for /v1/models and /props."""

    description: str = ""  # llama_model_desc, e.g. "llama 1B Q8_0"
    ftype: str = ""
    vocab_type: int = 0
    n_vocab: int = 0
    n_ctx_train: int = 0
    n_embd: int = 0
    n_params: int = 0
    size: int = 0  # bytes of all tensors
    bos_token: str = ""
    add_bos: bool = True  # tokenizing adds it
    eos_token: str = ""
    chat_template: str = ""  # "" where the model has none
    chat_template_tool_use: str = ""  # its template named "tool_use", if any
    built_in_template: str = ""  # the name of the one that llama.cpp takes the chats' for; "" where it knows none
    metadata: dict[str, str] = field(default_factory=dict)
    fingerprint: str = ""  # of the weights' content
    adapter_fingerprints: tuple[str, ...] = ()  # of the LoRA adapters' content, by id
    control_vectors: str = ""  # the control vectors' content, scales and layers
    generates: bool = True
    embeds: bool = False
    media: frozenset[BitmapKind] = frozenset()  # what it sees or hears
    media_marker: str = ""  # placeholder of a medium in a prompt; "" if it takes none or is not loaded
    rerank_template: str = ""  # the prompt of a query and a document, with {query} and {document}; "" = a pair


class ModelEngine(Protocol):
    """What the pool and the monitoring endpoints need of any engine."""

    @property
    def n_ctx_seq(self) -> int: ...
    @property
    def n_slots(self) -> int: ...
    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""

    @property
    def failure(self) -> str:
        """Why one of its instances no longer steps; "" while all do."""

    @property
    def serves(self) -> bool:
        """Whether an instance is left that can."""

    @property
    def hangs(self) -> bool:
        """Whether a thread did not return from a step."""

    def check_progress(self, limit_s: float) -> None:
        """Give up instances that have been in one step for too long. Called periodically."""

    @property
    def stats(self) -> EngineStats:
        """Totals since the load; readable after the engine was closed, too."""

    def slots(self) -> list[SlotSnapshot]: ...
    def check_integrity(self) -> None:
        """Prove that nothing is lost; only meaningful while idle. Raises `AssertionError`."""

    async def close(self, drain_s: float = 0.0) -> None:
        """Give running requests `drain_s` seconds, then fail them and free the contexts."""


class Generator(ModelEngine, Protocol):
    """A generating engine: in this process (`server.engine.engine.Engine`, documented there) or in a worker."""

    @property
    def n_slots_each(self) -> int:
        """Of each instance."""

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The loaded LoRA adapters, by id, with the scales of requests that ask for none."""

    def set_adapter_scales(self, scales: Adapters) -> None:
        """Set these scales, and 0 for all other adapters. Raises `InvalidRequest`."""

    def submit(self, request: Request, sink: Sink) -> Ticket:
        """Queue a request; events go to `sink` on the event loop. Raises immediate errors."""

    def cancel(self, ticket: Ticket) -> None: ...
    def preparing(self) -> AbstractContextManager[None]:
        """Around the preparation of a request."""

    async def save_slot(self, id_slot: int, owner: str = "") -> SlotState: ...
    async def restore_slot(self, id_slot: int, saved: SlotState) -> None: ...
    async def erase_slot(self, id_slot: int, owner: str = "") -> int: ...
    async def reset_cache(self) -> int: ...
    def limit_caches(self, n_bytes: int) -> None: ...

    # ---- views

    async def block_changes(self) -> BlockReport:
        """Return the prompt blocks stored and removed since the last call. Raises `Unavailable`."""

    def watch(self, *, wanted: bool) -> None: ...
    def views(self) -> Sequence[InstanceView]: ...
    def ended(self) -> Sequence[ChoiceView]: ...
    def cached_states(self) -> Mapping[str, TierView]: ...
    @property
    def now(self) -> float:
        """The clock of all these times."""


class Embedder(ModelEngine, Protocol):
    """An engine that embeds, here or in another process."""

    @property
    def info(self) -> EmbedderInfo: ...
    def preparing(self) -> AbstractContextManager[None]: ...
    def submit(self, inputs: Sequence[Sequence[int] | MediaPrompt]) -> asyncio.Future[list[Vectors]]:
        """Return the vectors of each input. Raises immediate errors."""


class MediaReader(Protocol):
    """A loaded projector, as far as prompts are concerned. Safe in any thread."""

    @property
    def kinds(self) -> frozenset[BitmapKind]:
        """The media that the model supports."""

    @property
    def marker(self) -> str:
        """The placeholder of a medium in a rendered prompt."""

    @property
    def sample_rate(self) -> int:
        """Samples per second that audio must have; 0 where the model hears none."""

    @property
    def fingerprint(self) -> str:
        """Of all that the embeddings of a medium depend on."""

    async def ready(self) -> None:
        """Wait while the reader restarts. Raises `Unavailable` if that takes long or fails."""

    def tokenize(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> MediaPrompt:
        """A prompt of texts, in which markers are text, and media; blocking, as long as preprocessing takes.

        Raises `server.errors.InvalidRequest` for a medium that the model can't take.
        """

    def count(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> int:
        """How many tokens `tokenize` would give; media need no data for it, only their sizes."""


class Weights(Protocol):
    """Loaded weights, shared by all instances of a model."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def vocab(self) -> Vocab: ...
    @property
    def media(self) -> MediaReader | None:
        """The media reader, if the model has a projector."""

    def runner(self) -> Runner:
        """A new context over these weights; blocking. Raises `server.errors.ModelFailed` when memory is short."""

    def embedding_runner(self) -> EmbeddingRunner:
        """Return a context that embeds, like `runner`."""

    def footprint(self) -> Footprint:
        """The memory of the weights and all contexts over them; empty if unknown."""

    def close(self) -> None:
        """Free the weights; every runner must be closed before."""


@dataclass(frozen=True, slots=True)
class FileProgress:
    """Downloaded bytes of one file. ``total`` is 0 if the hub did not say."""

    url: str
    done: int
    total: int


class Fetcher(Protocol):
    """Gets the files of models that are not on this machine; blocking, called in threads."""

    def check(self, name: str, wanted: Callable[[], bool]) -> None:
        """Check that a client may download this model and that it exists. Raises `server.errors.InvalidRequest` for an
        invalid name, `NotFound`, `NotSupported`, and `DownloadFailed`, also soon after the answer is no longer
        `wanted`.
        """

    def fetch(self, spec: ModelSpec, report: Callable[[FileProgress], None], wanted: Callable[[], bool]) -> ModelSpec:
        """The specification with its files' places, once they are there; stops soon after it is not `wanted`.

        Raises `server.errors.NotFound`, `DownloadFailed`.
        """

    def remove(self, name: str) -> None:
        """Delete a model's files from the cache. Raises `server.errors.Unavailable`."""


class Vocabulary(Protocol):
    """Of a model whose weights are elsewhere."""

    @property
    def vocab(self) -> Vocab: ...
    def close(self) -> None: ...


class Loader(Protocol):
    """Loads weights; blocking, called in a thread."""

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> Weights:
        """Report 0..1 through `progress`; it returns False to stop the load.

        Raises `server.errors.ModelFailed` with the reason (missing file, not a GGUF, unsupported architecture, memory).
        """

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        """Choose what `spec` leaves open so that it fits the free memory and `granted` (bytes by device). Raises
        `server.errors.ModelFailed` with the numbers if nothing fits.
        """

    def least(self, spec: ModelSpec) -> Footprint:
        """Return the least memory of `spec` with all layers in their intended place; empty if unknown. Raises
        `server.errors.ModelFailed`.
        """

    def uses_devices(self, spec: ModelSpec) -> bool:
        """Say whether devices besides the CPU compute the model. Neither blocks nor opens a context on a device."""

    def memory(self) -> Mapping[str, Memory]:
        """Return the memory of the machine and its devices now, without devices that do not report it."""

    def describe(self, spec: ModelSpec) -> ModelInfo:
        """Describe the file without loading it. Raises `server.errors.ModelFailed`."""

    def vocabulary(self, spec: ModelSpec) -> Vocabulary:
        """Read the vocabulary without the weights. Raises `server.errors.ModelFailed`."""

    def media(self, spec: ModelSpec) -> frozenset[BitmapKind]:
        """Return the media that its projector supports, quickly; nothing if unreadable."""
