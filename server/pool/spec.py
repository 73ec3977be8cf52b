"""The configuration of one model as plain values, which `server.app` creates from the settings."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from server.engine.lora import Adapter
from server.engine.params import EngineParams
from server.engine.request import SamplingParams
from server.structured.reasoning_end import UNLIMITED, ReasoningBudget
from server.structured.response_format import ResponseFormat

ALL_THAT_FIT, ALL_LAYERS = -1, -2
AUTO_SLOTS = 4
Task = Literal["generate", "embed", "rerank"]
"""What a request needs a model for."""
# values of llama-server's options
ReasoningFormat = Literal["none", "deepseek", "deepseek-legacy", "auto"]
PoolingName = Literal["", "none", "mean", "cls", "last", "rank"]
SplitMode = Literal["none", "layer", "row", "tensor"]
NumaStrategy = Literal["", "distribute", "isolate", "numactl"]
RopeScaling = Literal["", "none", "linear", "yarn"]
LazyMode = Literal["off", "auto", "on"]


@dataclass(frozen=True, slots=True)
class ScaledFile:
    """The GGUF of a LoRA adapter or a control vector, and its scale."""

    path: Path
    scale: float = 1.0
    id: int | None = field(default=None, repr=False)  # None = its index among the adapters
    name: str = field(default="", repr=False)  # of an adapter that was loaded at runtime


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """The buffer type of tensors whose name contains a match of the pattern."""

    pattern: str
    buffer_type: str


@dataclass(frozen=True, slots=True)
class MetadataOverride:
    """A metadata value that replaces the file's."""

    key: str
    value: int | float | bool | str


@dataclass(frozen=True, slots=True)
class ThreadPlacement:
    """CPUs of a context's threads, instead of all CPUs of their instance.

    ``cpus``: for decoding single tokens; empty = the instance's. ``cpus_batch``: for batches; empty = as ``cpus``.
    ``strict``: one CPU for each thread.
    """

    cpus: frozenset[int] = frozenset()
    cpus_batch: frozenset[int] = frozenset()
    strict: bool = False
    strict_batch: bool = False


@dataclass(frozen=True, slots=True)
class LoadParams:
    """Parameters of the native library (llama.cpp common/common.h, common_params). -1 and None mean automatic."""

    n_ctx: int = 0  # of all slots together, as llama-server's -c; 0 = the model's training context
    n_parallel: int = -1  # slots of each instance; -1 = 4 slots over a unified KV
    mtp: bool = False  # also load the model's own draft heads (multi-token prediction)
    n_ctx_slot: int = 0  # limit of a slot's context in tokens; 0 = none
    instances: int = 1
    n_threads: int = -1
    n_threads_batch: int = -1
    placement: ThreadPlacement | None = None
    n_batch: int = 2048
    n_ubatch: int = 512
    fit_ubatch: bool = True  # whether n_ubatch may be reduced, because it was not set
    devices: tuple[tuple[str, ...] | None, ...] = (None,)  # of all instances, or a set for each; None = every GPU
    n_gpu_layers: int = ALL_THAT_FIT  # or `ALL_LAYERS`
    fit: bool = True  # choose automatic parameters so that the model fits the memory
    fit_ctx: int = 4096  # minimum to which the context of a slot with its own cells is reduced
    fit_target: tuple[int, ...] = (1024,)  # MiB that stay free, for each device or for all
    split_mode: SplitMode = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    tensor_overrides: tuple[TensorOverride, ...] = ()  # the first match applies, before the next three parameters
    cpu_moe: bool = False
    n_cpu_moe: int = 0  # number of first layers whose experts stay on the CPU
    n_cpu_ffn: int = 0  # number of first layers whose dense feed-forward weights stay on the CPU
    no_host: bool = False  # use no host buffers of a device
    metadata_overrides: tuple[MetadataOverride, ...] = ()
    flash_attn: Literal["on", "off", "auto"] = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    kv_unified: bool | None = None  # None = unified only when n_parallel is automatic
    embedding: bool | None = None  # None = if a pooling is set, or if the file is that of an embedding model
    pooling: PoolingName = ""  # "" = the file's
    kv_offload: bool = True
    op_offload: bool = True
    swa_full: bool = False
    mmap: bool = True
    mlock: bool = False
    numa: NumaStrategy = ""
    check_tensors: bool = False
    repack: bool = True  # reorder weights on the CPU for its instructions
    lazy_mode: LazyMode = "auto"  # rows of large tables are read when they are needed
    rope_scaling: RopeScaling = ""
    rope_scale: float = 0.0
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_orig_ctx: int = 0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_beta_fast: float = -1.0
    warmup: bool = True
    lora: tuple[ScaledFile, ...] = ()  # adapter ids are the indices
    lora_init_without_apply: bool = False  # all scales are 0 until /lora-adapters or a request sets them
    control_vectors: tuple[ScaledFile, ...] = ()
    control_vector_layer_range: tuple[int, int] | None = None  # first and last layer; None or 0 = from 1 to the last
    mmproj_offload: bool = True
    mmproj_device: tuple[str, ...] | None = None  # None = the model's first
    image_min_tokens: int = -1
    image_max_tokens: int = -1
    mtmd_batch_max_tokens: int = 1024
    media_marker: str = ""  # "" = new at each load

    @property
    def n_slots(self) -> int:
        """The number of slots of each instance."""
        return AUTO_SLOTS if self.n_parallel < 0 else self.n_parallel

    @property
    def weights(self) -> "LoadParams":
        """Only the parameters that apply to weights; models with the same file and equal parameters share weights."""
        return LoadParams(**{name: getattr(self, name) for name in _OF_WEIGHTS})

    @property
    def unified(self) -> bool:
        """Whether the slots share one KV cache; llama-server's rule (tools/server/server.cpp)."""
        return self.n_parallel < 0 if self.kv_unified is None else self.kv_unified


_OF_WEIGHTS = (
    *("mtp", "devices", "n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "tensor_overrides", "cpu_moe"),
    *("n_cpu_moe", "n_cpu_ffn", "no_host", "metadata_overrides", "mmap", "mlock", "check_tensors", "repack"),
    "lazy_mode",
)

Stamps = list[tuple[int, int, int] | None]


def stamps(paths: Iterable[Path]) -> Stamps:
    """Return for each file (mtime, size, inode), which changes if the file is replaced or modified; None if missing."""
    found: Stamps = []
    for path in paths:
        try:
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append(None)
    return found


NOT_HERE = Path()
"""The path of a file that was not downloaded yet."""


@dataclass(frozen=True, slots=True)
class RemoteFiles:
    """The sources of a model's files; "" = none. ``hf``, ``draft``: ``owner/name[:quantization]``."""

    hf: str = ""
    file: str = ""  # of that repository, instead of a quantization
    url: str = ""
    docker: str = ""  # ``[registry/]repository[:tag]``
    draft: str = ""
    mmproj_url: str = ""  # of the multimodal projector
    mmproj: bool = True  # also use the multimodal projector in the model's folder, as llama-server does
    requested: bool = False  # a client requested the download, which --offline does not forbid


@dataclass(frozen=True, slots=True)
class DraftFile:
    """A draft model and its load parameters."""

    path: Path
    native: LoadParams


@dataclass(frozen=True, slots=True)
class ChatParams:
    """How prompts of this model are rendered, and how its replies are parsed."""

    template: str | None = None  # Jinja2 source that replaces the model's own
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    system_prompt: str = ""  # the first message of chats without a system message
    reasoning_format: ReasoningFormat = "auto"
    reasoning: Literal["on", "off", "auto"] = "auto"
    reasoning_budget: int = -1  # limit of reasoning tokens; -1 = unlimited
    reasoning_budget_message: str = ""  # inserted before the closing tag when the budget is spent
    prefill_assistant: bool = True
    tool_format: str = "auto"  # a name of `server.formats`; auto = detected from the template
    jinja: bool = True  # False: instead of the template, use llama.cpp's built-in equivalent

    def allowance(self, asked: int | None, message: str | None) -> ReasoningBudget:
        """Return the reasoning budget of a request: its own, or the model's."""
        budget = self.reasoning_budget if asked is None or asked == UNLIMITED else asked
        return ReasoningBudget(budget, self.reasoning_budget_message if message is None else message)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One entry of the YAML's ``models``; ``id`` is its key."""

    id: str
    path: Path  # or NOT_HERE
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    mmproj: Path | None = None
    draft: DraftFile | None = None
    load: Literal["startup", "on_demand"] = "on_demand"
    isolation: Literal["auto", "none", "process"] = "none"  # process: in a worker process (`pool.worker`)
    pinned: bool = False  # never unloaded for other models
    native: LoadParams = field(default_factory=LoadParams)
    engine: EngineParams = field(default_factory=EngineParams)
    chat: ChatParams = field(default_factory=ChatParams)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    embd_normalize: int = 2  # -1 none, 0 largest = 32760, 1 taxicab, 2 euclidean, p > 2: p-norm
    stop: tuple[str, ...] = ()  # default stop strings
    shape: ResponseFormat | None = None  # default response format
    n_predict: int = -1  # default of max_tokens; -1 = none
    spm_infill: bool = False  # fill in the middle: suffix, prefix, middle instead of prefix, suffix, middle
    sleep_idle_s: float = -1.0  # -1 = never
    source: str = ""  # where it was configured, for error messages
    remote: RemoteFiles | None = None  # where missing files are downloaded
    origin: Literal["preset", "models_dir", "cache"] = "preset"  # llama-server's values; preset = configured
    hidden: bool = False  # served but not listed, because another model has the same file
    args: tuple[str, ...] = ()  # the command line that serves only this model
    preset: str = ""  # its section in a preset file

    @property
    def missing(self) -> bool:
        """Whether files must be downloaded before the model can be loaded. Reads the file system."""
        if self.remote is None:
            return False
        paths = [self.path, self.draft.path if self.draft else None, self.mmproj if self.remote.mmproj_url else None]
        return not all(os.path.isfile(path) for path in paths if path is not None)

    def stamps(self) -> "Stamps":
        """Return the `stamps` of the files of the model, its projector and its draft model."""
        paths = [self.path, self.mmproj, self.draft.path if self.draft else None]
        return stamps([path for path in paths if path is not None])

    def with_adapters(self, adapters: Iterable[Adapter]) -> Self:
        """Return the specification that also loads those of `adapters` that were loaded at runtime, with their ids."""
        files = [file for file in self.native.lora if not file.name]
        files += [ScaledFile(Path(each.path), 0.0, each.id, each.name) for each in adapters if each.name]
        return replace(self, native=replace(self.native, lora=tuple(files)))

    def without_folders(self, text: str) -> str:
        """Return `text`, an error of the library or the system, with this model's files without their folders. Clients
        see it, and must not learn where files are.
        """
        draft = [] if self.draft is None else [self.draft.path, *(one.path for one in self.draft.native.lora)]
        scaled = (*self.native.lora, *self.native.control_vectors)
        files = [self.path, *([] if self.mmproj is None else [self.mmproj]), *draft, *(one.path for one in scaled)]
        folders = {str(path.parent) for file in files for path in (file, file.absolute(), file.resolve())}
        for folder in sorted(folders - {".", os.sep}, key=len, reverse=True):
            text = text.replace(folder + os.sep, "")
        return text

    def configured_for(self, task: Task) -> bool:
        """Return whether the model is for `task` according to the settings; its file may say otherwise."""
        native = self.native
        ranks = native.pooling == "rank"
        embeds = not ranks and (native.embedding is True or native.pooling != "")
        return {"generate": not (embeds or ranks), "embed": embeds, "rerank": ranks}[task]
