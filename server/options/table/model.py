"""The models' part of the option table: one field, one option.

A field's docstring is its description in --help, docs/configuration.md and the YAML's schema. Fields of internal
dataclasses (`LoadParams`, `EngineParams`, `ChatParams`, `SamplingParams`) have the same names. Flags and variables
are llama-server's (llama.cpp common/arg.cpp); a field without any is Llamapool's own.
"""

from typing import ClassVar, Literal

from pydantic import ConfigDict, model_validator

from server.options.table.adapters import AdapterSettings
from server.options.table.chat import ChatSettings
from server.options.table.cpus import mask_cpus, range_cpus
from server.options.table.devices import AUTO, DeviceSets
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
    Place,
    Proportions,
    Sizes,
    Switch,
    TextList,
    split_list,
    without_zero,
)

MAX_NORM = 1000


class EmbeddingSettings(SettingsModel):
    """Whether a model produces embeddings or scores, and how."""

    group: ClassVar[str] = "Embedding and reranking"

    embedding: AutoBool = option(None, "--embedding --embeddings", env="LLAMA_ARG_EMBEDDINGS")
    """Serve embeddings; auto = if the file is an encoder or names a pooling type. It then generates no text."""
    pooling: Literal["", "none", "mean", "cls", "last", "rank"] = option("", "--pooling", env=True, metavar="TYPE")
    """Pooling of token embeddings (none = one vector per token); empty = as in the model file."""
    reranking: Bool = option(False, "--rerank --reranking", env="LLAMA_ARG_RERANKING")
    """Serve reranking; implies embedding with pooling rank."""
    embd_normalize: Int = option(2, "--embd-normalize", ge=-1, le=MAX_NORM)
    """Normalization of pooled vectors: -1 = none, 0 = largest component 32760, 1 = taxicab, 2 = Euclidean, more =
    p-norm.
    """

    @model_validator(mode="after")
    def _consistent(self) -> "EmbeddingSettings":
        if self.reranking and self.pooling not in ("", "rank"):
            raise ValueError(f"reranking needs pooling rank, and pooling is {self.pooling}; remove one")
        if self.embedding is False and (self.reranking or self.pooling):
            raise ValueError("embedding is false, but reranking or pooling is set; remove one")
        return self


WHERE = ("path", "hf", "hf_file", "model_url", "docker_repo")
"""Options that name one model's file; never set for all models."""
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock"]
MAX_SLOTS = 256  # LLAMA_MAX_SEQ


class ContextSettings(SettingsModel):
    """The context: size, slots, KV cache and RoPE."""

    group: ClassVar[str] = "Context and memory"

    @model_validator(mode="after")
    def _quantized_values_need_flash_attention(self) -> "ContextSettings":
        if self.flash_attn == "off" and self.cache_type_v not in ("f32", "f16", "bf16"):
            raise ValueError("cache_type_v is quantized, which needs flash_attn on or auto; change one of them")
        return self

    n_ctx: Int = option(-1, "-c --ctx-size", env=True, ge=-1)
    """Context size in tokens, for all slots of an instance together. -1 = the training context (per slot with separate
    KV) or what fits (fit); 0 = the full training context or an error.
    """
    fit: OnOff = option("on", "-fit --fit", env=True)
    """Reduce the context (if n_ctx is -1) and the GPU layers (if n_gpu_layers is auto) until the model fits the free
    memory.
    """
    fit_target: Sizes = option((1024,), "-fitt --fit-target", env=True, metavar="MIB,...", min_length=1)
    """MiB to keep free, on every device or per device; without devices, of RAM."""
    fit_ctx: Int = option(4096, "-fitc --fit-ctx", env=True, ge=1)
    """Smallest context that fit chooses, in tokens per slot with separate KV."""
    kv_unified_per_slot: Int = option(0, "--kv-unified-per-slot", env=True, ge=0)
    """Largest context of each slot in tokens with a unified KV cache; if n_ctx is -1, also the context reserved per
    slot. 0 = no limit.
    """
    n_parallel: Int = option(-1, "-np --parallel", env="LLAMA_ARG_N_PARALLEL", ge=-1, le=MAX_SLOTS, check=without_zero)
    """Slots per instance. -1 = 4 with a unified KV cache; for embedding models the texts per decode, -1 = 64."""
    kv_unified: AutoBool = option(None, "-kvu --kv-unified", env=True, off=("-no-kvu", "--no-kv-unified"))
    """Use one KV cache for all slots instead of a fixed share per slot; auto = only if n_parallel is -1."""
    n_batch: Int = option(2048, "-b --batch-size", env="LLAMA_ARG_BATCH", ge=1)
    """Logical batch size: most tokens per llama_decode call."""
    n_ubatch: Int = option(512, "-ub --ubatch-size", env="LLAMA_ARG_UBATCH", ge=1)
    """Physical batch size: most tokens computed at once. Determines the size of the compute buffer."""
    flash_attn: Switch = option("auto", "-fa --flash-attn", env=True)
    """Flash attention; auto = where supported. On many CPUs, off decodes up to twice as fast beyond some thousand
    tokens of context and prefills a quarter slower, with larger compute buffers (benchmarks/experiments.md).
    """
    cache_type_k: CacheType = option("f16", "-ctk --cache-type-k", env=True, metavar="TYPE")
    """Data type of the keys in the KV cache."""
    cache_type_v: CacheType = option("f16", "-ctv --cache-type-v", env=True, metavar="TYPE")
    """Data type of the values in the KV cache. A quantized type needs flash attention."""
    swa_full: Bool = option(False, "--swa-full", env=True)
    """Keep the full context of sliding-window layers: more memory, but prefixes can be reused anywhere."""
    rope_scaling: Literal["", "none", "linear", "yarn"] = option(
        "", "--rope-scaling", env="LLAMA_ARG_ROPE_SCALING_TYPE", metavar="TYPE"
    )
    """RoPE scaling method; empty = as in the model file."""
    rope_scale: Float = option(0.0, "--rope-scale", env=True, ge=0)
    """RoPE context scaling factor; 0 = as in the model file."""
    rope_freq_base: Float = option(0.0, "--rope-freq-base", env=True, ge=0)
    """RoPE base frequency (NTK-aware scaling); 0 = as in the model file."""
    rope_freq_scale: Float = option(0.0, "--rope-freq-scale", env=True, ge=0)
    """RoPE frequency scale: expands the context by 1/N; 0 = as in the model file."""
    yarn_orig_ctx: Int = option(0, "--yarn-orig-ctx", env=True, ge=0)
    """YaRN: original context of the model; 0 = its training context."""
    yarn_ext_factor: Float = option(-1.0, "--yarn-ext-factor", env=True)
    """YaRN: extrapolation mix; 0 = full interpolation, negative = as in the model file."""
    yarn_attn_factor: Float = option(-1.0, "--yarn-attn-factor", env=True)
    """YaRN: attention magnitude scale; negative = as in the model file."""
    yarn_beta_slow: Float = option(-1.0, "--yarn-beta-slow", env=True)
    """YaRN: high correction dimension; negative = as in the model file."""
    yarn_beta_fast: Float = option(-1.0, "--yarn-beta-fast", env=True)
    """YaRN: low correction dimension; negative = as in the model file."""


class HardwareSettings(SettingsModel):
    """Loading, isolation, CPUs and devices."""

    group: ClassVar[str] = "Loading and hardware"

    @model_validator(mode="after")
    def _processors_and_devices_for_each_instance(self) -> "HardwareSettings":
        for name in ("cpu_range", "cpu_mask"):
            n = len(getattr(self, name))
            if n > 1 and n != self.instances:
                raise ValueError(
                    f"{name} has {n} CPU sets for {self.instances} instances; give one, or one per instance"
                )
        if len(self.device) not in (1, self.instances):
            raise ValueError(
                f"device has {len(self.device)} sets for {self.instances} instances; give one, or one per instance"
            )
        return self

    load: Literal["startup", "on_demand"] = option("on_demand", metavar="WHEN")
    """When to load the model: at startup, or on the first request. A model given by -m loads at startup."""
    isolation: Literal["auto", "none", "process"] = option("auto", metavar="HOW")
    """process = run the model in its own process: a crash or an out-of-memory kill affects no other model, the process
    is restarted, and steps do not share the GIL with HTTP. auto = process if a GPU or another device is used,
    because llama.cpp aborts on device errors; otherwise none.
    """
    pinned: Bool = option(False)
    """Never unload the model for others."""
    instances: Int = option(1, ge=1, le=64)
    """Number of contexts over the same weights, each with its own slots and step thread. For several GPUs, NUMA nodes,
    or many cores.
    """
    device: DeviceSets = option((AUTO,), "-dev --device", env=True, metavar="NAME,...")
    """Devices for offloading: names from --list-devices separated by commas, none, or auto = all GPUs. With several
    instances, semicolons separate one set per instance (YAML: a list); each distinct set loads its own weights.
    """
    sleep_idle_seconds: Int = option(-1, "--sleep-idle-seconds", ge=-1, check=without_zero)
    """Seconds without a request before the model is unloaded until the next one; -1 = never."""
    n_threads: Int = option(-1, "-t --threads", env=True, ge=-1)
    """CPU threads per instance for decoding; -1 or 0 = physical cores divided by instances. Fewer are used while other
    processes are busy.
    """
    n_threads_batch: Int = option(-1, "-tb --threads-batch", ge=-1)
    """CPU threads per instance for prefill; -1 or 0 = as n_threads."""
    cpu_range: TextList = option((), "-Cr --cpu-range", metavar="LO-HI,...", check=range_cpus)
    """CPUs for computing, e.g. 0-3; separated by commas, one range per instance. Linux only."""
    cpu_mask: TextList = option((), "-C --cpu-mask", metavar="M,...", check=mask_cpus)
    """CPUs for computing as hexadecimal masks, in addition to cpu_range."""
    cpu_strict: Int = option(0, "--cpu-strict", metavar="0|1", ge=0, le=1)
    """1 = pin each compute thread to its own CPU. Linux only."""
    cpu_range_batch: str = option("", "-Crb --cpu-range-batch", metavar="LO-HI", check=range_cpus)
    """CPUs for prefill and for batches of several slots, for all instances. Default: cpu_range and cpu_mask. Also sets
    the number of threads unless n_threads_batch does.
    """
    cpu_mask_batch: str = option("", "-Cb --cpu-mask-batch", metavar="M", check=mask_cpus)
    """CPUs for prefill as a hexadecimal mask, in addition to cpu_range_batch."""
    cpu_strict_batch: Int = option(0, "--cpu-strict-batch", metavar="0|1", ge=0, le=1)
    """1 = pin each prefill thread to its own CPU."""
    prio: Int = option(0, "--prio", ge=-1, le=3)
    """Priority of compute threads: -1 low (nice 5, or the process's if higher), 0 as the process, 1 medium (nice -5), 2
    high (-10), 3 highest (-20). The system may refuse 1 to 3. Linux only.
    """
    n_gpu_layers: GpuLayers = option(-1, "-ngl --gpu-layers --n-gpu-layers", env="LLAMA_ARG_N_GPU_LAYERS", ge=-2)
    """Number of layers on the GPU; auto (-1) = as many as fit, all (-2)."""
    split_mode: Literal["none", "layer", "row", "tensor"] = option("layer", "-sm --split-mode", env=True)
    """How to split a model across GPUs. fit does not support tensor."""
    tensor_split: Proportions = option((), "-ts --tensor-split", env=True, metavar="N0,N1,...")
    """Proportions of the model per GPU, e.g. 3,1."""
    main_gpu: Int = option(0, "-mg --main-gpu", env=True, ge=0)
    """GPU for the whole model (split_mode none) or for small tensors (row)."""
    kv_offload: Bool = option(True, "-kvo --kv-offload", env=True, off=("-nkvo", "--no-kv-offload"))
    """Keep the KV cache on the GPU."""
    op_offload: Bool = option(True, "--op-offload", off=True)
    """Run large operations on host tensors on the GPU."""
    load_mode: LoadMode = option("auto", "-lm --load-mode", env=True, replaces=("mmap", "mlock"))
    """How to read the file: auto (mmap), none, mmap, mlock (keep in RAM), mmap+mlock."""
    mmap: AutoBool = option(None, "--mmap", env=True, off=True, replaces=("load_mode",))
    """Memory-map the file; auto = as load_mode (flag of older llama-servers)."""
    mlock: AutoBool = option(None, "--mlock", env=True, replaces=("load_mode",))
    """Lock the weights in RAM; auto = as load_mode (flag of older llama-servers)."""
    numa: Literal["", "distribute", "isolate", "numactl"] = option("", "--numa", env=True, metavar="TYPE")
    """NUMA strategy of the process; empty = none."""
    lazy_mode: Literal["off", "auto", "on"] = option("auto", "-lzm --lazy-mode", env=True)
    """Read rows of large tables, such as per-layer embeddings, on demand; auto = for tables above 4 GiB."""
    repack: Bool = option(True, "--repack", env=True, off=("-nr", "--no-repack"))
    """Repack weights on the CPU into the layout of its instructions: faster, but not memory-mapped."""
    check_tensors: Bool = option(False, "--check-tensors")
    """Check the weights for invalid values while loading."""
    warmup: Bool = option(True, "--warmup", off=True)
    """Run an empty batch after loading, so that the first request is not slower."""


class SchedulingSettings(SettingsModel):
    """Queueing, batching and caching of an instance."""

    group: ClassVar[str] = "Scheduling"

    @model_validator(mode="after")
    def _a_disk_cache_needs_a_folder(self) -> "SchedulingSettings":
        if self.cache_disk and self.cache_disk_path is None:
            raise ValueError("cache_disk needs a folder: set cache_disk_path")
        return self

    max_queue: Int = option(256, ge=0)
    """Requests per instance that may wait for a slot; further ones get 429 with Retry-After. Clients below their fair
    share, and to some extent urgent requests, may queue up to twice as many.
    """
    queue_timeout_s: Float = option(0.0, ge=0)
    """Seconds a request may wait for a slot; then 503 with Retry-After. 0 = unlimited."""
    request_timeout_s: Float = option(0.0, ge=0)
    """Seconds from a request's arrival to its end; then 503, or an error event in a stream. 0 = unlimited."""
    target_itl_ms: Float = option(300.0, ge=0)
    """Target step time in ms while slots decode: limits prefill chunks and thereby inter-token latency. 0 = throughput
    only, with full batches.
    """
    min_chunk: Int = option(64, ge=1)
    """Smallest number of prefill tokens per step."""
    cache_prompt: Bool = option(True, "--cache-prompt", env=True, off=True)
    """Reuse the KV cache of common prompt prefixes."""
    cache_ram: Int = option(-2, "-cram --cache-ram", env=True, metavar="MIB", ge=-2)
    """MiB of RAM for cached KV states: offloaded slots, checkpoints, preempted requests. 0 = no offloaded slots; -1 =
    unlimited; -2 = automatic: 8192, at most a quarter of the memory free at load. caches_ram limits all models
    together.
    """
    ctx_checkpoints: Int = option(32, "-ctxcp --ctx-checkpoints --swa-checkpoints", env=True, ge=0)
    """Most checkpoints per slot, for models whose memory cannot be truncated (recurrent, hybrid, sliding window).
    Without a checkpoint such a prompt is recomputed from the start. 0 = none.
    """
    checkpoint_min_step: Int = option(
        8192, "-cms --checkpoint-min-step", env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT", ge=0
    )
    """Least tokens between checkpoints in the middle of a prompt. The ends of the system prompt, the last turn and the
    prompt, and places where another prompt diverged, always get one. 0 = one per turn.
    """
    cache_disk: Int = option(0, "--cache-disk", metavar="MIB", ge=0)
    """MiB of disk, in cache_disk_path, for KV states evicted from RAM; they survive a restart. 0 = off."""
    cache_disk_path: Place | None = option(None, "--cache-disk-path", metavar="FOLDER")
    """Folder for cache_disk, created if missing; each model gets a subfolder, used by one process at a time unless
    cache_disk_shared. Or a URL such as s3://bucket/folder, which is shared (docs/scaling.md).
    """
    cache_disk_shared: Bool = option(False, "--cache-disk-shared")
    """Share cache_disk_path between processes: each one finds the others' KV states, so a conversation may continue at
    any of them. slot_save_secret_file signs the files.
    """
    context_shift: Bool = option(False, "--context-shift", env=True, off=True)
    """When a slot's context is full, drop the older half after the kept prefix and continue."""
    n_keep: Int = option(0, "--keep", ge=-1)
    """Default of n_keep: prompt tokens kept by a context shift; -1 = all."""
    n_cache_reuse: Int = option(0, "--cache-reuse", env=True, ge=0)
    """Default of n_cache_reuse: shortest run of cached tokens reused at another position; 0 = off."""
    slot_prompt_similarity: Float = option(0.1, "-sps --slot-prompt-similarity", ge=0, le=1)
    """Share of a prompt that must match a slot's tokens to prefer that slot; 0 = off."""
    gather_ms: Float = option(4.0, ge=0, le=1000)
    """Longest wait in ms for requests in preparation, so that they join one batch."""
    check_integrity: Bool = option(False)
    """Verify the accounting of slots and KV cells after every step (slow; for debugging)."""


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
    """Options of every model; the YAML's ``defaults`` set them for all models."""

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

    path: FilePath | None = option(None, "-m --model", env=True, replaces=("hf", "hf_file", "docker_repo"))
    """Path of the GGUF file; of a split model the first part. Required unless hf, model_url or docker_repo is given."""
    hf: RepositoryName = option(
        "", "-hf -hfr --hf-repo", env=True, metavar="OWNER/NAME[:QUANT]", replaces=("path", "model_url", "docker_repo")
    )
    """Hugging Face repository and quantization. Default quantization: Q4_K_M, then Q8_0, then the first file.
    Downloaded into the cache before the first load if missing. With -hf, a repository with preset.ini serves the
    models it lists.
    """
    hf_file: str = option("", "-hff --hf-file", env=True, metavar="FILE")
    """File of that repository, instead of a quantization."""
    model_url: Url = option("", "-mu --model-url", env=True, metavar="URL", replaces=("hf", "hf_file", "docker_repo"))
    """URL of the GGUF file; downloaded to path if given, otherwise into the cache."""
    docker_repo: ImageName = option(
        "",
        "-dr --docker-repo",
        env=True,
        metavar="[REGISTRY/]NAME[:TAG]",
        replaces=("path", "hf", "hf_file", "model_url"),
    )
    """Model in an OCI registry; names without a registry use docker_registry."""
    aliases: TextList = option((), "-a --alias", env=True, metavar="A,B", text=split_list, repeat=True)
    """Additional model names that requests may use, separated by commas. For -m, the first one is the model's id."""
    tags: TextList = option((), "--tags", env=True, metavar="A,B", text=split_list, repeat=True)
    """Tags shown in /v1/models."""
