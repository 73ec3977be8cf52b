"""Options of speculative decoding."""

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, WithJsonSchema, model_validator

from server.options.table.cpus import mask_cpus, range_cpus
from server.options.table.devices import AUTO as AUTO_DEVICES
from server.options.table.devices import OneDeviceSet
from server.options.table.hub import RepositoryName
from server.options.table.option import SettingsModel, option
from server.options.table.overrides import MAX_LAYERS, TensorOverrides
from server.options.table.values import Bool, FilePath, Float, GpuLayers, Int, Proportions, split_list

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
AUTO = "auto"
KINDS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "draft-simple", "draft-mtp")
_NOT_HERE = {
    "draft-eagle3": "it needs hidden states that the library's C interface does not give out; use draft-simple",
    "draft-dflash": "it needs hidden states that the library's C interface does not give out; use draft-simple",
    "draft-dspark": "it needs hidden states that the library's C interface does not give out; use draft-simple",
}


def read_kinds(value: object) -> str:
    """Parse speculation types, separated by commas or a list, into llama-server's notation."""
    items = split_list(value) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not items:
        raise ValueError(f"should be auto, none, or some of {', '.join(KINDS)}")
    names = [str(item).strip().lower() for item in items]
    for name in names:
        if name in _NOT_HERE:
            raise ValueError(f"has '{name}', a kind of llama-server that Llamapool does not have: {_NOT_HERE[name]}")
        if name not in (AUTO, "none", *KINDS):
            raise ValueError(f"has the unknown kind '{name}'; known: auto, none, {', '.join(KINDS)}")
    if len(names) > 1 and (AUTO in names or "none" in names):
        raise ValueError("should be auto or none alone, or a list of kinds")
    return ",".join(name for name in (AUTO, "none", *KINDS) if name in names)


class SpeculationSettings(SettingsModel):
    """Speculative decoding: drafts from the text, a draft model or MTP heads."""

    group: ClassVar[str] = "Speculative decoding"

    @property
    def has_draft(self) -> bool:
        """Whether a draft model is configured, as a file or from the hub."""
        return self.draft_model is not None or bool(self.draft_hf)

    @model_validator(mode="after")
    def _a_draft_needs_its_model(self) -> "SpeculationSettings":
        if "draft-simple" in self.spec_type and not self.has_draft:
            raise ValueError("spec_type has draft-simple, which needs draft_model (-md); add it")
        if "draft-simple" in self.spec_type and "draft-mtp" in self.spec_type:
            raise ValueError("spec_type has both draft-simple and draft-mtp; remove one")
        if self.has_draft and "draft-mtp" in self.spec_type:
            raise ValueError("draft_model is given, but draft-mtp uses the heads in the model's own file; leave it out")
        if self.has_draft and self.spec_type not in (AUTO, "none") and "draft-simple" not in self.spec_type:
            raise ValueError(f"draft_model is given, but spec_type {self.spec_type} does not use it; add draft-simple")
        return self

    @model_validator(mode="after")
    def _synthetic_rates_fit(self) -> "SpeculationSettings":
        rates, length, most = self.spec_synth_rates, self.spec_synth_len, self.spec_draft_max
        if not rates and not length:
            return self
        if rates and length:
            raise ValueError("spec_synth_rates and spec_synth_len exclude each other; give one")
        if not self.has_draft and "draft-mtp" not in self.spec_type:
            raise ValueError("spec_synth_rates and spec_synth_len need draft_model (-md) or draft-mtp; add one")
        if rates and len(rates) != most:
            raise ValueError(f"spec_synth_rates should be as many as spec_draft_max, {most}, not {len(rates)}")
        if any(not 0 <= rate <= before for before, rate in pairwise((1.0, *rates))):
            raise ValueError("spec_synth_rates should be between 0 and 1, none above the one before it")
        if length and not 1 <= length <= most + 1:
            raise ValueError(f"spec_synth_len should be between 1 and {most + 1}, or 0")
        return self

    spec_type: Annotated[
        str,
        BeforeValidator(read_kinds),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"enum": list(KINDS)}}]}),
    ] = option(AUTO, "--spec-type", env=True, metavar="A,B")
    """Sources of draft tokens, in order: ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod, ngram-cache (n-grams, as
    in llama-server), draft-simple (the draft model), draft-mtp (MTP heads). none = off; auto = n-grams of the text
    where they pay, plus the draft model if there is one. Output does not change; see docs/speculation.md.
    """
    spec_lookup_size: Int = option(3, "--spec-lookup-size-n", ge=1, le=64)
    """N-gram size of auto lookup."""
    spec_lookup_max: Int = option(16, "--spec-lookup-size-m", ge=1, le=128)
    """Most draft tokens of auto lookup."""
    spec_ngram_simple_size_n: Int = option(12, "--spec-ngram-simple-size-n", ge=1, le=1024)
    """N-gram size of ngram-simple."""
    spec_ngram_simple_size_m: Int = option(48, "--spec-ngram-simple-size-m", ge=1, le=1024)
    """Most draft tokens of ngram-simple."""
    spec_ngram_map_k_size_n: Int = option(12, "--spec-ngram-map-k-size-n", ge=1, le=1024)
    """N-gram size of ngram-map-k."""
    spec_ngram_map_k_size_m: Int = option(48, "--spec-ngram-map-k-size-m", ge=1, le=1024)
    """Most draft tokens of ngram-map-k."""
    spec_ngram_map_k4v_size_n: Int = option(12, "--spec-ngram-map-k4v-size-n", ge=1, le=1024)
    """N-gram size of ngram-map-k4v."""
    spec_ngram_map_k4v_size_m: Int = option(48, "--spec-ngram-map-k4v-size-m", ge=1, le=1024)
    """Most draft tokens of ngram-map-k4v."""
    spec_ngram_map_k4v_min_hits: Int = option(1, "--spec-ngram-map-k4v-min-hits", ge=1, le=1 << 20)
    """Occurrences of an n-gram before ngram-map-k4v drafts from it."""
    spec_ngram_mod_n_match: Int = option(24, "--spec-ngram-mod-n-match", ge=1, le=1024)
    """N-gram size of ngram-mod."""
    spec_ngram_mod_n_min: Int = option(48, "--spec-ngram-mod-n-min", ge=0, le=1024)
    """Least draft tokens of ngram-mod."""
    spec_ngram_mod_n_max: Int = option(64, "--spec-ngram-mod-n-max", ge=0, le=1024)
    """Most draft tokens of ngram-mod."""
    lookup_cache_static: FilePath | None = option(None, "-lcs --lookup-cache-static")
    """Static statistics file of llama-lookup-create for ngram-cache."""
    lookup_cache_dynamic: FilePath | None = option(None, "-lcd --lookup-cache-dynamic")
    """Dynamic statistics file of llama-lookup-create for ngram-cache, from texts like the expected ones; read only."""
    draft_model: FilePath | None = option(
        None, "-md --model-draft --spec-draft-model", env="LLAMA_ARG_SPEC_DRAFT_MODEL", replaces=("draft_hf",)
    )
    """GGUF file of the draft model, which must have the same vocabulary."""
    draft_hf: RepositoryName = option(
        "",
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
        env="LLAMA_ARG_SPEC_DRAFT_HF_REPO",
        metavar="OWNER/NAME[:QUANT]",
        replaces=("draft_model",),
    )
    """Hugging Face repository of the draft model; same syntax as hf."""
    spec_draft_max: Int = option(16, "--spec-draft-n-max --draft --draft-n --draft-max", env=True, ge=1, le=128)
    """Most draft tokens per step from the draft model or MTP heads; the actual number adapts to what pays."""
    spec_draft_min: Int = option(0, "--spec-draft-n-min --draft-min --draft-n-min", env=True, ge=0, le=128)
    """Drop drafts with fewer tokens."""
    spec_draft_p_min: Float = option(0.0, "--spec-draft-p-min --draft-p-min", env=True, metavar="P", ge=0, le=1)
    """Stop drafting at a token below this probability."""
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
    draft_device: OneDeviceSet = option((AUTO_DEVICES,), "-devd --device-draft --spec-draft-device", metavar="NAME,...")
    """Devices of the draft model, for all instances: names separated by commas, none, or auto = as device."""
    draft_n_gpu_layers: GpuLayers = option(
        -1, "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl", env="LLAMA_ARG_N_GPU_LAYERS_DRAFT", ge=-2
    )
    """Number of draft model layers on the GPU; auto (-1) or all (-2)."""
    draft_override_tensor: TensorOverrides = option(
        (),
        "-otd --override-tensor-draft --spec-draft-override-tensor",
        metavar="PATTERN=TYPE,...",
        text=split_list,
        repeat=True,
    )
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
