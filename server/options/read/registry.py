"""Which models there are: those of the YAML or the one of -m or -hf, and those of the cache, a folder, a preset."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from server.errors import ConfigError, LlamapoolError, without_credentials
from server.hub.cache import CachedModel
from server.hub.hub import Hub
from server.hub.reference import Reference
from server.options.read.environment import Variables
from server.options.read.flags import Flags
from server.options.read.layers import Layer, SourcedValue, laid_over
from server.options.read.presets import hides_cached, preset_layer
from server.options.read.yaml_file import YamlFile
from server.options.table.model import WHERE
from server.options.table.option import Table
from server.options.table.server import ServerSettings
from server.pool.catalogue import Preset, read_preset, scan_models_dir


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model was configured (``file:line``, a flag, a folder), and what only a scanned folder tells."""

    place: str
    mmproj: Path | None = None
    scanned: bool = False
    kind: Literal["preset", "models_dir", "cache"] = "preset"  # as llama-server calls them
    hidden: bool = False  # not listed: a preset has the same file
    repository: str = ""  # which means this one of the cache where no quantization is named
    sources: Mapping[str, str] = field(default_factory=dict)  # of its options, where each was given

    def source_of(self, key: str) -> str:
        """Where that option was given; of one that nobody gave, where the model was."""
        return self.sources.get(key, self.place)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was read, before it is checked."""

    table: Table
    flags: Flags
    variables: Variables
    document: YamlFile
    config_named: bool = False  # the document is not merely the one that lies about
    is_demo: bool = False  # but the one that a checkout has for those who have no model


@dataclass(frozen=True, slots=True)
class ModelRegistry:
    """The models' origins in their order, and what only their kind of origin says of them."""

    origins: Mapping[str, Origin] = field(default_factory=dict)
    named: Mapping[str, Layer] = field(default_factory=dict)  # the model of -m
    catalogued: Mapping[str, Layer] = field(default_factory=dict)  # of --models-dir and --models-preset
    skipped: tuple[str, ...] = ()  # what a preset says without effect, a line each
    serves_cache: bool = True  # what the hub's cache holds is among them


def find_models(inputs: Inputs, server: ServerSettings, hub: Hub) -> ModelRegistry:
    """Reads the folder and the preset that `server` names, and the cache; asks the hub whether a repository that is
    not there is a preset. Raises ConfigError, also for an id given twice."""
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
    if cached and inputs.is_demo and not where:  # the others are what its places are for
        place = str(hub.cache.folder)
        catalogued |= {name: {"load": SourcedValue("on_demand", place)} for name in inputs.document.models}
    for model_id, origin, layer in _catalogued(inputs.table, server.models_dir, preset, cached, hub, skipped):
        if model_id in origins and origin.kind == "cache":
            continue
        if model_id in origins:
            raise ConfigError(f"{origin.place}: model '{model_id}' is configured twice; rename one")
        origins[model_id], catalogued[model_id] = origin, layer
    return ModelRegistry(origins, named, catalogued, tuple(skipped), serves_cache)


def named_source(inputs: Inputs) -> dict[str, SourcedValue]:
    """What flags, and else variables, say of where the one model's file is: -m, -hf, -hff, -mu, -dr."""
    layers = [
        {key: layer[key] for key in WHERE if key in layer} for layer in (inputs.variables.model, inputs.flags.model)
    ]
    return laid_over(inputs.table, "model", *layers)


def _preset_repository(where: Layer, hub: Hub) -> Path | None:
    """The preset.ini of the repository of -hf, if it has one. Raises ConfigError where nobody knows."""
    if "hf" not in where or "hf_file" in where:
        return None
    try:
        return hub.preset(Reference.parse(str(where["hf"].value)))
    except ValueError:
        return None  # the option itself says so
    except LlamapoolError as error:
        raise ConfigError(f"{where['hf'].source}: {error.message}") from None


def _named_model(inputs: Inputs, where: Layer) -> tuple[str, Layer]:
    """The model of -m and the like; its id by llama-server's rule: the first alias in order, or what is named."""
    name = next(str(where[key].value) for key in ("hf", "docker_repo", "path", "model_url") if key in where)
    if "path" not in where and "model_url" in where:
        name = urlsplit(name).path.rpartition("/")[2] or without_credentials(name)
    aliases = inputs.flags.model.get("aliases") or inputs.variables.model.get("aliases")
    if aliases is None:
        return name, where
    first, *others = sorted(aliases.value) or [name]
    return first, {**where, "aliases": SourcedValue(others, aliases.source)}


def _catalogued(
    table: Table, folder: Path | None, preset_file: Path | None, cached: list[CachedModel], hub: Hub, skipped: list[str]
) -> Iterator[tuple[str, Origin, Layer]]:
    """Merged by id; a section is stronger than the preset's ``[*]``, a folder's model takes the place of the cache's
    (llama.cpp server-models.cpp, load_models)."""
    local = {entry.id: entry for entry in scan_models_dir(folder)} if folder is not None else {}
    preset = read_preset(preset_file) if preset_file is not None else None
    common = preset_layer(table, "*", preset.common, skipped) if preset else {}
    sections = preset.sections if preset else {}
    hidden = _hidden(table, preset, hub) if preset else frozenset()
    usual = {repository: _usual(hub, repository) for repository in {model.reference.repository for model in cached}}
    for model in cached:
        name = str(model.reference)
        if name not in local:
            place = str(hub.cache.folder)
            section = preset_layer(table, name, sections.get(name, []), skipped)
            origin = Origin(
                place,
                scanned=True,
                kind="preset" if section else "cache",
                hidden=model.path in hidden,
                repository=model.reference.repository if usual[model.reference.repository] == model.path else "",
            )
            yield name, origin, laid_over(table, "model", common, {"hf": SourcedValue(name, place)}, section)
    for name, entry in local.items():
        place = str(folder)
        section = preset_layer(table, name, sections.get(name, []), skipped)
        layer = laid_over(table, "model", common, {"path": SourcedValue(entry.path, place)}, section)
        yield name, Origin(place, entry.mmproj, scanned=True, kind="preset" if section else "models_dir"), layer
    known = {*local, *(str(model.reference) for model in cached)}
    for name, keys in sections.items():
        if name not in known:
            place = keys[0].place if keys else str(preset_file)
            yield name, Origin(place), laid_over(table, "model", common, preset_layer(table, name, keys, skipped))


def _hidden(table: Table, preset: Preset, hub: Hub) -> frozenset[Path]:
    """The files of the cache that sections with dedup-cache-models use."""
    found = set()
    for name, keys in preset.sections.items():
        if hides_cached(name, [*preset.common, *keys]):
            layer = preset_layer(table, name, keys, [])
            file = str(layer["hf_file"].value) if "hf_file" in layer else ""
            found |= {_cached_file(hub, layer.get("hf"), file), _cached_file(hub, layer.get("draft_hf"), "")}
    return frozenset(path for path in found if path is not None)


def _usual(hub: Hub, repository: str) -> Path | None:
    """The file that a repository's name without a quantization means, of those that the cache has."""
    files = hub.find(Reference(repository))
    return files.model if files else None


def _cached_file(hub: Hub, given: SourcedValue | None, file: str) -> Path | None:
    try:
        files = hub.find(Reference.parse(str(given.value)), file) if given else None
    except ValueError:
        return None  # the option itself says so
    return files.model if files else None
