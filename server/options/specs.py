"""From a model's settings to the plain values that the inside works with."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from server.engine.params import LOOKUP, EngineParams
from server.engine.request import SAMPLER_LETTERS, SamplingParams
from server.errors import ConfigError
from server.options.model import ModelDefaults, ModelSettings
from server.options.presets import flags_of, preset_of
from server.options.sources import Origin
from server.options.values import (
    AUTO,
    device_sets,
    instance_cpus,
    metadata_override,
    one_set,
    read_json_object,
    read_text,
    tensor_override,
)
from server.pool.spec import NOT_HERE, ChatParams, DraftFile, LoadParams, ModelSpec, RemoteFiles, ThreadPlacement
from server.structured.response_format import ResponseFormat
from server.templates.built_in import complaint, is_name, names

WHOLE = (1 << 31) - 1
"""As ``fit_ctx``: no context is shortened. llama-server's meaning of ``-c 0`` (common/arg.cpp)."""


FINE = 1 << 20  # steps between probabilities that are looked for


def model_spec(model_id: str, settings: ModelSettings, origin: Origin) -> ModelSpec:
    """Return the specification of one model; files of the hub are not looked for yet.

    Raises ConfigError when its template file cannot be read.
    """
    same = _same_names(ModelSpec, settings)
    same |= {"path": settings.path or NOT_HERE}
    same |= {"mmproj": settings.mmproj or (origin.mmproj if settings.mmproj_auto else None)}
    return ModelSpec(
        **same,
        id=model_id,
        native=_load_params(settings),
        draft=_draft(settings),
        engine=_engine_params(settings),
        chat=_chat_params(model_id, settings, origin.place),
        sampling=_sampling_params(settings),
        stop=settings.reverse_prompt,
        shape=_shape(model_id, settings, origin.place),
        sleep_idle_s=float(settings.sleep_idle_seconds),
        source=origin.place,
        remote=_remote(settings),
        origin=origin.kind,
        hidden=origin.hidden,
        args=("llamapool", *flags_of(settings)),
        preset=preset_of(model_id, settings),
    )


def _remote(settings: ModelSettings) -> RemoteFiles | None:
    found = RemoteFiles(
        hf=settings.hf,
        file=settings.hf_file,
        url=settings.model_url,
        docker=settings.docker_repo,
        draft=settings.draft_hf if "draft-simple" in spec_type(settings) else "",
        mmproj=settings.mmproj_auto and settings.mmproj is None and not settings.mmproj_url,
        mmproj_url=settings.mmproj_url,
    )
    return None if replace(found, mmproj=True) == RemoteFiles() else found


def _same_names(inside: type, settings: ModelSettings) -> dict[str, Any]:
    names = {field.name for field in fields(inside)}
    return {name: getattr(settings, name) for name in names & set(type(settings).model_fields)}


def _load_params(settings: ModelSettings) -> LoadParams:
    mode = settings.load_mode
    values = _same_names(LoadParams, settings)
    values["mmap"] = mode in ("auto", "mmap", "mmap+mlock") if settings.mmap is None else settings.mmap
    values["mlock"] = mode in ("mlock", "mmap+mlock") if settings.mlock is None else settings.mlock
    values["fit"] = settings.fit == "on"
    values["fit_ubatch"] = "n_ubatch" not in settings.model_fields_set
    values["n_ctx"] = max(settings.n_ctx, 0)
    if settings.n_ctx < 0:  # as llama-server sizes the cache (tools/server/server.cpp)
        values["n_ctx"] = settings.kv_unified_per_slot * LoadParams(n_parallel=settings.n_parallel).n_slots
    values["n_ctx_slot"] = settings.kv_unified_per_slot
    if settings.n_ctx == 0:
        values["fit_ctx"] = WHOLE
    values["devices"] = device_sets(settings.device)
    values["mmproj_device"] = device_sets(settings.mmproj_device)[0]
    values["tensor_overrides"] = tuple(map(tensor_override, settings.override_tensor))
    values["metadata_overrides"] = tuple(map(metadata_override, settings.override_kv))
    for name in ("n_threads", "n_threads_batch"):
        values[name] = values[name] or -1
    values["placement"] = _placement(settings)
    values["mtp"] = "draft-mtp" in spec_type(settings)
    if settings.reranking:
        values |= {"embedding": True, "pooling": "rank"}
    return LoadParams(**values)


def spec_type(settings: ModelDefaults) -> str:
    """Return the sources of draft tokens, with `auto` resolved."""
    if settings.spec_type != AUTO:
        return settings.spec_type
    return f"{LOOKUP},draft-simple" if settings.has_draft else LOOKUP


def _placement(settings: ModelDefaults) -> ThreadPlacement | None:
    """None when nothing is said of it; the same threads compute the draft model, so that what is said of it counts."""
    batch = one_set(settings.cpu_range_batch, settings.cpu_mask_batch)
    placement = ThreadPlacement(frozenset(), batch, bool(settings.cpu_strict), bool(settings.cpu_strict_batch))
    drafts = _draft_placement(settings, placement)
    return None if placement == drafts == ThreadPlacement() else placement


def _draft_placement(settings: ModelDefaults, target: ThreadPlacement) -> ThreadPlacement:
    """Return thread parameters with the defaults of the model (llama.cpp common/common.cpp, postprocess_cpu_params)."""
    alone = one_set(settings.draft_cpu_range, settings.draft_cpu_mask)
    batch = one_set(settings.draft_cpu_range_batch, settings.draft_cpu_mask_batch)
    strict = bool(settings.draft_cpu_strict) or target.strict
    strict_batch = bool(settings.draft_cpu_strict_batch) or (strict if alone else target.strict_batch)
    return ThreadPlacement(alone, batch or (frozenset() if alone else target.cpus_batch), strict, strict_batch)


def _draft(settings: ModelSettings) -> DraftFile | None:
    """Return the settings of the draft model. Its context has the model's shape (common_base_params_to_speculative)."""
    if not settings.has_draft or "draft-simple" not in spec_type(settings):
        return None
    native = _load_params(settings)
    n_threads = native.n_threads if settings.draft_n_threads < 0 else settings.draft_n_threads
    n_batch_threads = settings.draft_n_threads_batch
    if n_batch_threads < 0:
        n_batch_threads = native.n_threads_batch if settings.draft_n_threads < 0 else n_threads
    return DraftFile(
        settings.draft_model or NOT_HERE,
        replace(
            native,
            n_threads=n_threads,
            n_threads_batch=n_batch_threads,
            placement=native.placement and _draft_placement(settings, native.placement),
            devices=device_sets(settings.draft_device),
            tensor_overrides=tuple(map(tensor_override, settings.draft_override_tensor)),
            cpu_moe=settings.draft_cpu_moe,
            n_cpu_moe=settings.draft_n_cpu_moe,
            n_cpu_ffn=0,
            n_gpu_layers=settings.draft_n_gpu_layers,
            cache_type_k=settings.draft_cache_type_k,
            cache_type_v=settings.draft_cache_type_v,
            swa_full=True,  # rejected draft tokens are rolled back
            lora=(),
            control_vectors=(),
        ),
    )


def _engine_params(settings: ModelSettings) -> EngineParams:
    cpus = instance_cpus(settings.cpu_range, settings.cpu_mask)
    named = EngineParams(**_same_names(EngineParams, settings), spec_synth=_synthetic(settings))
    kinds = spec_type(settings)
    return replace(named, cpus=cpus, spec_type=kinds, spec_ngram=_ngram(settings, kinds))


def _synthetic(settings: ModelSettings) -> tuple[float, ...]:
    """Return the probability that each draft token is accepted after the one before it, for benchmarks; () = off
    (llama.cpp common/speculative.cpp, common_speculative_synth_rates_resolve).
    """
    rates, length, most = settings.spec_synth_rates, settings.spec_synth_len, settings.spec_draft_max
    if length:  # of a step with its own token; all tokens have the same probability
        at = bisect_left(range(FINE + 1), length - 1, key=lambda i: sum((i / FINE) ** n for n in range(1, most + 1)))
        return (at / FINE,) * most
    return tuple(rate / before if before > 0 else 0.0 for before, rate in zip((1.0, *rates), rates, strict=False))


def _ngram(settings: ModelSettings, kinds: str) -> tuple[int, int]:
    """Return the smallest n-gram size and the longest draft of the n-gram types among `kinds`."""
    sizes = {
        LOOKUP: (settings.spec_lookup_size, settings.spec_lookup_max),
        "ngram-simple": (settings.spec_ngram_simple_size_n, settings.spec_ngram_simple_size_m),
        "ngram-map-k": (settings.spec_ngram_map_k_size_n, settings.spec_ngram_map_k_size_m),
        "ngram-map-k4v": (settings.spec_ngram_map_k4v_size_n, settings.spec_ngram_map_k4v_size_m),
        "ngram-mod": (settings.spec_ngram_mod_n_match, settings.spec_ngram_mod_n_max),
        "ngram-cache": (4, 8),
    }
    used = [sizes[kind] for kind in kinds.split(",") if kind in sizes] or [sizes[LOOKUP]]
    return min(size for size, _ in used), max(longest for _, longest in used)


def _sampling_params(settings: ModelSettings) -> SamplingParams:
    values = _same_names(SamplingParams, settings)
    values["seed"] &= 0xFFFFFFFF
    values["temperature"] = max(values["temperature"], 0.0)  # as llama-server's --temp
    if settings.sampler_seq:
        values["samplers"] = tuple(SAMPLER_LETTERS[letter] for letter in settings.sampler_seq)
    return SamplingParams(**values)


def _chat_params(model_id: str, settings: ModelSettings, place: str) -> ChatParams:
    kwargs = {"preserve_reasoning": settings.reasoning_preserve, **settings.chat_template_kwargs}
    if settings.reasoning_effort != "default":
        kwargs["reasoning_effort"] = settings.reasoning_effort
    template = settings.chat_template or None  # Jinja2 source or the name of a built-in template; None: the model's own
    if settings.chat_template_file is not None:
        template = read_text(settings.chat_template_file, f"{place}: models.{model_id}.chat_template_file: ")
    return ChatParams(template=template, template_kwargs=kwargs, **_same_names(ChatParams, settings))


def _shape(model_id: str, settings: ModelSettings, place: str) -> ResponseFormat | None:
    """Return the constraint of requests that ask for none. Raises ConfigError."""
    where = f"{place}: models.{model_id}"
    if settings.json_schema_file is not None:
        text = read_text(settings.json_schema_file, f"{where}.json_schema_file: ")
        try:
            return ResponseFormat("schema", read_json_object(text), "json_schema")
        except ValueError as error:
            raise ConfigError(f"{where}.json_schema_file: {settings.json_schema_file}: {error}") from None
    if settings.json_schema:
        return ResponseFormat("schema", settings.json_schema, "json_schema")
    grammar = settings.grammar
    if settings.grammar_file is not None:
        grammar = read_text(settings.grammar_file, f"{where}.grammar_file: ")
    return ResponseFormat("gbnf", grammar, "grammar") if grammar else None


_USED_BY = {
    "spec_lookup": (LOOKUP,),
    "spec_ngram_simple": ("ngram-simple",),
    "spec_ngram_map_k_": ("ngram-map-k",),
    "spec_ngram_map_k4v": ("ngram-map-k4v",),
    "spec_ngram_mod": ("ngram-mod",),
    "spec_draft": ("draft-simple", "draft-mtp"),
    "draft_": ("draft-simple",),
}
"""The speculation types that use options whose names start so."""


def without_effect(model: ModelDefaults) -> Iterator[str]:
    """Yield each given setting that has no effect, with the reason."""
    if is_name(model.chat_template) and model.chat_template not in names():
        yield f"chat_template shows no message: {complaint(model.chat_template)}"
    if not model.cache_disk:
        disk = {"cache_disk_path": model.cache_disk_path is not None, "cache_disk_shared": model.cache_disk_shared}
        for name in (name for name, is_given in disk.items() if is_given):
            yield f"{name} has no effect: cache_disk is 0, so nothing is kept on disk"
    kinds = spec_type(model)
    for name in sorted(model.model_fields_set):
        users = next((users for start, users in _USED_BY.items() if name.startswith(start)), ())
        if users and not {*users} & {*kinds.split(",")} and getattr(model, name):
            yield f"{name} has no effect: spec_type {kinds} does not use it"
    if model.spec_synth_rates or model.spec_synth_len:
        yield "spec_synth_rates or spec_synth_len is set: replies are not the model's; use them only for timing"
