"""The settings: what flags, environment, YAML and defaults together say, through the one option table.

The table's rows are the fields of `ServerSettings` and `ModelSettings` (server/options/). Strongest first: flags,
environment, YAML, defaults. A flag or ``LLAMA_ARG_*`` variable of a model's option holds for every model; ``-m``
serves one model in place of the YAML's. docs/configuration.md is generated from the table.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from server.errors import ConfigError
from server.options.environment import Variables, check_model_names, read_environment
from server.options.flags import Flags, read_flags
from server.options.layers import Given, Layer, checked, laid_over
from server.options.model import ModelDefaults, ModelSettings
from server.options.option import Table
from server.options.presets import preset_layer
from server.options.server import ServerSettings
from server.options.specs import model_spec
from server.options.yaml_file import Document, read_yaml
from server.pool.catalogue import CatalogueEntry, problem_of, read_preset, scan_models_dir
from server.pool.spec import ModelSpec

__all__ = [
    "TABLE",
    "ConfigFile",
    "ModelDefaults",
    "ModelSettings",
    "Origin",
    "ServerSettings",
    "Settings",
    "check_files",
    "load_settings",
    "model_specs",
]

DEFAULT_CONFIG = Path(__file__).resolve().parent.parent / "config" / "default.yaml"
TABLE = Table(ServerSettings, ModelSettings)
MODEL_ONLY = frozenset(ModelSettings.model_fields) - frozenset(ModelDefaults.model_fields)
NO_MODEL = (
    "no model is configured: give -m FILE, --models-dir FOLDER, --models-preset FILE, or --config FILE "
    "(LLAMAPOOL_CONFIG) with models"
)


class ConfigFile(BaseModel):
    """The YAML file; its JSON Schema is config/schema.json."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    server: ServerSettings = ServerSettings()
    """The server as a whole."""
    defaults: ModelDefaults = ModelDefaults()
    """Merged under every model."""
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    """The models, by the id that requests name."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model was configured (``file:line``, a flag, a folder), and what only a scanned folder tells."""

    place: str
    mmproj: Path | None = None
    scanned: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What all sources together say. ``models`` are complete: the defaults are merged into them."""

    server: ServerSettings = field(default_factory=ServerSettings)
    defaults: ModelDefaults = field(default_factory=ModelDefaults)
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sources:
    flags: Flags
    variables: Variables
    document: Document


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A model before its values are checked; ``layers`` from the weakest to the strongest."""

    id: str
    origin: Origin
    layers: tuple[Layer, ...]


def load_settings(
    argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None, config: Path | None = None
) -> Settings:
    """The settings of this command line (none when None), environment (the process's when None) and YAML.

    Files that the settings name are not looked at, see `check_files`; a folder of models and a preset are read.
    Raises ConfigError with one line that names the source, the key and the remedy.
    """
    flags = read_flags(TABLE, argv or ())
    variables = read_environment(TABLE, os.environ if env is None else env)
    path = config or _config_path(flags, variables)
    document = read_yaml(TABLE, path, MODEL_ONLY) if path else Document()
    sources = _Sources(flags, variables, document)
    layer = laid_over(TABLE, "server", document.server, variables.server, flags.server)
    server = checked(ServerSettings, "server", layer, document.name)
    defaults = laid_over(TABLE, "model", document.defaults, variables.defaults)
    checked_defaults = checked(ModelDefaults, "defaults", defaults, document.name)
    candidates = list(_candidates(sources, server, defaults))
    check_model_names(variables, [candidate.id for candidate in candidates])
    models = {candidate.id: _checked(sources, candidate) for candidate in candidates}
    settings = Settings(server, checked_defaults, models, {item.id: item.origin for item in candidates})
    _check_together(settings, candidates, sources)
    return settings


def model_specs(settings: Settings) -> list[ModelSpec]:
    """What the pool gets. Raises ConfigError when a template file cannot be read."""
    return [
        model_spec(model_id, model, settings.origins[model_id].place, settings.origins[model_id].mmproj)
        for model_id, model in settings.models.items()
    ]


def check_files(settings: Settings, *, strict: bool = False) -> list[str]:
    """Look at every file that the settings name.

    Raises ConfigError for the first that cannot be used. A model found in a scanned folder does not stop the
    others unless `strict`: its problem is returned.
    """
    settings.server.all_api_keys()
    model_specs(settings)
    warnings: list[str] = []
    for model_id, model in settings.models.items():
        problem = problem_of(model.path)
        if problem:
            origin = settings.origins[model_id]
            message = f"{origin.place}: models.{model_id}.path {problem}"
            if strict or not origin.scanned:
                raise ConfigError(message)
            warnings.append(message)
    return warnings


def _config_path(flags: Flags, variables: Variables) -> Path | None:
    named = flags.config or variables.config
    if named:
        return Path(named)
    given = {*flags.model, *variables.model, *flags.server, *variables.server}
    if given & {"path", "models_dir", "models_preset"} or not DEFAULT_CONFIG.is_file():
        return None
    return DEFAULT_CONFIG


def _candidates(sources: _Sources, server: ServerSettings, defaults: Layer) -> Iterator[_Candidate]:
    flags, variables, document = sources.flags, sources.variables, sources.document
    named = flags.model.get("path") or variables.model.get("path")
    if named:
        yield _named_model(sources, named, defaults)
    else:
        for model_id, layer in document.models.items():
            layers = (defaults, layer, _shared(variables.model))
            yield _Candidate(model_id, Origin(document.places[model_id]), layers)
    yield from _catalogued(sources, server, defaults)


def _named_model(sources: _Sources, named: Given, defaults: Layer) -> _Candidate:
    """The model of -m; its id by llama-server's rule: the first alias in order, or the path as given."""
    startup = {"load": Given("startup", named.source)}
    aliases = sources.flags.model.get("aliases") or sources.variables.model.get("aliases")
    names = sorted(aliases.value) if aliases else [str(named.value)]
    layer = {
        **sources.variables.model,
        "path": named,
        "aliases": Given(names[1:], aliases.source if aliases else named.source),
    }
    return _Candidate(names[0], Origin(named.source), (startup, defaults, layer))


def _catalogued(sources: _Sources, server: ServerSettings, defaults: Layer) -> Iterator[_Candidate]:
    """Models of --models-dir and --models-preset, merged by id (llama.cpp server-models.cpp, load_models)."""
    found: dict[str, CatalogueEntry] = {}
    if server.models_dir is not None:
        found = {entry.id: entry for entry in scan_models_dir(server.models_dir)}
    preset = read_preset(server.models_preset) if server.models_preset is not None else None
    shared = laid_over(TABLE, "model", defaults, _shared(sources.variables.model))
    common = preset_layer(TABLE, "*", preset.common) if preset else {}
    for name, entry in found.items():
        place = str(server.models_dir)
        keys = preset.sections.get(name, []) if preset else []
        layers = (shared, common, {"path": Given(entry.path, place)}, preset_layer(TABLE, name, keys))
        yield _Candidate(name, Origin(place, entry.mmproj, scanned=True), layers)
    for name, keys in preset.sections.items() if preset else ():
        if name not in found:
            place = keys[0].place if keys else str(server.models_preset)
            yield _Candidate(name, Origin(place), (shared, common, preset_layer(TABLE, name, keys)))


def _shared(layer: Layer) -> Layer:
    """What a flag or variable may say of every model."""
    return {key: given for key, given in layer.items() if key not in ("path", "aliases")}


def _checked(sources: _Sources, candidate: _Candidate) -> ModelSettings:
    named = _shared(sources.flags.model)
    layers = (*candidate.layers, sources.variables.of_model(candidate.id), named)
    layer = laid_over(TABLE, "model", *layers)
    return checked(ModelSettings, f"models.{candidate.id}", layer, candidate.origin.place)


def _check_together(settings: Settings, candidates: Sequence[_Candidate], sources: _Sources) -> None:
    if not candidates:
        raise ConfigError(NO_MODEL)
    _check_unique(settings, candidates)
    named = sources.flags.model.get("path") or sources.variables.model.get("path")
    alias = sources.flags.model.get("aliases") or sources.variables.model.get("aliases")
    if alias is not None and named is None:
        raise ConfigError(f"{alias.source} names the model of -m; in the YAML set models.<id>.aliases")
    at_start = [model_id for model_id, model in settings.models.items() if model.load == "startup"]
    limit = settings.server.models_max
    if 0 < limit < len(at_start):
        raise ConfigError(
            f"server.models_max is {limit}, but {len(at_start)} models are loaded at start-up "
            f"({', '.join(at_start)}); raise it or set load: on_demand"
        )


def _check_unique(settings: Settings, candidates: Sequence[_Candidate]) -> None:
    owner: dict[str, str] = {}
    for candidate in candidates:
        if candidate.id in owner:
            raise ConfigError(f"{candidate.origin.place}: model '{candidate.id}' is configured twice; rename one")
        owner[candidate.id] = candidate.id
    for model_id, model in settings.models.items():
        for alias in model.aliases:
            if owner.setdefault(alias, model_id) != model_id:
                place = settings.origins[model_id].place
                raise ConfigError(
                    f"{place}: models.{model_id}.aliases: '{alias}' already names model '{owner[alias]}'; remove it"
                )
