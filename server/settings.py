"""The settings: the values of flags, environment, YAML and defaults, through the one option table.

The table's rows are the fields of `ServerSettings` and `ModelSettings` (server/options/). Strongest first: flags,
environment, YAML, defaults. server/options/sources.py reads and merges them; pydantic-settings validates the result.
A flag or ``LLAMA_ARG_*`` variable of a model's option applies to every model; ``-m`` serves one model instead of the
YAML's. docs/configuration.md is generated from the table.
"""

import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic.json_schema import SkipJsonSchema
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from server.errors import ConfigError
from server.hub.cache import cache_folder
from server.hub.hub import Hub, HubFetcher
from server.hub.names import SHORT
from server.options.flags import read_flags
from server.options.model import WHERE, ModelDefaults, ModelSettings
from server.options.option import Source
from server.options.presets import find_models, named_source, problem_of
from server.options.server import ServerSettings
from server.options.sources import (
    Inputs,
    ModelRegistry,
    Origin,
    check_model_names,
    located,
    merged,
    mistake,
    read_environment,
    read_yaml,
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
    skipped: SkipJsonSchema[tuple[str, ...]] = ()  # a warning per flag, variable or preset key without effect
    cache: SkipJsonSchema[Path] = Path()  # the hub's cache folder
    endpoint: SkipJsonSchema[str] = ""  # the hub's URL; "" = Hugging Face
    serves_cache: SkipJsonSchema[bool] = True  # cached models are served too
    config_path: SkipJsonSchema[Path | None] = None  # the YAML file
    no_network: SkipJsonSchema[bool] = False  # HF_HUB_OFFLINE forbids all requests to a hub

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the values alone: pydantic-settings' other sources would read the process (docs/adr/0005)."""
        return (init_settings,)


def load_settings(
    argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None, config: Path | None = None
) -> Settings:
    """Return the settings of a command line, an environment (None = the process's) and a YAML file.

    Reads a folder of models and a preset. Other files are checked by `check_files`. Raises ConfigError with one line
    that names the source, the key and the remedy.
    """
    flags = read_flags(argv or ())
    variables = read_environment(os.environ if env is None else env)
    path = config or _config_path(flags, variables)
    document = read_yaml(path) if path else Source("no configuration file")
    named = bool(config or flags.config or variables.config)
    inputs = Inputs(flags, variables, document, named, is_demo=not named and path in DEMO_CONFIGS)
    place = _hub_place(os.environ if env is None else env)
    without_models = _validated(inputs, ModelRegistry(), place)  # they name the folder and the preset of models
    registry = find_models(inputs, without_models.server, hub_of(without_models))
    check_model_names(variables, registry.models)
    if not registry.models and (named or without_models.server.models_cache is False):
        raise ConfigError(NO_MODEL)
    settings = _validated(inputs, registry, {**place, "serves_cache": registry.serves_cache, "config_path": path})
    _check_together(settings, inputs)
    return settings


def hub_settings(argv: Sequence[str]) -> tuple[Settings, str]:
    """Return settings with only the hub and its cache, and the value of --hf-file. Raises ConfigError."""
    flags = read_flags(argv)
    unknown = [given.source for key, given in {**flags.server, **flags.model}.items() if key not in _HUB_KEYS]
    if unknown or flags.config:
        raise ConfigError(
            f"{(unknown or [flags.config])[0]} does not apply to this command; use --hf-token, --hf-file or --offline"
        )
    variables = read_environment(os.environ)
    file = flags.model.get("hf_file")
    inputs = Inputs(flags, variables, Source("no configuration file"))
    settings = _validated(inputs, ModelRegistry(), _hub_place(os.environ))
    return settings, str(file.value) if file else ""


def hub_of(settings: Settings, *, asked: bool = False) -> Hub:
    """Return the hub of models and its cache.

    `asked`: for downloads that a client requested, which --offline does not forbid, as in llama-server.
    """
    server = settings.server
    offline = settings.no_network or (server.offline and not asked)
    return Hub(
        settings.cache,
        endpoint=settings.endpoint,
        token=server.hf_token,
        offline=offline,
        registry=server.docker_registry,
    )


def model_specs(settings: Settings) -> list[ModelSpec]:
    """Return the specification of each model, for the pool. Raises ConfigError if a file cannot be read."""
    fetcher = HubFetcher(hub_of(settings))
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


def _hub_place(env: Mapping[str, str]) -> dict[str, Any]:
    no_network = env.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true")  # as huggingface_hub reads it
    endpoint = env.get("MODEL_ENDPOINT") or env.get("HF_ENDPOINT", "")
    return {"cache": cache_folder(env), "endpoint": endpoint, "no_network": no_network}


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
        if isinstance(folder, Path) and not folder.is_dir():
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
                message = f"{located(origin.source_of(key), f'models.{model_id}.{key}')}: {problem}"
                if strict or not (origin.scanned and key in own):
                    raise ConfigError(message)
                warnings.append(message)
        _check_devices(model_id, model, origin)
        if strict and model.lora and not spec.missing:
            from server.llama.weights.adapters import adapter_problem  # with the native library

            if problem := adapter_problem(spec):
                raise ConfigError(f"{located(origin.source_of('lora'), f'models.{model_id}.lora')}: {problem}")
        warnings += [f"{origin.place}: models.{model_id}: {text}" for text in without_effect(model)]
        if spec.missing and settings.server.offline:
            warnings.append(
                f"{origin.place}: '{model_id}' is not in the cache {settings.cache}; --offline forbids its download"
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


def _check_devices(model_id: str, model: ModelSettings, origin: Origin) -> None:
    """Check names of devices against the native library, which is imported only if a name is given."""
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
                raise ConfigError(f"{located(origin.source_of(key), f'models.{model_id}.{key}')}: {error}") from None


def _check_template(spec: ModelSpec) -> None:
    if spec.chat.template is None or not spec.chat.jinja:
        return
    try:
        ChatTemplate(spec.chat.template, bos_token="", eos_token="")
    except ConfigError as error:
        raise ConfigError(f"{spec.source}: models.{spec.id}.chat_template: {error.message}; correct it") from None


def _config_path(flags: Source, variables: Source) -> Path | None:
    named = flags.config or variables.config
    if named:
        return Path(named)
    given = {*flags.model, *variables.model, *flags.server, *variables.server}
    if given & {*WHERE, "models_dir", "models_preset"}:
        return None
    return next((path for path in DEFAULT_CONFIGS if path.is_file()), None)


def _validated(inputs: Inputs, registry: ModelRegistry, place: Mapping[str, Any]) -> Settings:
    """Merge all sources and validate the result. Raises ConfigError."""
    layers = merged(inputs, registry)
    values = {section: {key: given.value for key, given in layer.items()} for section, layer in layers.items()}
    nested: dict[str, Any] = {"server": values["server"], "defaults": values["defaults"], "models": {}}
    origins = {}
    for model_id, found in registry.models.items():
        section = f"models.{model_id}"
        nested["models"][model_id] = values[section]
        origins[model_id] = replace(found.origin, sources={key: each.source for key, each in layers[section].items()})
    skipped = (*inputs.flags.skipped, *inputs.variables.skipped, *registry.skipped, *_replaced_port(inputs))
    try:
        return Settings(**nested, origins=origins, skipped=skipped, **place)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        model = registry.models.get(str(details["loc"][1])) if details["loc"][0] == "models" else None
        raise ConfigError(mistake(details, layers, model.origin.place if model else inputs.document.name)) from None


def _replaced_port(inputs: Inputs) -> Iterator[str]:
    """Yield a warning where Vertex AI's port replaces another that was given."""
    stronger = inputs.variables.vertex.get("port")
    layers = (inputs.flags.server, inputs.variables.server, inputs.document.server)
    given = next((layer["port"] for layer in layers if "port" in layer), None)
    if stronger is not None and given is not None and str(given.value) != stronger.value:
        yield f"{given.source}: port {given.value} has no effect, since AIP_HTTP_PORT sets port {stronger.value}"


def _check_together(settings: Settings, inputs: Inputs) -> None:
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
            given = inputs.variables.vertex.get(field)
            raise ConfigError(
                f"{given.source if given else f'server.{field}'}: {path} is another endpoint; choose another path"
            )
    alias = inputs.flags.model.get("aliases") or inputs.variables.model.get("aliases")
    if alias is not None and not named_source(inputs):
        raise ConfigError(f"{alias.source} names the model of -m or -hf; in the YAML set models.<id>.aliases")
    at_start = [model_id for model_id, model in settings.models.items() if model.load == "startup"]
    limit = settings.server.models_max
    if 0 < limit < len(at_start):
        raise ConfigError(
            f"server.models_max is {limit}, but {len(at_start)} models are loaded at start-up "
            f"({', '.join(at_start)}); raise it or set load: on_demand"
        )
