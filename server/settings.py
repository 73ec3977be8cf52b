"""The settings: the values of flags, environment, YAML and defaults, through the one option table.

The table's rows are the fields of `ServerSettings` and `ModelSettings` (server/options/). pydantic-settings merges the
sources that `load_settings` reads, and validates the result. A flag or ``LLAMA_ARG_*`` variable of a model's option
applies to every model; ``-m`` serves one model instead of the YAML's. docs/configuration.md is generated from the
table.
"""

import os
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from server.errors import ConfigError
from server.hub.cache import cache_folder
from server.hub.hub import Hub, HubFetcher
from server.hub.names import SHORT
from server.options.flags import CommandLine, LlamaVariables
from server.options.model import WHERE, ModelDefaults, ModelSettings
from server.options.presets import FoundModels, problem_of
from server.options.server import ServerSettings
from server.options.sources import (
    Defaults,
    OptionSource,
    Origin,
    OwnVariables,
    VertexVariables,
    YamlFile,
    located,
    mistake,
)
from server.options.specs import model_spec, without_effect
from server.options.values import device_sets, tensor_override
from server.pool.saved.format import signing_key
from server.pool.spec import ModelSpec
from server.templates.template import ChatTemplate
from server.transport.endpoints import UNKNOWN, endpoint_of
from server.transport.keys import read_keys

DEFAULT_CONFIGS = (
    Path(__file__).resolve().parent.parent / "config" / "default.yaml",  # a checkout's
    Path("config") / "default.yaml",  # of the working directory
    Path(sysconfig.get_path("data")) / "share" / "llamapool" / "config" / "default.yaml",  # an installed package's
)
DEMO_CONFIGS = (DEFAULT_CONFIGS[0], DEFAULT_CONFIGS[-1])  # shipped with Llamapool
LEAST_SECRET_BYTES = 16
_HUB_KEYS = frozenset({"hf_token", "offline", "hf_file"})
NO_MODEL = (
    "no model is configured: give -m FILE, -hf OWNER/NAME, --models-dir FOLDER, --models-preset FILE, or --config FILE "
    "(LLAMAPOOL_CONFIG) with models"
)


class Settings(BaseSettings):
    """The merged and validated settings. The first three fields are what the YAML file may contain.

    ``models`` are complete: the defaults are merged into them. `load_settings` creates this; tests may create it from
    values.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", defer_build=True)

    server: Annotated[ServerSettings, Field(description="Options of the server.")] = ServerSettings()
    defaults: Annotated[ModelDefaults, Field(description="Options of every model.")] = ModelDefaults()
    models: Annotated[dict[str, ModelSettings], Field(description="The models by id, the name in requests.")] = {}
    origins: SkipJsonSchema[dict[str, Origin]] = {}  # the place that configures each model
    sources: SkipJsonSchema[dict[str, dict[str, str]]] = {}  # of each value, by `server` or `models.<id>`, and field
    skipped: SkipJsonSchema[tuple[str, ...]] = ()  # warnings, as of flags, variables and preset keys without effect
    hub: SkipJsonSchema[Hub] = Hub()
    serves_cache: SkipJsonSchema[bool] = True  # cached models are served too
    config_path: SkipJsonSchema[Path | None] = None  # the YAML file

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources that `load_settings` has read; values from code have no others.

        pydantic-settings' own sources would read the process (docs/adr/0005).
        """
        return (init_settings, *init_settings().pop("read", ()))

    @model_validator(mode="wrap")
    @classmethod
    def _name_sources(cls, merged: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate the merged values. Raises ConfigError with one line that names the source of a wrong one."""
        try:
            return validate(merged)
        except ValidationError as error:
            if "sources" not in merged:  # values from code
                raise
            raise ConfigError(mistake(error.errors(include_url=False)[0], merged)) from None

    def located(self, model_id: str, key: str) -> str:
        """Return the start of an error message about a model's option: its source, otherwise the model's place."""
        source = self.sources.get(f"models.{model_id}", {}).get(key, self.origins[model_id].place)
        return located(source, f"models.{model_id}.{key}")


def load_settings(
    argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None, config: Path | None = None
) -> Settings:
    """Return the settings of a command line, an environment (None = the process's) and a YAML file.

    Reads a folder of models and a preset. Other files are checked by `check_files`. Raises ConfigError with one line
    that names the source, the key and the remedy.
    """
    env = os.environ if env is None else env
    flags, own, llama = CommandLine(argv or ()), OwnVariables(env), LlamaVariables(env)
    named = config or flags.config_file or own.config_file
    path = Path(named) if named else _default_config(flags, own, llama)
    document = YamlFile(path, is_named=bool(named), is_demo=not named and path in DEMO_CONFIGS)
    vertex = VertexVariables(env, weaker=(flags, own, llama, document))
    server = _server_settings(vertex, flags, own, llama, document)
    hub = _hub_of(server, env)
    found = FoundModels(flags, llama, document, server, hub)
    own.name_models(found.origins)
    # Presets are stronger than LLAMA_ARG_..., as in llama-server.
    sources = (vertex, flags, own, found, llama, document, Defaults())
    values: dict[str, Any] = {
        "read": sources,
        "server": server,
        "hub": hub,
        "config_path": path,
        "origins": found.origins,
        "serves_cache": found.serves_cache,
        "skipped": tuple(text for source in (flags, llama, found, vertex) for text in source.skipped),
    }
    settings = Settings(**values)
    if not settings.models and (named or server.models_cache is False):
        raise ConfigError(NO_MODEL)
    _check_together(settings)
    return settings


def _server_settings(*sources: OptionSource) -> ServerSettings:
    """Return the options of the server, from the strongest source that has each. Raises ConfigError.

    They are needed before the models: they name the folder, the preset and the hub.
    """
    given = {key: value for source in reversed(sources) for key, value in source.sections["server"].items()}
    values = {key: each.value for key, each in given.items()}
    try:
        return ServerSettings(**values)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        details["loc"] = ("server", *details["loc"])
        named = {"server": {key: each.source for key, each in given.items()}}
        raise ConfigError(mistake(details, {"server": values, "sources": named})) from None


def _default_config(*sources: OptionSource) -> Path | None:
    """Return the YAML file that is read unless one is named; None if a source says where models are."""
    server, model = ({key for source in sources for key in source.sections[name]} for name in ("server", "model"))
    if model.intersection(WHERE) or server.intersection(("models_dir", "models_preset")):
        return None
    return next((path for path in DEFAULT_CONFIGS if path.is_file()), None)


def open_hub(argv: Sequence[str]) -> tuple[Hub, str]:
    """Return the hub that flags and variables name, and the value of --hf-file. Raises ConfigError."""
    flags = CommandLine(argv)
    given = {**flags.sections["server"], **flags.sections["model"]}
    unknown = [given[key].source for key in given if key not in _HUB_KEYS]
    if unknown or flags.config_file:
        raise ConfigError(
            f"{(unknown or [flags.config_file])[0]} does not apply to this command; use --hf-token, --hf-file or "
            "--offline"
        )
    server = _server_settings(flags, OwnVariables(os.environ), LlamaVariables(os.environ))
    file = given.get("hf_file")
    return _hub_of(server, os.environ), str(file.value) if file else ""


def _hub_of(server: ServerSettings, env: Mapping[str, str]) -> Hub:
    """Return the hub of models and its cache."""
    no_network = env.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true")  # as huggingface_hub reads it
    return Hub(
        folder=cache_folder(env),
        endpoint=env.get("MODEL_ENDPOINT") or env.get("HF_ENDPOINT", ""),
        token=server.hf_token,
        offline=no_network or server.offline,
        no_network=no_network,
        registry=server.docker_registry,
    )


def model_specs(settings: Settings) -> list[ModelSpec]:
    """Return the specification of each model, for the pool. Raises ConfigError if a file cannot be read."""
    fetcher = HubFetcher(settings.hub)
    specs = []
    for model_id, model in settings.models.items():
        spec = model_spec(model_id, model, settings.origins[model_id])
        if model.cache_disk_shared or isinstance(model.cache_disk_path, str):
            secret = slot_secret(settings.server)
            spec = replace(spec, engine=replace(spec.engine, cache_disk_secret=secret))
        specs.append(fetcher.found(spec))
    # If they are free, aliases are: a repository without its quantization, for its default cached model, and smollm2.
    taken = {name for spec in specs for name in (spec.id, *spec.aliases)}
    short = {name: each for each, name in SHORT.items()}
    return [
        replace(spec, aliases=(*spec.aliases, *(each for each in names if each and each not in taken)))
        for spec in specs
        for names in [(settings.origins[spec.id].repository, short.get(spec.id))]
    ]


def check_files(settings: Settings, *, strict: bool = False) -> list[str]:
    """Check every file that the settings name; return warnings.

    Raises ConfigError for the first file that cannot be used. The problem of a model in a scanned folder is only a
    warning unless `strict`, which also compares LoRA adapters with their models.
    """
    settings.server.all_api_keys()
    if settings.server.keys_file is not None:
        read_keys(settings.server.keys_file)
    for key in ("slot_save_path", "path", "media_path", "lora_dir"):
        folder = getattr(settings.server, key)
        if isinstance(folder, Path) and not os.path.isdir(folder):  # False also where it may not be looked for
            raise ConfigError(f"server.{key}: {folder} is not a folder; create it or correct the path")
    specs = model_specs(settings)
    for spec in specs:
        _check_template(spec)
    warnings = list(settings.skipped)
    if not specs:
        warnings.append("no model yet; download one with llamapool pull OWNER/NAME or POST /models")
    for spec, (model_id, model) in zip(specs, settings.models.items(), strict=True):
        origin = settings.origins[model_id]
        files = [("lora", file.path) for file in model.lora]
        files += [("control_vectors", file.path) for file in model.control_vectors]
        own = {} if spec.missing else {"path": spec.path, "mmproj": spec.mmproj}
        files += [(key, path) for key, path in {"draft_model": model.draft_model, **own}.items() if path is not None]
        for key, path in files:
            if problem := problem_of(path):
                message = f"{settings.located(model_id, key)}: {problem}"
                if strict or not (origin.scanned and key in own):
                    raise ConfigError(message)
                warnings.append(message)
        _check_devices(settings, model_id)
        if strict and model.lora and not spec.missing:
            from server.llama.weights.adapters import adapter_problem  # with the native library

            if problem := adapter_problem(spec):
                raise ConfigError(f"{settings.located(model_id, 'lora')}: {problem}")
        warnings += [f"{origin.place}: models.{model_id}: {text}" for text in without_effect(model)]
        if spec.missing and settings.server.offline:
            warnings.append(
                f"{origin.place}: '{model_id}' is not in the cache {settings.hub.folder}; "
                "--offline forbids its download"
            )
    return warnings


def slot_secret(server: ServerSettings) -> bytes:
    """Return the key that signs saved slots and shared KV states; empty without slot_save_secret_file.

    Raises ConfigError if the file cannot be read or is too short.
    """
    if server.slot_save_secret_file is None:
        return b""
    try:
        secret = server.slot_save_secret_file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"server.slot_save_secret_file: {error.strerror}; check the path") from None
    if len(secret) < LEAST_SECRET_BYTES:
        raise ConfigError(
            f"server.slot_save_secret_file: the secret is shorter than {LEAST_SECRET_BYTES} bytes; use a longer one"
        )
    return signing_key(secret)


def _check_devices(settings: Settings, model_id: str) -> None:
    """Check names of devices against the native library, which is imported only if a name is given."""
    model = settings.models[model_id]
    sets = {"device": model.device, "draft_device": model.draft_device, "mmproj_device": model.mmproj_device}
    devices = {key: [name for some in device_sets(texts) for name in some or ()] for key, texts in sets.items()}
    overrides = {"override_tensor": model.override_tensor, "draft_override_tensor": model.draft_override_tensor}
    buffers = {key: [tensor_override(text).buffer_type for text in texts] for key, texts in overrides.items()}
    if not any([*devices.values(), *buffers.values()]):
        return
    from server.llama.devices import check_buffer_types, find_devices

    for check, named in ((find_devices, devices), (check_buffer_types, buffers)):
        for key, names in named.items():
            try:
                check(names)
            except ValueError as error:
                raise ConfigError(f"{settings.located(model_id, key)}: {error}") from None


def _check_template(spec: ModelSpec) -> None:
    if spec.chat.template is None or not spec.chat.jinja:
        return
    try:
        ChatTemplate(spec.chat.template, bos_token="", eos_token="")
    except ConfigError as error:
        raise ConfigError(f"{spec.source}: models.{spec.id}.chat_template: {error.message}; correct it") from None


def _check_together(settings: Settings) -> None:
    owner = {model_id: model_id for model_id in settings.models}
    for model_id, model in settings.models.items():
        for name in model.aliases:
            if owner.setdefault(name, model_id) != model_id:
                place = settings.origins[model_id].place
                raise ConfigError(
                    f"{place}: models.{model_id}.aliases: '{name}' already names model '{owner[name]}'; remove it"
                )
    for (method, path), own in settings.server.route_aliases.items():
        if endpoint_of(method, path) is not UNKNOWN:
            field = "predict_route" if own == "/predict" else "health_route"
            start = located(settings.sources["server"][field], f"server.{field}")
            raise ConfigError(f"{start}: {path} is another endpoint; choose another path")
    at_start = [model_id for model_id, model in settings.models.items() if model.load == "startup"]
    limit = settings.server.models_max
    if 0 < limit < len(at_start):
        raise ConfigError(
            f"server.models_max is {limit}, but {len(at_start)} models are loaded at start-up "
            f"({', '.join(at_start)}); raise it or set load: on_demand"
        )
