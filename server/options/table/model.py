"""The models' part of the option table: one field, one option.

A field's docstring is its description in --help, docs/configuration.md and the YAML's schema. Fields that share
a dataclass of the inside (`LoadParams`, `EngineParams`, `ChatParams`, `SamplingParams`) have its names.
Flags and variables are llama-server's (llama.cpp common/arg.cpp); a field without any is Llamapool's own.
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
    """Whether a model turns texts into vectors or scores, and how."""

    group: ClassVar[str] = "Embedding and reranking"

    embedding: AutoBool = option(None, "--embedding --embeddings", env="LLAMA_ARG_EMBEDDINGS")
    """Serve embeddings; auto = where the file is an encoder or names a pooling, which then does not generate."""
    pooling: Literal["", "none", "mean", "cls", "last", "rank"] = option("", "--pooling", env=True, metavar="TYPE")
    """How a text's vector is made of its tokens' (none: one vector for each token); empty = as the model says."""
    reranking: Bool = option(False, "--rerank --reranking", env="LLAMA_ARG_RERANKING")
    """Serve reranking: embedding with pooling rank."""
    embd_normalize: Int = option(2, "--embd-normalize", ge=-1, le=MAX_NORM)
    """Norm of pooled vectors: -1 = none, 0 = largest component 32760, 1 = taxicab, 2 = euclidean, more = p-norm."""

    @model_validator(mode="after")
    def _consistent(self) -> "EmbeddingSettings":
        if self.reranking and self.pooling not in ("", "rank"):
            raise ValueError(f"reranking needs pooling rank, and pooling is {self.pooling}; remove one")
        if self.embedding is False and (self.reranking or self.pooling):
            raise ValueError("embedding is false, but reranking or pooling is set; remove one")
        return self


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

    n_ctx: Int = option(-1, "-c --ctx-size", env=True, ge=-1)
    """Tokens of context of all slots of an instance together; -1 = what the model was trained for, for each slot with
    cells of its own, or what fits of it (fit); 0 = all of it, or the load fails."""
    fit: OnOff = option("on", "-fit --fit", env=True)
    """Shorten the context where n_ctx is -1, and leave experts and layers on the processor where n_gpu_layers is auto,
    until the model fits the memory that is free."""
    fit_target: Sizes = option((1024,), "-fitt --fit-target", env=True, metavar="MIB,...", min_length=1)
    """MiB that stay free on every device where that can be had, or with commas on each; without any, of the machine's
    own memory."""
    fit_ctx: Int = option(4096, "-fitc --fit-ctx", env=True, ge=1)
    """Tokens, for each slot with cells of its own, below which fit shortens no context."""
    kv_unified_per_slot: Int = option(0, "--kv-unified-per-slot", env=True, ge=0)
    """Most tokens of each slot's context, and where n_ctx is -1, the room for each slot; 0 = as many as there are."""
    n_parallel: Int = option(-1, "-np --parallel", env="LLAMA_ARG_N_PARALLEL", ge=-1, le=MAX_SLOTS, check=without_zero)
    """Slots of each instance; -1 = 4 over a unified KV cache. Of a model that embeds: texts of a decode, -1 = 64."""
    kv_unified: AutoBool = option(None, "-kvu --kv-unified", env=True, off=("-no-kvu", "--no-kv-unified"))
    """One KV cache that all slots share, instead of a fixed part each; auto = only when n_parallel is -1."""
    n_batch: Int = option(2048, "-b --batch-size", env="LLAMA_ARG_BATCH", ge=1)
    """Most tokens of one decode call."""
    n_ubatch: Int = option(512, "-ub --ubatch-size", env="LLAMA_ARG_UBATCH", ge=1)
    """Most tokens computed at once; bounds the compute buffer."""
    flash_attn: Switch = option("auto", "-fa --flash-attn", env=True)
    """Flash attention; auto = wherever it can be computed. On many CPUs off generates twice as fast from some thousand
    tokens of context on and reads prompts a quarter slower, with larger compute buffers (benchmarks/experiments.md)."""
    cache_type_k: CacheType = option("f16", "-ctk --cache-type-k", env=True, metavar="TYPE")
    """Type of the keys in the KV cache."""
    cache_type_v: CacheType = option("f16", "-ctv --cache-type-v", env=True, metavar="TYPE")
    """Type of the values in the KV cache; a quantized one needs flash attention."""
    swa_full: Bool = option(False, "--swa-full", env=True)
    """Keep the whole context of sliding-window layers."""
    rope_scaling: Literal["", "none", "linear", "yarn"] = option(
        "", "--rope-scaling", env="LLAMA_ARG_ROPE_SCALING_TYPE", metavar="TYPE"
    )
    """RoPE frequency scaling; empty = as the model says."""
    rope_scale: Float = option(0.0, "--rope-scale", env=True, ge=0)
    """RoPE context scaling factor: expands the context by this factor; 0 = as the model says."""
    rope_freq_base: Float = option(0.0, "--rope-freq-base", env=True, ge=0)
    """RoPE base frequency (NTK-aware scaling); 0 = as the model says."""
    rope_freq_scale: Float = option(0.0, "--rope-freq-scale", env=True, ge=0)
    """RoPE frequency scale: expands the context by 1/N; 0 = as the model says."""
    yarn_orig_ctx: Int = option(0, "--yarn-orig-ctx", env=True, ge=0)
    """YaRN: the model's original context; 0 = its training context."""
    yarn_ext_factor: Float = option(-1.0, "--yarn-ext-factor", env=True)
    """YaRN: extrapolation mix; 0 = full interpolation, negative = as the model says."""
    yarn_attn_factor: Float = option(-1.0, "--yarn-attn-factor", env=True)
    """YaRN: scale of the attention's magnitude; negative = as the model says."""
    yarn_beta_slow: Float = option(-1.0, "--yarn-beta-slow", env=True)
    """YaRN: high correction dimension; negative = as the model says."""
    yarn_beta_fast: Float = option(-1.0, "--yarn-beta-fast", env=True)
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

    load: Literal["startup", "on_demand"] = option("on_demand", metavar="WHEN")
    """When the model is loaded: at start-up, or with the first request; a model named by -m: startup."""
    isolation: Literal["auto", "none", "process"] = option("auto", metavar="HOW")
    """process: the model runs in a process of its own: a crash of it or an end for want of memory costs no other model,
    it is started again, and its steps don't share the interpreter with HTTP. auto: process where a GPU or another
    device computes, since the library ends the process on a device's error; none where only the CPU does."""
    pinned: Bool = option(False)
    """The model stays loaded, whatever other models need."""
    instances: Int = option(1, ge=1, le=64)
    """Contexts over the same weights, each with its own slots and step thread."""
    device: DeviceSets = option((AUTO,), "-dev --device", env=True, metavar="NAME,...")
    """Devices that the model is offloaded to: names of --list-devices with commas, none, or auto for every GPU. With
    several instances semicolons may separate a set for each (YAML: a list); each distinct set gets its own weights."""
    sleep_idle_seconds: Int = option(-1, "--sleep-idle-seconds", ge=-1, check=without_zero)
    """Seconds without a request after which the model is unloaded until the next one; -1 = never."""
    n_threads: Int = option(-1, "-t --threads", env=True, ge=-1)
    """CPU threads of each instance for generation; -1 or 0 = automatic: physical cores by the number of instances.
    While other processes keep processors busy, fewer of them compute."""
    n_threads_batch: Int = option(-1, "-tb --threads-batch", ge=-1)
    """CPU threads for prompts; -1 or 0 = as n_threads."""
    cpu_range: TextList = option((), "-Cr --cpu-range", metavar="LO-HI,...", check=range_cpus)
    """Processors that compute, such as 0-3; with commas, a range for each instance. Linux only."""
    cpu_mask: TextList = option((), "-C --cpu-mask", metavar="M,...", check=mask_cpus)
    """The same as hexadecimal masks, in addition to the ranges."""
    cpu_strict: Int = option(0, "--cpu-strict", metavar="0|1", ge=0, le=1)
    """1: each compute thread keeps to a processor of its own. Linux only."""
    cpu_range_batch: str = option("", "-Crb --cpu-range-batch", metavar="LO-HI", check=range_cpus)
    """Processors that compute prompts, and the tokens of several slots together, of all instances; default: those of
    cpu_range and cpu_mask. As many threads as there are, unless n_threads_batch says so."""
    cpu_mask_batch: str = option("", "-Cb --cpu-mask-batch", metavar="M", check=mask_cpus)
    """The same as a hexadecimal mask, in addition to the range."""
    cpu_strict_batch: Int = option(0, "--cpu-strict-batch", metavar="0|1", ge=0, le=1)
    """1: so does each thread that computes prompts."""
    prio: Int = option(0, "--prio", ge=-1, le=3)
    """Priority of the threads that compute: low (-1, nice 5 or what the process has if that is more), the process's
    (0), medium (1, nice -5), high (2, -10), highest (3, -20). The system may refuse the last three. Linux only."""
    n_gpu_layers: GpuLayers = option(-1, "-ngl --gpu-layers --n-gpu-layers", env="LLAMA_ARG_N_GPU_LAYERS", ge=-2)
    """Layers on the GPU: a number, auto (-1) or all (-2)."""
    split_mode: Literal["none", "layer", "row", "tensor"] = option("layer", "-sm --split-mode", env=True)
    """How a model is split over several GPUs. What fits is not chosen where tensors are."""
    tensor_split: Proportions = option((), "-ts --tensor-split", env=True, metavar="N0,N1,...")
    """Parts of the model for each GPU, as proportions."""
    main_gpu: Int = option(0, "-mg --main-gpu", env=True, ge=0)
    """The GPU for the whole model (split_mode none) or for small tensors (row)."""
    kv_offload: Bool = option(True, "-kvo --kv-offload", env=True, off=("-nkvo", "--no-kv-offload"))
    """KV cache on the GPU."""
    op_offload: Bool = option(True, "--op-offload", off=True)
    """Large operations on host tensors run on the GPU."""
    load_mode: LoadMode = option("auto", "-lm --load-mode", env=True, replaces=("mmap", "mlock"))
    """How the file is read: auto (mmap), none, mmap, mlock (keep in RAM), mmap+mlock."""
    mmap: AutoBool = option(None, "--mmap", env=True, off=True, replaces=("load_mode",))
    """Map the file into memory; auto = as load_mode says (older llama-servers' flag)."""
    mlock: AutoBool = option(None, "--mlock", env=True, replaces=("load_mode",))
    """Keep the weights in RAM; auto = as load_mode says (older llama-servers' flag)."""
    numa: Literal["", "distribute", "isolate", "numactl"] = option("", "--numa", env=True, metavar="TYPE")
    """NUMA strategy of the process; empty = none."""
    lazy_mode: Literal["off", "auto", "on"] = option("auto", "-lzm --lazy-mode", env=True)
    """Whether rows of tables such as embeddings by layer are read when they are needed: auto = of those above 4 GiB."""
    repack: Bool = option(True, "--repack", env=True, off=("-nr", "--no-repack"))
    """Repack weights on the processor into the order that its instructions like."""
    check_tensors: Bool = option(False, "--check-tensors")
    """Check the weights for invalid values while loading."""
    warmup: Bool = option(True, "--warmup", off=True)
    """Run once empty after loading."""


class SchedulingSettings(SettingsModel):
    """How an instance batches and queues."""

    group: ClassVar[str] = "Scheduling"

    @model_validator(mode="after")
    def _a_disk_cache_needs_a_folder(self) -> "SchedulingSettings":
        if self.cache_disk and self.cache_disk_path is None:
            raise ValueError("cache_disk needs a folder: set cache_disk_path")
        return self

    max_queue: Int = option(256, ge=0)
    """Requests that may wait for a slot of an instance; the next one gets 429 with Retry-After. Clients with less than
    their share of the queue, and within limits urgent requests, may wait beyond it, until twice as many do."""
    queue_timeout_s: Float = option(0.0, ge=0)
    """Longest seconds that a request waits for a slot; then it gets 503 with Retry-After. 0 = any."""
    request_timeout_s: Float = option(0.0, ge=0)
    """Longest seconds from a request's arrival at the queue to its end; then it gets 503, or a stream an error event.
    0 = any."""
    target_itl_ms: Float = option(300.0, ge=0)
    """Step time in ms that prompt chunks adapt to while other slots generate; 0 = throughput only: whole batches."""
    min_chunk: Int = option(64, ge=1)
    """Prompt tokens that a step carries at least, in all."""
    cache_prompt: Bool = option(True, "--cache-prompt", env=True, off=True)
    """Reuse the KV cache of prompts with a common beginning."""
    cache_ram: Int = option(-2, "-cram --cache-ram", env=True, metavar="MIB", ge=-2)
    """MiB of RAM for prompt states: of prompts that lost their slot, checkpoints, parked requests; 0 = none of the
    first, the others as with -2; -1 = no limit; -2 = automatic: 8192, at most a quarter of the memory that is free when
    the model is loaded. All models together have what `caches_ram` says."""
    ctx_checkpoints: Int = option(32, "-ctxcp --ctx-checkpoints --swa-checkpoints", env=True, ge=0)
    """Most states inside each slot to come back to, for models whose memory can't be cut (recurrent, hybrid, sliding
    window), which else start anew where a prompt differs; 0 = none."""
    checkpoint_min_step: Int = option(
        8192, "-cms --checkpoint-min-step", env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT", ge=0
    )
    """Least tokens between those in the middle of a prompt; the ends of the system prompt and of the last turn, the
    prompt's end, and places where another prompt differed always get one. 0 = one at the end of every turn."""
    cache_disk: Int = option(0, "--cache-disk", metavar="MIB", ge=0)
    """MiB on disk, in cache_disk_path, for prompts that RAM has no room for; they outlive the process. 0 = off."""
    cache_disk_path: Place | None = option(None, "--cache-disk-path", metavar="FOLDER")
    """Folder for cache_disk: each model gets one in it, used by one process at a time unless cache_disk_shared;
    created where it is missing. Or an address such as s3://bucket/folder, which is shared (docs/scaling.md)."""
    cache_disk_shared: Bool = option(False, "--cache-disk-shared")
    """Several processes use cache_disk_path at once, and find what another has left there: a conversation goes on at
    any of them. slot_save_secret_file signs the files."""
    context_shift: Bool = option(False, "--context-shift", env=True, off=True)
    """Go on when a slot's context is full: drop the older half of what follows the kept beginning."""
    n_keep: Int = option(0, "--keep", ge=-1)
    """Prompt tokens that a context shift keeps, unless a request says otherwise; -1 = all."""
    n_cache_reuse: Int = option(0, "--cache-reuse", env=True, ge=0)
    """Shortest run of cached tokens that is reused at another position, unless a request says otherwise; 0 = off."""
    slot_prompt_similarity: Float = option(0.1, "-sps --slot-prompt-similarity", ge=0, le=1)
    """Part of a prompt that must match a slot's to prefer that slot; 0 = off."""
    gather_ms: Float = option(4.0, ge=0, le=1000)
    """Longest wait in ms for requests that are being prepared, to start them in one step."""
    check_integrity: Bool = option(False)
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

    path: FilePath | None = option(None, "-m --model", env=True, replaces=("hf", "hf_file", "docker_repo"))
    """The GGUF file; of a split model the first part. It, or one of the three below, is required."""
    hf: RepositoryName = option(
        "", "-hf -hfr --hf-repo", env=True, metavar="OWNER/NAME[:QUANT]", replaces=("path", "model_url", "docker_repo")
    )
    """A repository of the hub; of its files the one of that quantization, else Q4_K_M, Q8_0, the first. As the cache
    has it, else downloaded before the first load. With -hf one with a preset.ini serves the models of that."""
    hf_file: str = option("", "-hff --hf-file", env=True, metavar="FILE")
    """A file of that repository, in place of a quantization."""
    model_url: Url = option("", "-mu --model-url", env=True, metavar="URL", replaces=("hf", "hf_file", "docker_repo"))
    """An address of the GGUF; downloaded to path where that is given, else into the cache."""
    docker_repo: ImageName = option(
        "",
        "-dr --docker-repo",
        env=True,
        metavar="[REGISTRY/]NAME[:TAG]",
        replaces=("path", "hf", "hf_file", "model_url"),
    )
    """A model in a registry of container images (OCI); server.docker_registry is where names without one are."""
    aliases: TextList = option((), "-a --alias", env=True, metavar="A,B", text=split_list, repeat=True)
    """Other names that requests may use, separated by commas; of a model named by -m the first is its id."""
    tags: TextList = option((), "--tags", env=True, metavar="A,B", text=split_list, repeat=True)
    """Words shown in /v1/models."""
