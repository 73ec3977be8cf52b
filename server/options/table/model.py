"""The models' part of the option table: one field, one option.

A field's docstring is its description in --help, docs/configuration.md and the YAML's schema. Fields that share
a dataclass of the inside (`LoadParams`, `EngineParams`, `ChatParams`, `SamplingParams`) have its names.
Flags and variables are llama-server's (llama.cpp common/arg.cpp); a field without any is Llamapool's own.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from server.options.table.adapters import AdapterSettings
from server.options.table.chat import ChatSettings
from server.options.table.cpus import known_mask, known_masks, known_range, known_ranges
from server.options.table.devices import AUTO, DeviceSets
from server.options.table.embedding import EmbeddingSettings
from server.options.table.hub import ImageName, RepositoryName, Url
from server.options.table.media import MediaSettings, ProjectorSettings
from server.options.table.option import SettingsModel, option
from server.options.table.overrides import OverrideSettings
from server.options.table.sampling import SamplingSettings
from server.options.table.speculation import CacheType, SpeculationSettings
from server.options.table.values import (
    AutoBool,
    Bool,
    FilePath,
    Float,
    GpuLayers,
    Int,
    OnOff,
    Proportions,
    Sizes,
    Switch,
    TextList,
    split_list,
    without_zero,
)

WHERE = ("path", "hf", "hf_file", "model_url", "docker_repo")
"""What says where a model's file is: of one model, never of all."""
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock"]
MAX_SLOTS = 256  # LLAMA_MAX_SEQ


class ContextSettings(SettingsModel):
    """What the native context gets."""

    group: ClassVar[str] = "Context and memory"

    @model_validator(mode="after")
    def _quantized_values_need_flash_attention(self) -> "ContextSettings":
        if self.flash_attn == "off" and self.cache_type_v not in ("f32", "f16", "bf16"):
            raise ValueError("cache_type_v is quantized, which needs flash_attn on or auto; change one of them")
        return self

    n_ctx: Annotated[Int, option("-c", "--ctx-size", env="LLAMA_ARG_CTX_SIZE"), Field(ge=-1)] = -1
    """Tokens of context of all slots of an instance together; -1 = what the model was trained for, for each slot with
    cells of its own, or what fits of it (fit); 0 = all of it, or the load fails."""
    fit: Annotated[OnOff, option("-fit", "--fit", env="LLAMA_ARG_FIT")] = "on"
    """Shorten the context where n_ctx is -1, and leave experts and layers on the processor where n_gpu_layers is auto,
    until the model fits the memory that is free."""
    fit_target: Annotated[
        Sizes, option("-fitt", "--fit-target", env="LLAMA_ARG_FIT_TARGET", metavar="MIB,..."), Field(min_length=1)
    ] = (1024,)
    """MiB that stay free on every device where that can be had, or with commas on each; without any, of the machine's
    own memory."""
    fit_ctx: Annotated[Int, option("-fitc", "--fit-ctx", env="LLAMA_ARG_FIT_CTX"), Field(ge=1)] = 4096
    """Tokens, for each slot with cells of its own, below which fit shortens no context."""
    kv_unified_per_slot: Annotated[
        Int, option("--kv-unified-per-slot", env="LLAMA_ARG_KV_UNIFIED_PER_SLOT"), Field(ge=0)
    ] = 0
    """Most tokens of each slot's context, and where n_ctx is -1, the room for each slot; 0 = as many as there are."""
    n_parallel: Annotated[
        Int,
        option("-np", "--parallel", env="LLAMA_ARG_N_PARALLEL"),
        Field(ge=-1, le=MAX_SLOTS),
        AfterValidator(without_zero),
    ] = -1
    """Slots of each instance; -1 = 4 over a unified KV cache. Of a model that embeds: texts of a decode, -1 = 64."""
    kv_unified: Annotated[
        AutoBool,
        option("-kvu", "--kv-unified", env="LLAMA_ARG_KV_UNIFIED", off=("-no-kvu", "--no-kv-unified")),
    ] = None
    """One KV cache that all slots share, instead of a fixed part each; auto = only when n_parallel is -1."""
    n_batch: Annotated[Int, option("-b", "--batch-size", env="LLAMA_ARG_BATCH"), Field(ge=1)] = 2048
    """Most tokens of one decode call."""
    n_ubatch: Annotated[Int, option("-ub", "--ubatch-size", env="LLAMA_ARG_UBATCH"), Field(ge=1)] = 512
    """Most tokens computed at once; bounds the compute buffer."""
    flash_attn: Annotated[Switch, option("-fa", "--flash-attn", env="LLAMA_ARG_FLASH_ATTN")] = "auto"
    """Flash attention; auto = wherever it can be computed. On many CPUs off generates twice as fast from some thousand
    tokens of context on and reads prompts a quarter slower, with larger compute buffers (benchmarks/README.md)."""
    cache_type_k: Annotated[
        CacheType, option("-ctk", "--cache-type-k", env="LLAMA_ARG_CACHE_TYPE_K", metavar="TYPE")
    ] = "f16"
    """Type of the keys in the KV cache."""
    cache_type_v: Annotated[
        CacheType, option("-ctv", "--cache-type-v", env="LLAMA_ARG_CACHE_TYPE_V", metavar="TYPE")
    ] = "f16"
    """Type of the values in the KV cache; a quantized one needs flash attention."""
    swa_full: Annotated[Bool, option("--swa-full", env="LLAMA_ARG_SWA_FULL")] = False
    """Keep the whole context of sliding-window layers."""
    rope_scaling: Annotated[
        Literal["", "none", "linear", "yarn"],
        option("--rope-scaling", env="LLAMA_ARG_ROPE_SCALING_TYPE", metavar="TYPE"),
    ] = ""
    """RoPE frequency scaling; empty = as the model says."""
    rope_scale: Annotated[Float, option("--rope-scale", env="LLAMA_ARG_ROPE_SCALE"), Field(ge=0)] = 0.0
    """RoPE context scaling factor: expands the context by this factor; 0 = as the model says."""
    rope_freq_base: Annotated[Float, option("--rope-freq-base", env="LLAMA_ARG_ROPE_FREQ_BASE"), Field(ge=0)] = 0.0
    """RoPE base frequency (NTK-aware scaling); 0 = as the model says."""
    rope_freq_scale: Annotated[Float, option("--rope-freq-scale", env="LLAMA_ARG_ROPE_FREQ_SCALE"), Field(ge=0)] = 0.0
    """RoPE frequency scale: expands the context by 1/N; 0 = as the model says."""
    yarn_orig_ctx: Annotated[Int, option("--yarn-orig-ctx", env="LLAMA_ARG_YARN_ORIG_CTX"), Field(ge=0)] = 0
    """YaRN: the model's original context; 0 = its training context."""
    yarn_ext_factor: Annotated[Float, option("--yarn-ext-factor", env="LLAMA_ARG_YARN_EXT_FACTOR")] = -1.0
    """YaRN: extrapolation mix; 0 = full interpolation, negative = as the model says."""
    yarn_attn_factor: Annotated[Float, option("--yarn-attn-factor", env="LLAMA_ARG_YARN_ATTN_FACTOR")] = -1.0
    """YaRN: scale of the attention's magnitude; negative = as the model says."""
    yarn_beta_slow: Annotated[Float, option("--yarn-beta-slow", env="LLAMA_ARG_YARN_BETA_SLOW")] = -1.0
    """YaRN: high correction dimension; negative = as the model says."""
    yarn_beta_fast: Annotated[Float, option("--yarn-beta-fast", env="LLAMA_ARG_YARN_BETA_FAST")] = -1.0
    """YaRN: low correction dimension; negative = as the model says."""


class HardwareSettings(SettingsModel):
    """Where and how weights are loaded and computed."""

    group: ClassVar[str] = "Loading and hardware"

    @model_validator(mode="after")
    def _processors_and_devices_for_each_instance(self) -> "HardwareSettings":
        for name in ("cpu_range", "cpu_mask"):
            n = len(getattr(self, name))
            if n > 1 and n != self.instances:
                raise ValueError(
                    f"{name} names {n} sets of processors for {self.instances} instances; name one, or as many"
                )
        if len(self.device) not in (1, self.instances):
            raise ValueError(
                f"device names {len(self.device)} sets of devices for {self.instances} instances; name one, or as many"
            )
        return self

    load: Annotated[Literal["startup", "on_demand"], option(metavar="WHEN")] = "on_demand"
    """When the model is loaded: at start-up, or with the first request; a model named by -m: startup."""
    isolation: Annotated[Literal["none", "process"], option(metavar="HOW")] = "none"
    """process: the model runs in a process of its own: a crash of it or an end for want of memory costs no other model,
    it is started again, and its steps don't share the interpreter with HTTP."""
    pinned: Annotated[Bool, option()] = False
    """The model stays loaded, whatever other models need."""
    instances: Annotated[Int, option(), Field(ge=1, le=64)] = 1
    """Contexts over the same weights, each with its own slots and step thread."""
    device: Annotated[DeviceSets, option("-dev", "--device", env="LLAMA_ARG_DEVICE", metavar="NAME,...")] = (AUTO,)
    """Devices that the model is offloaded to: names of --list-devices with commas, none, or auto for every GPU. With
    several instances semicolons may separate a set for each (YAML: a list); each distinct set gets its own weights."""
    sleep_idle_seconds: Annotated[Int, option("--sleep-idle-seconds"), Field(ge=-1), AfterValidator(without_zero)] = -1
    """Seconds without a request after which the model is unloaded until the next one; -1 = never."""
    n_threads: Annotated[Int, option("-t", "--threads", env="LLAMA_ARG_THREADS"), Field(ge=-1)] = -1
    """CPU threads of each instance for generation; -1 or 0 = automatic: physical cores by the number of instances.
    While other processes keep processors busy, fewer of them compute."""
    n_threads_batch: Annotated[Int, option("-tb", "--threads-batch"), Field(ge=-1)] = -1
    """CPU threads for prompts; -1 or 0 = as n_threads."""
    cpu_range: Annotated[TextList, option("-Cr", "--cpu-range", metavar="LO-HI,..."), AfterValidator(known_ranges)] = ()
    """Processors that compute, such as 0-3; with commas, a range for each instance. Linux only."""
    cpu_mask: Annotated[TextList, option("-C", "--cpu-mask", metavar="M,..."), AfterValidator(known_masks)] = ()
    """The same as hexadecimal masks, in addition to the ranges."""
    cpu_strict: Annotated[Int, option("--cpu-strict", metavar="0|1"), Field(ge=0, le=1)] = 0
    """1: each compute thread keeps to a processor of its own. Linux only."""
    cpu_range_batch: Annotated[
        str, option("-Crb", "--cpu-range-batch", metavar="LO-HI"), AfterValidator(known_range)
    ] = ""
    """Processors that compute prompts, and the tokens of several slots together, of all instances; default: those of
    cpu_range and cpu_mask. As many threads as there are, unless n_threads_batch says so."""
    cpu_mask_batch: Annotated[str, option("-Cb", "--cpu-mask-batch", metavar="M"), AfterValidator(known_mask)] = ""
    """The same as a hexadecimal mask, in addition to the range."""
    cpu_strict_batch: Annotated[Int, option("--cpu-strict-batch", metavar="0|1"), Field(ge=0, le=1)] = 0
    """1: so does each thread that computes prompts."""
    prio: Annotated[Int, option("--prio"), Field(ge=-1, le=3)] = 0
    """Priority of the threads that compute: low (-1, nice 5 or what the process has if that is more), the process's
    (0), medium (1, nice -5), high (2, -10), highest (3, -20). The system may refuse the last three. Linux only."""
    n_gpu_layers: Annotated[
        GpuLayers, option("-ngl", "--gpu-layers", "--n-gpu-layers", env="LLAMA_ARG_N_GPU_LAYERS"), Field(ge=-2)
    ] = -1
    """Layers on the GPU: a number, auto (-1) or all (-2)."""
    split_mode: Annotated[
        Literal["none", "layer", "row", "tensor"],
        option("-sm", "--split-mode", env="LLAMA_ARG_SPLIT_MODE", metavar="MODE"),
    ] = "layer"
    """How a model is split over several GPUs. What fits is not chosen where tensors are."""
    tensor_split: Annotated[
        Proportions, option("-ts", "--tensor-split", env="LLAMA_ARG_TENSOR_SPLIT", metavar="N0,N1,...")
    ] = ()
    """Parts of the model for each GPU, as proportions."""
    main_gpu: Annotated[Int, option("-mg", "--main-gpu", env="LLAMA_ARG_MAIN_GPU"), Field(ge=0)] = 0
    """The GPU for the whole model (split_mode none) or for small tensors (row)."""
    kv_offload: Annotated[
        Bool, option("-kvo", "--kv-offload", env="LLAMA_ARG_KV_OFFLOAD", off=("-nkvo", "--no-kv-offload"))
    ] = True
    """KV cache on the GPU."""
    op_offload: Annotated[Bool, option("--op-offload", off=("--no-op-offload",))] = True
    """Large operations on host tensors run on the GPU."""
    load_mode: Annotated[
        LoadMode,
        option("-lm", "--load-mode", env="LLAMA_ARG_LOAD_MODE", metavar="MODE", replaces=("mmap", "mlock")),
    ] = "auto"
    """How the file is read: auto (mmap), none, mmap, mlock (keep in RAM), mmap+mlock."""
    mmap: Annotated[AutoBool, option("--mmap", env="LLAMA_ARG_MMAP", off=("--no-mmap",), replaces=("load_mode",))] = (
        None
    )
    """Map the file into memory; auto = as load_mode says (older llama-servers' flag)."""
    mlock: Annotated[AutoBool, option("--mlock", env="LLAMA_ARG_MLOCK", replaces=("load_mode",))] = None
    """Keep the weights in RAM; auto = as load_mode says (older llama-servers' flag)."""
    numa: Annotated[
        Literal["", "distribute", "isolate", "numactl"], option("--numa", env="LLAMA_ARG_NUMA", metavar="TYPE")
    ] = ""
    """NUMA strategy of the process; empty = none."""
    lazy_mode: Annotated[
        Literal["off", "auto", "on"], option("-lzm", "--lazy-mode", env="LLAMA_ARG_LAZY_MODE", metavar="MODE")
    ] = "auto"
    """Whether rows of tables such as embeddings by layer are read when they are needed: auto = of those above 4 GiB."""
    repack: Annotated[Bool, option("--repack", env="LLAMA_ARG_REPACK", off=("-nr", "--no-repack"))] = True
    """Repack weights on the processor into the order that its instructions like."""
    check_tensors: Annotated[Bool, option("--check-tensors")] = False
    """Check the weights for invalid values while loading."""
    warmup: Annotated[Bool, option("--warmup", off=("--no-warmup",))] = True
    """Run once empty after loading."""


class SchedulingSettings(SettingsModel):
    """How an instance batches and queues."""

    group: ClassVar[str] = "Scheduling"

    @model_validator(mode="after")
    def _a_disk_cache_needs_a_folder(self) -> "SchedulingSettings":
        if self.cache_disk and self.cache_disk_path is None:
            raise ValueError("cache_disk needs a folder: set cache_disk_path")
        return self

    max_queue: Annotated[Int, option(), Field(ge=0)] = 256
    """Requests that may wait for a slot of an instance; the next one gets 429 with Retry-After. Clients with less than
    their share of the queue, and within limits urgent requests, may wait beyond it, until twice as many do."""
    queue_timeout_s: Annotated[Float, option(), Field(ge=0)] = 0.0
    """Longest seconds that a request waits for a slot; then it gets 503 with Retry-After. 0 = any."""
    request_timeout_s: Annotated[Float, option(), Field(ge=0)] = 0.0
    """Longest seconds from a request's arrival at the queue to its end; then it gets 503, or a stream an error event.
    0 = any."""
    target_itl_ms: Annotated[Float, option(), Field(ge=0)] = 250.0
    """Step time in ms that prompt chunks adapt to while other slots generate; 0 = throughput only: whole batches."""
    min_chunk: Annotated[Int, option(), Field(ge=1)] = 32
    """Prompt tokens that a step carries at least, in all."""
    cache_prompt: Annotated[
        Bool, option("--cache-prompt", env="LLAMA_ARG_CACHE_PROMPT", off=("--no-cache-prompt",))
    ] = True
    """Reuse the KV cache of prompts with a common beginning."""
    cache_ram: Annotated[
        Int, option("-cram", "--cache-ram", env="LLAMA_ARG_CACHE_RAM", metavar="MIB"), Field(ge=-2)
    ] = -2
    """MiB of RAM for prompt states: of prompts that lost their slot, checkpoints, parked requests; 0 = none of the
    first, the others as with -2; -1 = no limit; -2 = automatic: 8192, at most a quarter of the memory that is free when
    the model is loaded. All models together have what `caches_ram` says."""
    ctx_checkpoints: Annotated[
        Int,
        option("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints", env="LLAMA_ARG_CTX_CHECKPOINTS"),
        Field(ge=0),
    ] = 32
    """Most states inside each slot to come back to, for models whose memory can't be cut (recurrent, hybrid, sliding
    window), which else start anew where a prompt differs; 0 = none."""
    checkpoint_min_step: Annotated[
        Int, option("-cms", "--checkpoint-min-step", env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT"), Field(ge=0)
    ] = 8192
    """Least tokens between those in the middle of a prompt; the ends of the system prompt and of the last turn, the
    prompt's end, and places where another prompt differed always get one. 0 = one at the end of every turn."""
    cache_disk: Annotated[Int, option("--cache-disk", metavar="MIB"), Field(ge=0)] = 0
    """MiB on disk, in cache_disk_path, for prompts that RAM has no room for; they outlive the process. 0 = off."""
    cache_disk_path: Annotated[FilePath | None, option("--cache-disk-path", metavar="FOLDER", is_path=True)] = None
    """Folder for cache_disk: each model gets one in it, used by one process at a time; created where it is missing."""
    context_shift: Annotated[
        Bool, option("--context-shift", env="LLAMA_ARG_CONTEXT_SHIFT", off=("--no-context-shift",))
    ] = False
    """Go on when a slot's context is full: drop the older half of what follows the kept beginning."""
    n_keep: Annotated[Int, option("--keep"), Field(ge=-1)] = 0
    """Prompt tokens that a context shift keeps, unless a request says otherwise; -1 = all."""
    n_cache_reuse: Annotated[Int, option("--cache-reuse", env="LLAMA_ARG_CACHE_REUSE"), Field(ge=0)] = 0
    """Shortest run of cached tokens that is reused at another position, unless a request says otherwise; 0 = off."""
    slot_prompt_similarity: Annotated[Float, option("-sps", "--slot-prompt-similarity"), Field(ge=0, le=1)] = 0.1
    """Part of a prompt that must match a slot's to prefer that slot; 0 = off."""
    gather_ms: Annotated[Float, option(), Field(ge=0, le=1000)] = 4.0
    """Longest wait in ms for requests that are being prepared, to start them in one step."""
    check_integrity: Annotated[Bool, option()] = False
    """Prove the accounting of slots and KV cells after every step (slow; for debugging)."""


class ModelDefaults(
    AdapterSettings,
    EmbeddingSettings,
    MediaSettings,
    SamplingSettings,
    ChatSettings,
    SpeculationSettings,
    SchedulingSettings,
    OverrideSettings,
    HardwareSettings,
    ContextSettings,
):
    """What every model may set, and the YAML's ``defaults`` for all of them."""

    group: ClassVar[str] = "Model"


class ModelSettings(ProjectorSettings, ModelDefaults):
    """One model: an entry of the YAML's ``models``, keyed by its id."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [name]} for name in ("path", "hf", "model_url", "docker_repo")]}
    )
    group: ClassVar[str] = "Model"

    @model_validator(mode="after")
    def _has_one_source(self) -> "ModelSettings":
        if self.path is None and not (self.hf or self.model_url or self.docker_repo):
            raise ValueError("path is missing; name the GGUF file, or hf, model_url or docker_repo")
        named = [name for name in ("hf", "model_url", "docker_repo") if getattr(self, name)]
        if len(named) > 1 or (self.path is not None and named not in ([], ["model_url"])):
            raise ValueError(f"{', '.join([*['path'] * (self.path is not None), *named])} exclude each other; give one")
        if self.hf_file and not self.hf:
            raise ValueError("hf_file needs hf, the repository; add it")
        return self

    path: Annotated[
        FilePath | None,
        option(
            "-m",
            "--model",
            env="LLAMA_ARG_MODEL",
            metavar="FILE",
            is_path=True,
            replaces=("hf", "hf_file", "docker_repo"),
        ),
    ] = None
    """The GGUF file; of a split model the first part. It, or one of the three below, is required."""
    hf: Annotated[
        RepositoryName,
        option(
            *("-hf", "-hfr", "--hf-repo"),
            env="LLAMA_ARG_HF_REPO",
            metavar="OWNER/NAME[:QUANT]",
            replaces=("path", "model_url", "docker_repo"),
        ),
    ] = ""
    """A repository of the hub; of its files the one of that quantization, else Q4_K_M, Q8_0, the first. As the cache
    has it, else downloaded before the first load. With -hf one with a preset.ini serves the models of that."""
    hf_file: Annotated[str, option("-hff", "--hf-file", env="LLAMA_ARG_HF_FILE", metavar="FILE")] = ""
    """A file of that repository, in place of a quantization."""
    model_url: Annotated[
        Url,
        option(
            "-mu", "--model-url", env="LLAMA_ARG_MODEL_URL", metavar="URL", replaces=("hf", "hf_file", "docker_repo")
        ),
    ] = ""
    """An address of the GGUF; downloaded to path where that is given, else into the cache."""
    docker_repo: Annotated[
        ImageName,
        option(
            *("-dr", "--docker-repo"),
            env="LLAMA_ARG_DOCKER_REPO",
            metavar="[REGISTRY/]NAME[:TAG]",
            replaces=("path", "hf", "hf_file", "model_url"),
        ),
    ] = ""
    """A model in a registry of container images (OCI); server.docker_registry is where names without one are."""
    aliases: Annotated[
        TextList,
        option("-a", "--alias", env="LLAMA_ARG_ALIAS", metavar="A,B", text=split_list, repeat=True),
    ] = ()
    """Other names that requests may use, separated by commas; of a model named by -m the first is its id."""
    tags: Annotated[TextList, option("--tags", env="LLAMA_ARG_TAGS", metavar="A,B", text=split_list, repeat=True)] = ()
    """Words shown in /v1/models."""
