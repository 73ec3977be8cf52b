"""The protocols that the pool needs from the native side, and the parts of a loaded model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from server.engine.media import MediaPrompt
from server.engine.runner_api import EmbeddingRunner, Runner
from server.media.bitmap import Bitmap, BitmapKind
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
    chat_template: str = ""  # "" = the model has none
    chat_template_tool_use: str = ""  # its template named "tool_use", if any
    built_in_template: str = ""  # name of llama.cpp's equivalent of `chat_template`; "" = none
    metadata: dict[str, str] = field(default_factory=dict)
    fingerprint: str = ""  # of the weights' content
    control_vectors: str = ""  # the control vectors' content, scales and layers
    generates: bool = True
    embeds: bool = False
    media: frozenset[BitmapKind] = frozenset()  # supported kinds of media
    media_marker: str = ""  # placeholder of a medium in a prompt; "" = no media, or not loaded
    rerank_template: str = ""  # prompt with {query} and {document}; "" = the two are tokenized as a pair


class MediaReader(Protocol):
    """Tokenizes prompts with media by a loaded projector. Thread-safe."""

    @property
    def kinds(self) -> frozenset[BitmapKind]:
        """The media that the model supports."""

    @property
    def marker(self) -> str:
        """The placeholder of a medium in a rendered prompt."""

    @property
    def sample_rate(self) -> int:
        """Required samples per second of audio; 0 = the model does not support audio."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that the embeddings of a medium depend on."""

    def tokenize(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> MediaPrompt:
        """Return the tokens of texts and media; blocks during the preprocessing of media. Markers in texts are text.

        Raises `server.errors.InvalidRequest` for a medium that the model does not support.
        """

    def count(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> int:
        """Return the number of tokens that `tokenize` returns. Only the sizes of media are needed, not their data."""


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
        """Return a new context over these weights; blocking. Raises `server.errors.ModelFailed` if memory is short."""

    def embedding_runner(self) -> EmbeddingRunner:
        """Return a context that embeds, like `runner`."""

    def footprint(self) -> Footprint:
        """Return the memory of the weights and all contexts over them; empty if unknown."""

    def close(self) -> None:
        """Free the weights; every runner must be closed before."""


@dataclass(frozen=True, slots=True)
class FileProgress:
    """Downloaded bytes of one file. ``total`` is 0 if the hub did not say."""

    url: str
    done: int
    total: int


class Fetcher(Protocol):
    """Downloads the files of models; blocks, and is called in threads."""

    def check(self, name: str, wanted: Callable[[], bool]) -> None:
        """Check that a client may download this model and that it exists. Raises `server.errors.InvalidRequest` for an
        invalid name, `NotFound`, `NotSupported`, and `DownloadFailed`, also soon after the answer is no longer
        `wanted`.
        """

    def fetch(self, spec: ModelSpec, report: Callable[[FileProgress], None], wanted: Callable[[], bool]) -> ModelSpec:
        """Download missing files, and return the specification with their paths. Stop soon after it is not `wanted`.

        Raises `server.errors.NotFound`, `DownloadFailed`.
        """

    def remove(self, name: str) -> None:
        """Delete a model's files from the cache. Raises `server.errors.Unavailable`."""


class Vocabulary(Protocol):
    """The vocabulary of a model whose weights are in another process."""

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
        """Choose the automatic parameters of `spec` so that it fits the free memory and `granted` (bytes by device).
        Raises `server.errors.ModelFailed` with the numbers if it cannot fit.
        """

    def least(self, spec: ModelSpec) -> Footprint:
        """Return the minimum memory of `spec` with all layers on the configured devices; empty if unknown. Raises
        `server.errors.ModelFailed`.
        """

    def uses_devices(self, spec: ModelSpec) -> bool:
        """Return whether devices besides the CPU compute the model. Neither blocks nor opens a context on a device."""

    def memory(self) -> Mapping[str, Memory]:
        """Return the memory of the machine and its devices now, without devices that do not report it."""

    def describe(self, spec: ModelSpec) -> ModelInfo:
        """Describe the file without loading it. Raises `server.errors.ModelFailed`."""

    def vocabulary(self, spec: ModelSpec) -> Vocabulary:
        """Read the vocabulary without the weights. Raises `server.errors.ModelFailed`."""

    def media_kinds(self, spec: ModelSpec) -> frozenset[BitmapKind]:
        """Return the kinds of media that the projector supports; empty if its header cannot be read. Takes a few ms."""
