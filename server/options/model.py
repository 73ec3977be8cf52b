"""The option table of one model: one field, one option.

A field's docstring is its description in --help, docs/configuration.md and the YAML's schema. Fields of internal
dataclasses (`LoadParams`, `EngineParams`, `ChatParams`, `SamplingParams`) have the same names. Flags and variables
are llama-server's (llama.cpp common/arg.cpp); a field without any is Llamapool's own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, WithJsonSchema, create_model

from server.engine.request import DEFAULT_SAMPLERS, PARAMETERS, SamplingParams
from server.formats import BY_NAME
from server.hub.names import Image
from server.options.option import SettingsModel, option
from server.options.values import (
    AUTO,
    KINDS,
    MAX_LAYERS,
    MAX_OVERRIDES,
    AutoBool,
    Bool,
    Breakers,
    CacheType,
    DeviceSets,
    FilePath,
    Float,
    GpuLayers,
    Int,
    JsonObject,
    LayerRange,
    LogitBias,
    MetadataOverrides,
    OneDeviceSet,
    OnOff,
    Place,
    Proportions,
    RepositoryName,
    SamplerChars,
    Samplers,
    ScaledFiles,
    Sizes,
    Switch,
    TextList,
    check_url,
    mask_cpus,
    range_cpus,
    read_kinds,
    split_list,
    split_scaled,
    tensor_override,
    unescape,
    without_zero,
)
from server.pool.spec import (
    LazyMode,
    NumaStrategy,
    PoolingName,
    ReasoningFormat,
    RopeScaling,
    ScaledFile,
    SplitMode,
)
from server.templates.template import RESERVED


def _files(default: tuple[ScaledFile, ...], flag: str, scaled: str) -> tuple[ScaledFile, ...]:
    """Return an option for files: one flag at scale 1, another one with scales."""
    forms = {scaled: ("FILE:SCALE,...", split_scaled)}
    return option(default, flag, metavar="FILE,...", text=split_list, forms=forms, repeat=True, is_path=True)


class AdapterSettings(SettingsModel, group="LoRA adapters and control vectors"):
    lora: ScaledFiles = _files((), "--lora", "--lora-scaled")
    """LoRA adapters (GGUF) with scale 1, or with FILE:SCALE (YAML: {path: ..., scale: 0.5}). Their order defines their
    ids in /lora-adapters.
    """
    lora_init_without_apply: Bool = option(False, "--lora-init-without-apply")
    """Load adapters with scale 0; POST /lora-adapters or a request's lora enables them."""
    control_vectors: ScaledFiles = _files((), "--control-vector", "--control-vector-scaled")
    """Control vectors (GGUF), summed; same syntax as lora."""
    control_vector_layer_range: LayerRange = option(
        None, "--control-vector-layer-range", metavar="START END", n_words=2
    )
    """First and last layer of control vectors; empty or 0 = layer 1 to the last."""


def _variables(value: dict[str, Any]) -> None:
    for name in sorted(RESERVED.keys() & value.keys()):
        raise ValueError(f"can't set {name}: it {RESERVED[name]}")


def _tool_format(value: str) -> None:
    if value != "auto" and value not in BY_NAME:
        raise ValueError(f"should be auto or one of {', '.join(sorted(BY_NAME))}")


class ChatSettings(SettingsModel, group="Chat"):
    chat_template: str = option("", "--chat-template", env=True, metavar="JINJA|NAME", replaces="chat_template_file")
    """Jinja source that replaces the model's template, or the name of a built-in template (docs/templates.md)."""
    chat_template_file: FilePath | None = option(None, "--chat-template-file", env=True, replaces="chat_template")
    """File with a Jinja template that replaces the model's."""
    jinja: Bool = option(True, "--jinja", env=True, off=True)
    """Render the template with Jinja. Off = use llama.cpp's built-in equivalent, and describe tools in the system
    message; a model whose template llama.cpp does not recognize then fails to load.
    """
    chat_template_kwargs: JsonObject = option({}, "--chat-template-kwargs", env=True, metavar="JSON", check=_variables)
    """JSON object of additional template variables for all requests."""
    system_prompt: str = option("", metavar="TEXT", max_length=65536, also="system")
    """System message of chats that have none, as SYSTEM of an Ollama Modelfile."""
    reasoning_format: ReasoningFormat = option("auto", "--reasoning-format", env="LLAMA_ARG_THINK", metavar="FORMAT")
    """Where reasoning is returned: none = in content, deepseek = reasoning_content, deepseek-legacy = both."""
    reasoning: Switch = option("auto", "-rea --reasoning", env=True)
    """Let the model reason before it answers: on, off, or auto = the template's default."""
    reasoning_effort: str = option("default", "--reasoning-effort", env=True, metavar="LEVEL")
    """Value of the template variable reasoning_effort (minimal, low, medium, high, ...); default = not set."""
    reasoning_budget: Int = option(-1, "--reasoning-budget", env="LLAMA_ARG_THINK_BUDGET", ge=-1, le=2**31 - 1)
    """Maximum number of reasoning tokens; then the server ends the reasoning. -1 = unlimited, 0 = no reasoning."""
    reasoning_budget_message: str = option(
        "", "--reasoning-budget-message", env="LLAMA_ARG_THINK_BUDGET_MESSAGE", metavar="MESSAGE", max_length=4096
    )
    """Text inserted before the end-of-reasoning tag when the budget is used up."""
    reasoning_preserve: Bool = option(True, "--reasoning-preserve", env=True, off=True)
    """Keep the reasoning of all previous turns in the prompt (template variable preserve_reasoning)."""
    prefill_assistant: Bool = option(True, "--prefill-assistant", env=True, off=True)
    """Continue the last message of a chat if it is an assistant message, instead of starting a new one."""
    tool_format: str = option("auto", metavar="NAME", check=_tool_format)
    """Syntax of tool calls and reasoning: a name from docs/tool-formats.md; auto = detected from the template."""
    spm_infill: Bool = option(False, "--spm-infill")
    """Put the suffix before the prefix in /infill prompts, for models trained that way."""

    def problems(self) -> Iterator[str]:
        if self.chat_template and self.chat_template_file is not None:
            yield "chat_template and chat_template_file exclude each other; give one"


class MediaSettings(SettingsModel, group="Images and audio"):
    def problems(self) -> Iterator[str]:
        if "," in self.mmproj_device[0]:
            yield "mmproj_device names several devices; a projector is on one"
        if 0 < self.image_max_tokens < self.image_min_tokens:
            yield "image_min_tokens is more than image_max_tokens"

    mmproj_auto: Bool = option(True, "--mmproj-auto", env=True, off=("--no-mmproj", "--no-mmproj-auto"))
    """Load the projector found next to a model in a folder or repository, which enables image or audio input."""
    mmproj_offload: Bool = option(True, "--mmproj-offload", env=True, off=True)
    """Run the projector on a GPU if there is one."""
    mmproj_device: OneDeviceSet = option((AUTO,), "-mmdev --mmproj-device", env="MTMD_BACKEND_DEVICE", metavar="NAME")
    """Device of the projector: a name from --list-devices, none, or auto = the model's first device."""
    image_min_tokens: Int = option(-1, "--image-min-tokens", env=True, ge=-1)
    """Minimum number of tokens per image, for projectors with dynamic resolution; -1 = the projector's value."""
    image_max_tokens: Int = option(-1, "--image-max-tokens", env=True, ge=-1)
    """Maximum number of tokens per image, for projectors with dynamic resolution: larger images are scaled
    down. -1 = the projector's value. Lower it for faster prefill.
    """
    mtmd_batch_max_tokens: Int = option(1024, "--mtmd-batch-max-tokens", env=True, ge=1)
    """Maximum number of image tokens that the projector encodes in one batch."""
    media_cache: Int = option(256, "--media-cache", metavar="MIB", ge=0)
    """MiB of cached image and audio embeddings, shared by all slots and conversations; with cache_disk_path half of it
    on disk. 256 MiB hold about a hundred images of 256 tokens at embedding size 2560. 0 = off. Counts towards
    caches_ram.
    """
    media_marker: str = option("", env="LLAMA_MEDIA_MARKER")
    """Placeholder of a medium in the prompt of /completion with multimodal_data, shown in /props; empty = a random
    string per load.
    """


class ProjectorSettings(SettingsModel, group="Model"):
    """The projector of one model."""

    mmproj: FilePath | None = option(None, "-mm --mmproj", env=True)
    """Multimodal projector (GGUF) of the model; enables image or audio input."""
    mmproj_url: str = option("", "-mmu --mmproj-url", env=True, metavar="URL", check=check_url)
    """URL of the projector; downloaded to mmproj if given, otherwise into the cache."""


_DEFAULTS = asdict(SamplingParams())
_TYPES: Mapping[type, Any] = {int: Int, float: Float, bool: Bool}
_FIELDS: Any = {
    name: (_TYPES[kind], option(_DEFAULTS[name], known.flags, env=known.env, **known.limits))
    for name, (kind, known) in PARAMETERS.items()
}
_group = {"group": "Sampling defaults"}
_Parameters: Any = create_model("_Parameters", __base__=SettingsModel, __cls_kwargs__=_group, **_FIELDS)
"""The parameters that requests set, too."""


class SamplingSettings(_Parameters):
    """Defaults of the requests' sampling parameters: those of `SamplingParams`, and what else shapes replies."""

    documented_by: ClassVar[type] = SamplingParams

    n_predict: Int = option(
        -1, "-n --predict --n-predict", env="LLAMA_ARG_N_PREDICT", ge=-1, also="num_predict max_tokens max_new_tokens"
    )
    """Maximum number of tokens of a reply that sets no max_tokens; -1 = until the context is full."""
    reverse_prompt: TextList = option(
        (), "-r --reverse-prompt", metavar="TEXT", text=unescape, repeat=True, also="stop"
    )
    """Stop string of requests that set none; the flag may be repeated."""
    grammar: str = option("", "--grammar", metavar="GBNF", replaces="grammar_file json_schema json_schema_file")
    """GBNF grammar for requests without a grammar, schema or tools."""
    grammar_file: FilePath | None = option(None, "--grammar-file", replaces="grammar json_schema json_schema_file")
    """File with a GBNF grammar; see grammar."""
    json_schema: JsonObject = option(
        {}, "-j --json-schema", metavar="JSON", replaces="grammar grammar_file json_schema_file"
    )
    """JSON Schema for requests without a grammar, schema or tools; it applies after the reasoning."""
    json_schema_file: FilePath | None = option(
        None, "-jf --json-schema-file", replaces="grammar grammar_file json_schema"
    )
    """File with a JSON Schema; see json_schema."""
    special: Bool = option(False, "-sp --special")
    """Render control tokens as text, including end-of-generation tokens."""
    samplers: Samplers = option(DEFAULT_SAMPLERS, "--samplers", metavar="A;B;C", replaces="sampler_seq")
    """Names of the samplers in the order in which they run, separated by ';'."""
    sampler_seq: SamplerChars = option("", "--sampler-seq --sampling-seq", metavar="LETTERS", replaces="samplers")
    """Samplers as one letter each, e.g. edskypmxt; empty = as samplers."""
    seed: Int = option(-1, "-s --seed", ge=-1, le=0xFFFFFFFF)
    """Random seed of requests that set none; -1 = a random seed per request."""
    dry_sequence_breakers: Breakers = option(
        ("\n", ":", '"', "*"), "--dry-sequence-breaker", metavar="TEXT", text=unescape, repeat=True
    )
    """DRY: strings that interrupt a repetition; the flag may be repeated; none = no breakers."""
    logit_bias: LogitBias = option(
        (), "-l --logit-bias", metavar="TOKEN_ID+BIAS", text=lambda text: text.split(","), repeat=True
    )
    """Bias added to a token's logit, e.g. 15043+1 or 15043-1; in YAML also a mapping {15043: 1.0}."""


def _overrides(flags: str, **more: Any) -> tuple[str, ...]:
    """Return an option for buffer types of tensors."""
    more |= {"text": split_list, "repeat": True, "check": tensor_override, "max_length": MAX_OVERRIDES}
    return option((), flags, metavar="PATTERN=TYPE,...", **more)


class SpeculationSettings(SettingsModel, group="Speculative decoding"):
    @property
    def has_draft(self) -> bool:
        """Whether a draft model is configured, as a file or from the hub."""
        return self.draft_model is not None or bool(self.draft_hf)

    def problems(self) -> Iterator[str]:
        if "draft-simple" in self.spec_type and not self.has_draft:
            yield "spec_type has draft-simple, which needs draft_model (-md); add it"
        if "draft-simple" in self.spec_type and "draft-mtp" in self.spec_type:
            yield "spec_type has both draft-simple and draft-mtp; remove one"
        if self.has_draft and "draft-mtp" in self.spec_type:
            yield "draft_model is given, but draft-mtp uses the heads in the model's own file; leave it out"
        if self.has_draft and self.spec_type not in (AUTO, "none") and "draft-simple" not in self.spec_type:
            yield f"draft_model is given, but spec_type {self.spec_type} does not use it; add draft-simple"
        rates, length, most = self.spec_synth_rates, self.spec_synth_len, self.spec_draft_max
        if rates and length:
            yield "spec_synth_rates and spec_synth_len exclude each other; give one"
        if (rates or length) and not self.has_draft and "draft-mtp" not in self.spec_type:
            yield "spec_synth_rates and spec_synth_len need draft_model (-md) or draft-mtp; add one"
        if rates and len(rates) != most:
            yield f"spec_synth_rates should be as many as spec_draft_max, {most}, not {len(rates)}"
        if any(not 0 <= rate <= before for before, rate in pairwise((1.0, *rates))):
            yield "spec_synth_rates should be between 0 and 1, none above the one before it"
        if length and not 1 <= length <= most + 1:
            yield f"spec_synth_len should be between 1 and {most + 1}, or 0"

    spec_type: Annotated[
        str,
        BeforeValidator(read_kinds),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"enum": list(KINDS)}}]}),
    ] = option(AUTO, "--spec-type", env=True, metavar="A,B")
    """Sources of draft tokens, in order: ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod, ngram-cache (n-grams of
    the text, which differ in their sizes), draft-simple (the draft model), draft-mtp (MTP heads). none = off; auto =
    n-grams of the text where they pay, plus the draft model if there is one. Output does not change; see
    docs/speculation.md.
    """
    spec_lookup_size: Int = option(3, "--spec-lookup-size-n", ge=1, le=64)
    """Length of the n-gram that auto lookup searches in the text, in tokens. Lower it for more drafts, raise it for a
    higher acceptance rate.
    """
    spec_lookup_max: Int = option(16, "--spec-lookup-size-m", ge=1, le=128)
    """Maximum draft length of auto lookup, in tokens."""
    spec_ngram_simple_size_n: Int = option(12, "--spec-ngram-simple-size-n", ge=1, le=1024)
    """N-gram size of ngram-simple, in tokens."""
    spec_ngram_simple_size_m: Int = option(48, "--spec-ngram-simple-size-m", ge=1, le=1024)
    """Maximum draft length of ngram-simple, in tokens."""
    spec_ngram_map_k_size_n: Int = option(12, "--spec-ngram-map-k-size-n", ge=1, le=1024)
    """N-gram size of ngram-map-k, in tokens."""
    spec_ngram_map_k_size_m: Int = option(48, "--spec-ngram-map-k-size-m", ge=1, le=1024)
    """Maximum draft length of ngram-map-k, in tokens."""
    spec_ngram_map_k4v_size_n: Int = option(12, "--spec-ngram-map-k4v-size-n", ge=1, le=1024)
    """N-gram size of ngram-map-k4v, in tokens."""
    spec_ngram_map_k4v_size_m: Int = option(48, "--spec-ngram-map-k4v-size-m", ge=1, le=1024)
    """Maximum draft length of ngram-map-k4v, in tokens."""
    spec_ngram_mod_n_match: Int = option(24, "--spec-ngram-mod-n-match", ge=1, le=1024)
    """N-gram size of ngram-mod, in tokens."""
    spec_ngram_mod_n_max: Int = option(64, "--spec-ngram-mod-n-max", ge=0, le=1024)
    """Maximum draft length of ngram-mod, in tokens."""
    draft_model: FilePath | None = option(
        None,
        "-md --model-draft --spec-draft-model",
        env="LLAMA_ARG_SPEC_DRAFT_MODEL",
        replaces="draft_hf",
        also="speculative_model",
    )
    """GGUF file of the draft model, which must have the same vocabulary."""
    draft_hf: RepositoryName = option(
        "",
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
        env="LLAMA_ARG_SPEC_DRAFT_HF_REPO",
        metavar="OWNER/NAME[:QUANT]",
        replaces="draft_model",
    )
    """Hugging Face repository of the draft model; same syntax as hf."""
    spec_draft_max: Int = option(16, "--spec-draft-n-max --draft --draft-n --draft-max", env=True, ge=1, le=128)
    """Maximum number of draft tokens per step from the draft model or MTP heads; the engine uses fewer when that is
    faster.
    """
    spec_draft_min: Int = option(0, "--spec-draft-n-min --draft-min --draft-n-min", env=True, ge=0, le=128)
    """Minimum draft length; shorter drafts are dropped."""
    spec_draft_p_min: Float = option(0.0, "--spec-draft-p-min --draft-p-min", env=True, metavar="P", ge=0, le=1)
    """Stop a draft at the first token that the draft model gives a probability below this; 0 = off."""
    spec_synth_rates: Proportions = option((), "--spec-synth-rates", env=True, metavar="P0,P1,...")
    """For benchmarks: accept the first, second, ... draft token at random with these rates, whatever the model says;
    the text is meaningless. Needs spec_draft_max rates, non-increasing.
    """
    spec_synth_len: Float = option(0.0, "--spec-synth-len", env=True, metavar="L", ge=0)
    """For benchmarks, instead of spec_synth_rates: mean tokens per step, 1 to spec_draft_max + 1; 0 = off."""
    draft_n_threads: Int = option(-1, "-td --threads-draft --spec-draft-threads", ge=-1)
    """CPU threads of the draft model for decoding; -1 = as n_threads, 0 = all."""
    draft_n_threads_batch: Int = option(-1, "-tbd --threads-batch-draft --spec-draft-threads-batch", ge=-1)
    """CPU threads of the draft model for prefill; -1 = as draft_n_threads, 0 = all."""
    draft_cpu_range: str = option(
        "", "-Crd --cpu-range-draft --spec-draft-cpu-range", metavar="LO-HI", check=range_cpus
    )
    """CPUs for the draft model, for all instances; default: the instance's."""
    draft_cpu_mask: str = option("", "-Cd --cpu-mask-draft --spec-draft-cpu-mask", metavar="M", check=mask_cpus)
    """CPUs for the draft model as a hexadecimal mask, in addition to draft_cpu_range."""
    draft_cpu_strict: Int = option(0, "--cpu-strict-draft --spec-draft-cpu-strict", metavar="0|1", ge=0, le=1)
    """1 = pin each thread of the draft model to its own CPU; also set by cpu_strict."""
    draft_cpu_range_batch: str = option(
        "", "-Crbd --cpu-range-batch-draft --spec-draft-cpu-range-batch", metavar="LO-HI", check=range_cpus
    )
    """CPUs for prefill and for batches of several slots of the draft model. Default: draft_cpu_range and
    draft_cpu_mask, otherwise cpu_range_batch and cpu_mask_batch.
    """
    draft_cpu_mask_batch: str = option(
        "", "-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch", metavar="M", check=mask_cpus
    )
    """CPUs for prefill of the draft model as a hexadecimal mask, in addition to draft_cpu_range_batch."""
    draft_cpu_strict_batch: Int = option(
        0, "--cpu-strict-batch-draft --spec-draft-cpu-strict-batch", metavar="0|1", ge=0, le=1
    )
    """1 = pin each prefill thread of the draft model to its own CPU."""
    draft_device: OneDeviceSet = option((AUTO,), "-devd --device-draft --spec-draft-device", metavar="NAME,...")
    """Devices of the draft model, for all instances: names separated by commas, none, or auto = as device."""
    draft_n_gpu_layers: GpuLayers = option(
        -1, "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl", env="LLAMA_ARG_N_GPU_LAYERS_DRAFT", ge=-2
    )
    """Number of draft model layers on the GPU; auto (-1) or all (-2)."""
    draft_override_tensor: TextList = _overrides("-otd --override-tensor-draft --spec-draft-override-tensor")
    """Buffer types for tensors of the draft model; same syntax as override_tensor."""
    draft_cpu_moe: Bool = option(
        False, "-cmoed --cpu-moe-draft --spec-draft-cpu-moe", env="LLAMA_ARG_SPEC_DRAFT_CPU_MOE"
    )
    """Keep all expert (MoE) weights of the draft model on the CPU."""
    draft_n_cpu_moe: Int = option(
        0,
        "-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe",
        env="LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
        ge=0,
        le=MAX_LAYERS,
    )
    """Keep the expert weights of the draft model's first N layers on the CPU."""
    draft_cache_type_k: CacheType = option(
        "f16", "-ctkd --cache-type-k-draft --spec-draft-type-k", env="LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K", metavar="TYPE"
    )
    """Data type of the keys in the draft model's KV cache."""
    draft_cache_type_v: CacheType = option(
        "f16", "-ctvd --cache-type-v-draft --spec-draft-type-v", env="LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V", metavar="TYPE"
    )
    """Data type of the values in the draft model's KV cache. A quantized type needs flash attention."""


class OverrideSettings(SettingsModel, group="Tensors and metadata"):
    override_tensor: TextList = _overrides("-ot --override-tensor", env=True)
    """Buffer type (CPU or a device) for tensors whose name matches a regular expression, e.g. exps=CPU. The first match
    applies, before the options below. After a group only ? is allowed, and repetitions are limited.
    """
    cpu_moe: Bool = option(False, "-cmoe --cpu-moe", env=True)
    """Keep all expert (MoE) weights on the CPU."""
    n_cpu_moe: Int = option(0, "-ncmoe --n-cpu-moe", env=True, ge=0, le=MAX_LAYERS)
    """Keep the expert weights of the first N layers on the CPU."""
    n_cpu_ffn: Int = option(0, "-ncffn --n-cpu-ffn", env=True, ge=0, le=MAX_LAYERS)
    """Keep the dense feed-forward weights of the first N layers on the CPU."""
    no_host: Bool = option(False, "--no-host", env=True)
    """Do not use host buffers of devices, so that weights there can be repacked."""
    override_kv: MetadataOverrides = option(
        (), "--override-kv", metavar="KEY=TYPE:VALUE,...", text=split_list, repeat=True, max_length=MAX_OVERRIDES
    )
    """Override metadata of the file; types int, float, bool and str, e.g. tokenizer.ggml.add_bos_token=bool:false.
    Values known to abort llama.cpp are refused, but other values may still abort it.
    """


MAX_NORM = 1000


class EmbeddingSettings(SettingsModel, group="Embedding and reranking"):
    embedding: AutoBool = option(None, "--embedding --embeddings", env="LLAMA_ARG_EMBEDDINGS")
    """Serve embeddings; auto = if the file is an encoder or names a pooling type. It then generates no text."""
    pooling: PoolingName = option("", "--pooling", env=True, metavar="TYPE")
    """Pooling of token embeddings (none = one vector per token); empty = as in the model file."""
    reranking: Bool = option(False, "--rerank --reranking", env="LLAMA_ARG_RERANKING")
    """Serve reranking; implies embedding with pooling rank."""
    embd_normalize: Int = option(2, "--embd-normalize", ge=-1, le=MAX_NORM)
    """Normalization of pooled vectors: -1 = none, 0 = largest component 32760, 1 = taxicab, 2 = Euclidean, more =
    p-norm.
    """

    def problems(self) -> Iterator[str]:
        if self.reranking and self.pooling not in ("", "rank"):
            yield f"reranking needs pooling rank, and pooling is {self.pooling}; remove one"
        if self.embedding is False and (self.reranking or self.pooling):
            yield "embedding is false, but reranking or pooling is set; remove one"


WHERE = ("path", "hf", "hf_file", "model_url", "docker_repo")
"""Options that name one model's file. Like `aliases`, flags and variables set them for the model of -m only."""
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock"]
MAX_SLOTS = 256  # LLAMA_MAX_SEQ


class ContextSettings(SettingsModel, group="Context and memory"):
    def problems(self) -> Iterator[str]:
        if self.flash_attn == "off" and self.cache_type_v not in ("f32", "f16", "bf16"):
            yield "cache_type_v is quantized, which needs flash_attn on or auto; change one of them"

    n_ctx: Int = option(
        -1, "-c --ctx-size", env=True, ge=-1, also="num_ctx max_model_len max_seq_len context_length context_size"
    )
    """Context size in tokens, for all slots of an instance together. Raise it for long prompts; it costs memory. -1 =
    the training context (per slot with separate KV) or what fits (fit); 0 = the full training context or an error.
    """
    fit: OnOff = option("on", "-fit --fit", env=True)
    """Reduce the context (if n_ctx is -1) and the GPU layers (if n_gpu_layers is auto) until the model fits the free
    memory.
    """
    fit_target: Sizes = option((1024,), "-fitt --fit-target", env=True, metavar="MIB,...", min_length=1)
    """MiB that fit keeps free: one value for every device, or one per device; without devices, of RAM."""
    fit_ctx: Int = option(4096, "-fitc --fit-ctx", env=True, ge=1)
    """Smallest context that fit chooses, in tokens per slot with separate KV."""
    kv_unified_per_slot: Int = option(0, "--kv-unified-per-slot", env=True, ge=0)
    """Largest context of each slot in tokens with a unified KV cache; if n_ctx is -1, also the context reserved per
    slot. 0 = no limit.
    """
    n_parallel: Int = option(
        -1,
        "-np --parallel",
        env="LLAMA_ARG_N_PARALLEL",
        ge=-1,
        le=MAX_SLOTS,
        check=without_zero,
        also="slots n_slots num_slots num_parallel max_num_seqs",
    )
    """Slots per instance: requests that decode at the same time. Raise it for more users; with separate KV each slot
    gets its share of n_ctx. -1 = 4 with a unified KV cache. For embedding models: texts per decode, -1 = 64.
    """
    kv_unified: AutoBool = option(None, "-kvu --kv-unified", env=True, off=("-no-kvu", "--no-kv-unified"))
    """Use one KV cache for all slots instead of a fixed share per slot; auto = only if n_parallel is -1."""
    n_batch: Int = option(2048, "-b --batch-size", env="LLAMA_ARG_BATCH", ge=1, also="num_batch max_num_batched_tokens")
    """Logical batch size: maximum number of tokens per llama_decode call."""
    n_ubatch: Int = option(512, "-ub --ubatch-size", env="LLAMA_ARG_UBATCH", ge=1)
    """Physical batch size: maximum number of tokens computed at once. Lower it to save memory in compute buffers."""
    flash_attn: Switch = option("auto", "-fa --flash-attn", env=True)
    """Flash attention; auto = where supported. On many CPUs, off decodes up to twice as fast beyond some thousand
    tokens of context. Prefill is a quarter slower then, and compute buffers are larger (benchmarks/experiments.md).
    """
    cache_type_k: CacheType = option(
        "f16", "-ctk --cache-type-k", env=True, metavar="TYPE", also="kv_cache_dtype kv_cache_type"
    )
    """Data type of the keys in the KV cache. q8_0 takes about half of the memory of f16."""
    cache_type_v: CacheType = option("f16", "-ctv --cache-type-v", env=True, metavar="TYPE")
    """Data type of the values in the KV cache. A quantized type needs flash attention."""
    swa_full: Bool = option(False, "--swa-full", env=True)
    """Keep the full context of sliding-window layers: more memory, but prefixes can be reused anywhere."""
    rope_scaling: RopeScaling = option("", "--rope-scaling", env="LLAMA_ARG_ROPE_SCALING_TYPE", metavar="TYPE")
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


class HardwareSettings(SettingsModel, group="Loading and hardware"):
    def problems(self) -> Iterator[str]:
        for name in ("cpu_range", "cpu_mask"):
            n = len(getattr(self, name))
            if n > 1 and n != self.instances:
                yield f"{name} has {n} CPU sets for {self.instances} instances; give one, or one per instance"
        if len(self.device) not in (1, self.instances):
            n = len(self.device)
            yield f"device has {n} sets for {self.instances} instances; give one, or one per instance"

    load: Literal["startup", "on_demand"] = option("on_demand", metavar="WHEN")
    """When to load the model: at startup, or on the first request. A model given by -m loads at startup."""
    isolation: Literal["auto", "none", "process"] = option("auto", metavar="HOW")
    """process = run the model in its own process: a crash or an out-of-memory kill affects no other model, the process
    is restarted, and steps do not share the GIL with HTTP. auto = process if a GPU or another device is used,
    because llama.cpp aborts on device errors; otherwise none.
    """
    pinned: Bool = option(False)
    """Never unload the model to free memory for another model."""
    instances: Int = option(1, ge=1, le=64)
    """Number of contexts over the same weights, each with its own slots and step thread. For several GPUs, NUMA nodes,
    or many cores.
    """
    device: DeviceSets = option((AUTO,), "-dev --device", env=True, metavar="NAME,...")
    """Devices for offloading: names from --list-devices separated by commas, none, or auto = all GPUs. With several
    instances, semicolons separate one set per instance (YAML: a list); each distinct set loads its own weights.
    """
    sleep_idle_seconds: Int = option(-1, "--sleep-idle-seconds", ge=-1, check=without_zero, also="keep_alive ttl")
    """Seconds without a request before the model is unloaded until the next one; -1 = never."""
    n_threads: Int = option(-1, "-t --threads", env=True, ge=-1, also="num_thread num_threads")
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
    n_gpu_layers: GpuLayers = option(
        -1, "-ngl --gpu-layers --n-gpu-layers", env="LLAMA_ARG_N_GPU_LAYERS", ge=-2, also="num_gpu"
    )
    """Number of layers on the GPU; auto (-1) = as many as fit, all (-2)."""
    split_mode: SplitMode = option("layer", "-sm --split-mode", env=True, also="tensor_parallel_size")
    """How to split a model across GPUs. fit does not support tensor."""
    tensor_split: Proportions = option((), "-ts --tensor-split", env=True, metavar="N0,N1,...")
    """Share of the model for each GPU, e.g. 3,1 = three quarters and one quarter."""
    main_gpu: Int = option(0, "-mg --main-gpu", env=True, ge=0)
    """GPU for the whole model (split_mode none) or for small tensors (row)."""
    kv_offload: Bool = option(True, "-kvo --kv-offload", env=True, off=("-nkvo", "--no-kv-offload"))
    """Keep the KV cache on the GPU. Off = in RAM: frees GPU memory, but is slower."""
    op_offload: Bool = option(True, "--op-offload", off=True)
    """Run large operations on host tensors on the GPU."""
    load_mode: LoadMode = option("auto", "-lm --load-mode", env=True, replaces="mmap mlock")
    """How to read the file: auto (mmap), none, mmap, mlock (keep in RAM), mmap+mlock."""
    mmap: AutoBool = option(None, "--mmap", env=True, off=True, replaces="load_mode")
    """Memory-map the file; auto = as load_mode (flag of older llama-servers)."""
    mlock: AutoBool = option(None, "--mlock", env=True, replaces="load_mode")
    """Lock the weights in RAM; auto = as load_mode (flag of older llama-servers)."""
    numa: NumaStrategy = option("", "--numa", env=True, metavar="TYPE")
    """NUMA strategy of the process; empty = none."""
    lazy_mode: LazyMode = option("auto", "-lzm --lazy-mode", env=True)
    """Read rows of large tables, such as per-layer embeddings, on demand; auto = for tables above 4 GiB."""
    repack: Bool = option(True, "--repack", env=True, off=("-nr", "--no-repack"))
    """Repack weights on the CPU into the layout of its instructions: faster, but not memory-mapped."""
    check_tensors: Bool = option(False, "--check-tensors")
    """Check the weights for invalid values while loading."""
    warmup: Bool = option(True, "--warmup", off=True)
    """Run an empty batch after loading, so that the first request is not slower."""


class SchedulingSettings(SettingsModel, group="Scheduling"):
    def problems(self) -> Iterator[str]:
        if self.cache_disk and self.cache_disk_path is None:
            yield "cache_disk needs a folder: set cache_disk_path"

    max_queue: Int = option(256, ge=0)
    """Requests per instance that may wait for a slot; further ones get 429 with Retry-After. Clients below their fair
    share, and to some extent urgent requests, may queue up to twice as many.
    """
    queue_timeout_s: Float = option(0.0, ge=0)
    """Seconds that a request may wait for a slot; then it gets 503 with Retry-After. 0 = unlimited."""
    first_token_timeout_s: Float = option(0.0, ge=0)
    """Seconds from a request's arrival to its first token; then 503. 0 = unlimited. A request may shorten it."""
    request_timeout_s: Float = option(0.0, ge=0)
    """Seconds from a request's arrival to its end; then 503, or an error event in a stream. 0 = unlimited. A request
    may shorten it.
    """
    target_itl_ms: Float = option(-1.0, ge=-1)
    """Target step time in ms while slots decode: limits prefill chunks and thereby inter-token latency. -1 = automatic:
    300 on CPUs, 60 where a GPU computes. 0 = throughput only, with full batches.
    """
    max_prefill_tokens: Int = option(0, ge=0)
    """Most prefill tokens of a step that also decodes, also below min_chunk. 0 = no such cap."""
    max_prefills: Int = option(0, ge=0)
    """Most prompts that a step prefills while slots decode. 0 = unlimited."""
    min_chunk: Int = option(64, ge=1)
    """Minimum number of prefill tokens per step while slots decode. Raise it for a faster first token, lower it for
    smaller gaps in running streams.
    """
    cache_prompt: Bool = option(True, "--cache-prompt", env=True, off=True)
    """Reuse the KV cache of common prompt prefixes."""
    cache_ram: Int = option(-2, "-cram --cache-ram", env=True, metavar="MIB", ge=-2)
    """MiB of RAM for cached KV states: offloaded slots, checkpoints, preempted requests. 0 = no offloaded slots; -1 =
    unlimited; -2 = automatic: 8192, at most a quarter of the memory free at load. caches_ram limits all models
    together.
    """
    ctx_checkpoints: Int = option(32, "-ctxcp --ctx-checkpoints --swa-checkpoints", env=True, ge=0)
    """Maximum number of checkpoints per slot, for models whose memory cannot be truncated (recurrent, hybrid, sliding
    window). Without a checkpoint such a prompt is recomputed from the start. 0 = none.
    """
    checkpoint_min_step: Int = option(
        8192, "-cms --checkpoint-min-step", env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT", ge=0
    )
    """Minimum number of tokens between checkpoints in the middle of a prompt. The ends of the system prompt, the last
    turn and the prompt, and places where another prompt diverged, always get one. 0 = one per turn.
    """
    cache_disk: Int = option(0, "--cache-disk", metavar="MIB", ge=0)
    """MiB of disk, in cache_disk_path, for KV states evicted from RAM; they survive a restart. 0 = off."""
    cache_disk_path: Place | None = option(None, "--cache-disk-path", metavar="FOLDER")
    """Folder for cache_disk, created if missing; each model gets a subfolder. Or a URL such as s3://bucket/folder,
    which is shared (docs/scaling.md).
    """
    cache_disk_shared: Bool = option(False, "--cache-disk-shared")
    """Share cache_disk_path between processes: each one soon finds the others' KV states, so a conversation may
    continue at any of them. slot_save_secret_file signs the files.
    """
    context_shift: Bool = option(False, "--context-shift", env=True, off=True)
    """When a slot's context is full, drop the older half after the kept prefix and continue."""
    n_keep: Int = option(0, "--keep", ge=-1)
    """Prompt tokens that a context shift keeps, for requests that set no n_keep; -1 = all."""
    n_cache_reuse: Int = option(0, "--cache-reuse", env=True, ge=0)
    """Shortest run of cached tokens that may be reused at another position, for requests that set no n_cache_reuse; 0 =
    off.
    """
    slot_prompt_similarity: Float = option(0.1, "-sps --slot-prompt-similarity", ge=0, le=1)
    """Share of a prompt that must match a slot's tokens to prefer that slot; 0 = off."""
    gather_ms: Float = option(4.0, ge=0, le=1000)
    """Maximum wait in ms for requests that arrive together, so that they join one batch."""
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
    group="Model",
):
    """Options of every model; the YAML's ``defaults`` set them for all models."""


class ModelSettings(ProjectorSettings, ModelDefaults, group="Model"):
    """One model: an entry of the YAML's ``models``, keyed by its id."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [name]} for name in ("path", "hf", "model_url", "docker_repo")]}
    )

    def problems(self) -> Iterator[str]:
        if self.path is None and not (self.hf or self.model_url or self.docker_repo):
            yield "path is missing; name the GGUF file, or hf, model_url or docker_repo"
        named = [name for name in ("hf", "model_url", "docker_repo") if getattr(self, name)]
        if len(named) > 1 or (self.path is not None and named not in ([], ["model_url"])):
            yield f"{', '.join([*['path'] * (self.path is not None), *named])} exclude each other; give one"
        if self.hf_file and not self.hf:
            yield "hf_file needs hf, the repository; add it"

    path: FilePath | None = option(None, "-m --model", env=True, replaces="hf hf_file docker_repo")
    """Path of the GGUF file; of a split model the first part. Required unless hf, model_url or docker_repo is given."""
    hf: RepositoryName = option(
        "", "-hf -hfr --hf-repo", env=True, metavar="OWNER/NAME[:QUANT]", replaces="path model_url docker_repo"
    )
    """Hugging Face repository and quantization. Default quantization: Q4_K_M, then Q8_0, then the first file.
    Downloaded into the cache before the first load if missing. With -hf, a repository with preset.ini serves the
    models it lists.
    """
    hf_file: str = option("", "-hff --hf-file", env=True, metavar="FILE")
    """Name of a file in the repository hf, instead of a quantization."""
    model_url: str = option(
        "", "-mu --model-url", env=True, metavar="URL", replaces="hf hf_file docker_repo", check=check_url
    )
    """URL of the GGUF file; downloaded to path if given, otherwise into the cache."""
    docker_repo: str = option(
        "",
        "-dr --docker-repo",
        env=True,
        metavar="[REGISTRY/]NAME[:TAG]",
        replaces="path hf hf_file model_url",
        check=Image.parse,
    )
    """Model in an OCI registry; names without a registry use docker_registry."""
    aliases: TextList = option(
        (), "-a --alias", env=True, metavar="A,B", text=split_list, repeat=True, also="served_model_name"
    )
    """Additional names of the model, separated by commas. For -m, the first one in alphabetical order is its id."""
    tags: TextList = option((), "--tags", env=True, metavar="A,B", text=split_list, repeat=True)
    """Tags of the model in /v1/models, separated by commas; they have no other effect."""
