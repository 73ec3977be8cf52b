"""Finds the configured models: those of the YAML or of -m and -hf, of a preset, a folder, and the hub's cache.

Keys of a preset section are flags without dashes, or variables (llama.cpp common/preset.cpp, load_from_ini). A model's
settings are also written back in this form, and as flags, for ``GET /models``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from server.errors import ConfigError, LlamapoolError, without_credentials
from server.hub.cache import CachedModel
from server.hub.hub import Hub
from server.hub.reference import Reference
from server.options.catalogue import Preset, PresetKey, read_preset, scan_models_dir
from server.options.flags import FIXED_NAMES, unsupported
from server.options.model import WHERE, ModelSettings
from server.options.option import Layer, Option, SourcedValue, nearest
from server.options.server import ServerSettings
from server.options.sources import Inputs, ModelRegistry, Origin
from server.options.table import TABLE, merge_layers
from server.options.values import read_bool, without_secrets
from server.pool.spec import ScaledFile

LOAD_ON_STARTUP = "load-on-startup"
DEDUP_CACHE = "dedup-cache-models"

# ---- the configured models


def find_models(inputs: Inputs, server: ServerSettings, hub: Hub) -> ModelRegistry:
    """Find all configured models. Reads the folder and preset of `server` and the cache.

    Asks the hub whether an uncached repository of -hf contains a preset. Raises ConfigError, also for an id that occurs
    twice.
    """
    origins: dict[str, Origin] = {}
    named: dict[str, Layer] = {}
    catalogued: dict[str, Layer] = {}
    where = named_source(inputs)
    preset = server.models_preset
    if where and (found := _preset_repository(where, hub)):
        where, preset = {}, found
    serves_cache = server.models_cache if server.models_cache is not None else not (where or inputs.config_named)
    if where:
        model_id, named[model_id] = _named_model(inputs, where)
        origins[model_id] = Origin(next(iter(where.values())).source)
    else:
        for model_id, place in inputs.document.places.items():
            origins[model_id] = Origin(place)
    skipped: list[str] = []
    cached = hub.models() if serves_cache else []
    if cached and inputs.is_demo and not where:  # the demo must not take the memory that the user's models need
        place = str(hub.cache.folder)
        catalogued |= {name: {"load": SourcedValue("on_demand", place)} for name in inputs.document.models}
    for model_id, origin, layer in _catalogued(server.models_dir, preset, cached, hub, skipped):
        if model_id in origins and origin.kind == "cache":
            continue
        if model_id in origins:
            raise ConfigError(f"{origin.place}: model '{model_id}' is configured twice; rename one")
        origins[model_id], catalogued[model_id] = origin, layer
    return ModelRegistry(origins, named, catalogued, tuple(skipped), serves_cache)


def named_source(inputs: Inputs) -> dict[str, SourcedValue]:
    """Return the options that name one model's file (-m, -hf, -hff, -mu, -dr), of flags and variables."""
    layers = [
        {key: layer[key] for key in WHERE if key in layer} for layer in (inputs.variables.model, inputs.flags.model)
    ]
    return merge_layers("model", *layers)


def _preset_repository(where: Layer, hub: Hub) -> Path | None:
    """Return the preset.ini of the repository of -hf, if it has one. Raises ConfigError if the hub can't be asked."""
    if "hf" not in where or "hf_file" in where:
        return None
    try:
        return hub.preset(Reference.parse(str(where["hf"].value)))
    except ValueError:
        return None  # reported when the option is validated
    except LlamapoolError as error:
        raise ConfigError(f"{where['hf'].source}: {error.message}") from None


def _named_model(inputs: Inputs, where: Layer) -> tuple[str, Layer]:
    """Return the id and the options of the model of -m and the like.

    Its id is the first alias in alphabetical order, otherwise the path or name as given, as in llama-server.
    """
    name = next(str(where[key].value) for key in ("hf", "docker_repo", "path", "model_url") if key in where)
    if "path" not in where and "model_url" in where:
        name = urlsplit(name).path.rpartition("/")[2] or without_credentials(name)
    aliases = inputs.flags.model.get("aliases") or inputs.variables.model.get("aliases")
    if aliases is None:
        return name, where
    first, *others = sorted(aliases.value) or [name]
    return first, {**where, "aliases": SourcedValue(others, aliases.source)}


def _catalogued(
    folder: Path | None, preset_file: Path | None, cached: list[CachedModel], hub: Hub, skipped: list[str]
) -> Iterator[tuple[str, Origin, Layer]]:
    """Yield the models of the cache, the folder and the preset, merged by id.

    A section is stronger than the preset's ``[*]``; a folder's model replaces the cache's of the same id (llama.cpp
    server-models.cpp, load_models).
    """
    local = {entry.id: entry for entry in scan_models_dir(folder)} if folder is not None else {}
    preset = read_preset(preset_file) if preset_file is not None else Preset(Path())
    common = preset_layer("*", preset.common, skipped)
    hidden = _hidden(preset, hub)
    defaults = {
        repository: _cached_file(hub, SourcedValue(repository, ""), "")
        for repository in {model.reference.repository for model in cached}
    }
    found: dict[str, tuple[Origin, Layer]] = {}
    for model in cached:
        name, repository, place = str(model.reference), model.reference.repository, str(hub.cache.folder)
        if name not in local:
            is_default, is_hidden = defaults[repository] == model.path, model.path in hidden
            default_of = repository if is_default else ""
            origin = Origin(place, scanned=True, kind="cache", hidden=is_hidden, repository=default_of)
            found[name] = origin, {"hf": SourcedValue(name, place)}
    for name, entry in local.items():
        origin = Origin(str(folder), entry.mmproj, scanned=True, kind="models_dir")
        found[name] = origin, {"path": SourcedValue(entry.path, str(folder))}
    for name, keys in preset.sections.items():
        found.setdefault(name, (Origin(keys[0].place if keys else str(preset_file)), {}))
    for name, (origin, layer) in found.items():
        section = preset_layer(name, preset.sections.get(name, []), skipped)
        kind = "preset" if section else origin.kind
        yield name, replace(origin, kind=kind), merge_layers("model", common, layer, section)


def _hidden(preset: Preset, hub: Hub) -> frozenset[Path]:
    """Return the cached files that sections with dedup-cache-models use, so that they are not listed twice."""
    found = set()
    for name, keys in preset.sections.items():
        if any(_bool(name, item) for item in [*preset.common, *keys] if item.key == DEDUP_CACHE):
            layer = preset_layer(name, keys, [])
            file = str(layer["hf_file"].value) if "hf_file" in layer else ""
            found |= {_cached_file(hub, layer.get("hf"), file), _cached_file(hub, layer.get("draft_hf"), "")}
    return frozenset(path for path in found if path is not None)


def _cached_file(hub: Hub, given: SourcedValue | None, file: str) -> Path | None:
    """Return the cached file that a reference means; None if it is not cached."""
    try:
        files = hub.find(Reference.parse(str(given.value)), file) if given else None
    except ValueError:
        return None  # reported when the option is validated
    return files.model if files else None


# ---- sections of a preset


def preset_layer(section: str, keys: Sequence[PresetKey], skipped: list[str]) -> dict[str, SourcedValue]:
    """Return the options of a section; append a warning to `skipped` for each key without effect.

    Raises ConfigError that names file, line, section and key.
    """
    layer: dict[str, SourcedValue] = {}
    for item in keys:
        if item.key in ("version", DEDUP_CACHE):
            continue
        if item.key == LOAD_ON_STARTUP:
            startup = _bool(section, item)
            layer["load"] = SourcedValue("startup" if startup else "on_demand", item.place)
        elif (found := _option(section, item, skipped)) is not None:
            entry, value = found
            if entry.forms and entry.key in layer and isinstance(value, list):  # lora and lora-scaled
                value = [*layer[entry.key].value, *value]
            layer[entry.key] = SourcedValue(value, item.place)
    return layer


def _option(section: str, item: PresetKey, skipped: list[str]) -> tuple[Option, object] | None:
    """Return the option of a key and its value; None for a key that sets nothing."""
    start = f"{item.place}: [{section}]"
    spellings = ("--" + item.key, "-" + item.key)
    flag = next((spelling for spelling in spellings if spelling in TABLE.by_flag), "")
    entry = TABLE.by_flag[flag] if flag else TABLE.by_env.get(item.key)
    if entry is None:
        shown = f"{start} '{item.key}'"
        warnings = [
            unsupported(name, shown, "remove it", on=name not in FIXED_NAMES or _bool(section, item))
            for name in (*spellings, item.key)
        ]
        warning = next((text for text in warnings if text is not None), None)
        if warning is None:
            known = [spelling.lstrip("-") for spelling, row in TABLE.by_flag.items() if row.section == "model"]
            hint = nearest(item.key, [*known, LOAD_ON_STARTUP], "; see docs/configuration.md")
            raise ConfigError(f"{start} unknown key '{item.key}'{hint}")
        skipped += [warning] if warning else []
        return None
    if entry.section == "server":
        raise ConfigError(f"{start} '{item.key}' is an option of the server, not of a model; remove it")
    if entry.is_switch:
        given = _bool(section, item)
        return entry, not given if entry.constants.get(flag) is False else given
    if flag in entry.constants:
        return entry, entry.constants[flag]
    return entry, entry.parse(item.value, flag)


def _bool(section: str, item: PresetKey) -> bool:
    try:
        return read_bool(item.value)
    except ValueError as error:
        raise ConfigError(f"{item.place}: [{section}] {item.key} {error}, not '{item.value}'") from None


# ---- settings written back


def flags_of(settings: ModelSettings) -> list[str]:
    """Return the flags that serve this model alone."""
    return [word for entry, value in _changed(settings) for word in _words(entry, value)]


def preset_of(model_id: str, settings: ModelSettings) -> str:
    """Return the model's section of a preset, as llama-server writes it (llama.cpp common/preset.cpp, to_ini)."""
    values = {_name(entry).lstrip("-"): _text(value) for entry, value in _changed(settings)}
    if "load" in values:
        values[LOAD_ON_STARTUP] = str(values.pop("load") == "startup").lower()
    lines = [f"{key} = {value}" for key, value in values.items()]
    return "\n".join([f"[{model_id}]", *lines, ""])


def _changed(settings: ModelSettings) -> Iterator[tuple[Option, Any]]:
    """Yield the options that differ from their defaults, except the model's names."""
    for key in TABLE.keys("model"):
        entry, value = TABLE.entries["model", key], getattr(settings, key)
        if key not in ("aliases", "tags") and value != entry.default:
            yield entry, value


def _name(entry: Option) -> str:
    """Return the last long flag."""
    plain = entry.plain_flags
    return next((flag for flag in reversed(plain) if flag.startswith("--")), plain[-1])


def _words(entry: Option, value: Any) -> Iterator[str]:
    if not entry.is_switch:
        yield from (_name(entry), *(_text(value).split(" ") if entry.n_words > 1 else (_text(value),)))
    elif value:
        yield _name(entry)
    else:
        yield from [flag for flag, constant in entry.constants.items() if constant is False][:1]


def _text(value: Any) -> str:
    """Return a value as a flag's text, without secrets: clients may read it (GET /models)."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, ScaledFile):
        return str(value.path) if value.scale == 1 else f"{value.path}:{value.scale:g}"
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    if isinstance(value, Mapping):
        return orjson.dumps(value).decode()
    return without_secrets(str(value)).replace("\n", "\\n")
