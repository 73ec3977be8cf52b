"""What the configuration says of one model, as plain values. Built from the settings by `server.app`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from server.engine.params import EngineParams
from server.engine.request import SamplingParams


@dataclass(frozen=True, slots=True)
class LoadParams:
    """What the native library gets (llama.cpp common/common.h, common_params). -1 and None mean automatic."""

    n_ctx: int = 0  # of all slots together, as llama-server's -c; 0 = the model's training context
    n_parallel: int = -1  # slots of each instance; -1 = 4 slots over a unified KV
    instances: int = 1
    n_threads: int = -1
    n_threads_batch: int = -1
    n_batch: int = 2048
    n_ubatch: int = 512
    n_gpu_layers: int = -1  # -1 = auto, -2 = all
    split_mode: Literal["none", "layer", "row"] = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    flash_attn: Literal["on", "off", "auto"] = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    kv_unified: bool | None = None  # None = unified only when n_parallel is automatic
    kv_offload: bool = True
    op_offload: bool = True
    swa_full: bool = False
    mmap: bool = True
    mlock: bool = False
    numa: Literal["", "distribute", "isolate", "numactl"] = ""
    check_tensors: bool = False
    rope_scaling: Literal["", "none", "linear", "yarn"] = ""
    rope_scale: float = 0.0
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_orig_ctx: int = 0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_beta_fast: float = -1.0
    warmup: bool = True


@dataclass(frozen=True, slots=True)
class ChatParams:
    """How chat requests of this model are rendered and read."""

    template: str | None = None  # Jinja2 source that replaces the model's own
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    reasoning_format: Literal["none", "deepseek", "deepseek-legacy", "auto"] = "auto"
    reasoning: Literal["on", "off", "auto"] = "auto"
    prefill_assistant: bool = True


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One entry of the YAML's ``models``; ``id`` is its key."""

    id: str
    path: Path
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    mmproj: Path | None = None
    load: Literal["startup", "on_demand"] = "on_demand"
    native: LoadParams = field(default_factory=LoadParams)
    engine: EngineParams = field(default_factory=EngineParams)
    chat: ChatParams = field(default_factory=ChatParams)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    n_predict: int = -1  # default and upper limit of max_tokens; -1 = none
    sleep_idle_s: float = -1.0  # -1 = never
    source: str = ""  # where it was configured, for error messages
