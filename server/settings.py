"""The settings: what flags, environment, YAML and defaults together say, through the one option table.

The table's rows are the fields of `ServerSettings` and `ModelSettings` (server/options/). Strongest first: flags,
environment, YAML, defaults; pydantic-settings lays these sources over each other (server/options/read/sources.py) and
checks what comes out. A flag or ``LLAMA_ARG_*`` variable of a model's option holds for every model; ``-m`` serves one
model in place of the YAML's. docs/configuration.md is generated from the table.
"""

import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic.json_schema import SkipJsonSchema
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from server.errors import ConfigError
from server.hub.cache import cache_folder
from server.hub.fetcher import HubFetcher
from server.hub.hub import Hub
from server.options.effects import without_effect
from server.options.read.environment import Variables, check_model_names, read_environment
from server.options.read.flags import Flags, read_flags
from server.options.read.layers import mistake
from server.options.read.registry import Inputs, ModelRegistry, Origin, find_models, named_source
from server.options.read.sources import LayerSource, stacked
from server.options.read.yaml_file import YamlFile, read_yaml
from server.options.specs import model_spec
from server.options.table.devices import device_sets
from server.options.table.model import WHERE, ModelDefaults, ModelSettings
from server.options.table.option import SettingsModel, Table
from server.options.table.overrides import tensor_override
from server.options.table.server import ServerSettings
from server.pool.catalogue import problem_of
from server.pool.saved.slot_file import signing_key
from server.pool.spec import ModelSpec
from server.templates.template import ChatTemplate
from server.transport.endpoints import UNKNOWN, endpoint_of
from server.transport.keys import read_keys

DEFAULT_CONFIGS = (
    Path(__file__).resolve().parent.parent / "config" / "default.yaml",  # a checkout's
    Path("config") / "default.yaml",  # of the working directory
    Path(sysconfig.get_path("data")) / "share" / "llamapool" / "config" / "default.yaml",  # an installed package's
)
DEMO_CONFIGS = (DEFAULT_CONFIGS[0], DEFAULT_CONFIGS[-1])  # of ours, not of a folder that somebody is in
TABLE = Table(ServerSettings, ModelSettings)
LEAST_SECRET_BYTES = 16
_HUB_KEYS = frozenset({"hf_token", "offline", "hf_file"})
MODEL_ONLY = frozenset(ModelSettings.model_fields) - frozenset(ModelDefaults.model_fields)
NO_MODEL = (
    "no model is configured: give -m FILE, -hf OWNER/NAME, --models-dir FOLDER, --models-preset FILE, or --config FILE "
    "(LLAMAPOOL_CONFIG) with models"
)


class Settings(BaseSettings):
    """What all sources together say; without ``origins`` and ``skipped`` it is also what the YAML file may hold.

    ``models`` are complete: the defaults are merged into them. Made by `load_settings`, or from values; the
    process's environment counts in neither, since all sources are handed in.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    server: ServerSettings = ServerSettings()
    """The server as a whole."""
    defaults: ModelDefaults = ModelDefaults()
    """Merged under every model."""
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    """The models, by the id that requests name."""
    origins: Annotated[dict[str, Origin], SkipJsonSchema()] = Field(default_factory=dict)
    """Where each model was configured."""
    skipped: Annotated[tuple[str, ...], SkipJsonSchema()] = ()
    """What flags, variables and presets say without effect, a line each."""
    cache: Annotated[Path, SkipJsonSchema()] = Path()
    """The hub's cache folder, by the environment."""
    endpoint: Annotated[str, SkipJsonSchema()] = ""
    """The hub's address, by the environment; empty = Hugging Face's."""
    serves_cache: Annotated[bool, SkipJsonSchema()] = True
    """Whether the models of the cache are among those that are served."""
    config_path: Annotated[Path | None, SkipJsonSchema()] = None
    """The YAML file."""
    no_network: Annotated[bool, SkipJsonSchema()] = False
    """HF_HUB_OFFLINE: no hub is asked, whoever wants it."""

    def __init__(self, *, sources: Sequence[LayerSource] = (), **values: Any) -> None:
        super().__init__(**values, sources=sources)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The values handed in, then the sources handed in; none of those that read the process by themselves."""
        del env_settings, dotenv_settings, file_secret_settings
        assert isinstance(init_settings, InitSettingsSource)
        sources = init_settings.init_kwargs.pop("sources")
        return (init_settings, *sources)


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
    document = read_yaml(TABLE, path, MODEL_ONLY) if path else YamlFile()
    named = bool(config or flags.config or variables.config)
    inputs = Inputs(TABLE, flags, variables, document, named, is_demo=not named and path in DEMO_CONFIGS)
    place = _hub_place(os.environ if env is None else env)
    without_models = _laid_over(inputs, ModelRegistry(), place)  # says where the models are
    roster = find_models(inputs, without_models.server, hub_of(without_models))
    check_model_names(variables, roster.origins)
    if not roster.origins and (named or without_models.server.models_cache is False):
        raise ConfigError(NO_MODEL)
    settings = _laid_over(inputs, roster, {**place, "serves_cache": roster.serves_cache, "config_path": path})
    _check_together(settings, inputs)
    return settings


def hub_settings(argv: Sequence[str]) -> tuple[Settings, str]:
    """Settings that say only where the hub and its cache are, and the file of --hf-file. Raises ConfigError."""
    flags = read_flags(TABLE, argv)
    strange = [given.source for key, given in {**flags.server, **flags.model}.items() if key not in _HUB_KEYS]
    if strange or flags.config:
        raise ConfigError(
            f"{(strange or [flags.config])[0]} is of no use here; known: --hf-token, --hf-file, --offline"
        )
    variables = read_environment(TABLE, os.environ)
    file = flags.model.get("hf_file")
    inputs = Inputs(TABLE, flags, variables, YamlFile())
    settings = _laid_over(inputs, ModelRegistry(), _hub_place(os.environ))
    return settings, str(file.value) if file else ""


def hub_of(settings: Settings, *, asked: bool = False) -> Hub:
    """The hub that models come from, and its cache; for downloads that a client has `asked` for --offline doesn't
    count, as in llama-server."""
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
    """What the pool gets. Raises ConfigError when a template file cannot be read."""
    fetcher = HubFetcher(hub_of(settings))
    specs = []
    for model_id, model in settings.models.items():
        spec = model_spec(TABLE, model_id, model, settings.origins[model_id])
        if model.cache_disk_shared or isinstance(model.cache_disk_path, str):
            secret = slot_secret(settings.server)
            spec = replace(spec, engine=replace(spec.engine, cache_disk_secret=secret))
        specs.append(fetcher.found(spec))
    return _also_named(specs, settings.origins)


def _also_named(specs: list[ModelSpec], origins: Mapping[str, Origin]) -> list[ModelSpec]:
    """A model of the cache has the name without a quantization, too, as which it may have been asked for, unless
    another model is called so."""
    taken = {name for spec in specs for name in (spec.id, *spec.aliases)}
    return [
        replace(spec, aliases=(*spec.aliases, short))
        if (short := origins[spec.id].repository) and short not in taken
        else spec
        for spec in specs
    ]


def _hub_place(env: Mapping[str, str]) -> dict[str, Any]:
    no_network = env.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true")  # as huggingface_hub reads it
    endpoint = env.get("MODEL_ENDPOINT") or env.get("HF_ENDPOINT", "")
    return {"cache": cache_folder(env), "endpoint": endpoint, "no_network": no_network}


def check_files(settings: Settings, *, strict: bool = False) -> list[str]:
    """Look at every file that the settings name.

    Raises ConfigError for the first that cannot be used. A model found in a scanned folder does not stop the
    others unless `strict`: its problem is returned, and what has no effect.
    """
    settings.server.all_api_keys()
    if settings.server.keys_file is not None:
        read_keys(settings.server.keys_file)
    _check_folders(settings.server)
    specs = model_specs(settings)
    for spec in specs:
        _check_template(spec)
    warnings = list(settings.skipped)
    if not specs:
        warnings.append("no model yet: llamapool pull OWNER/NAME, or POST /models, brings one")
    for spec, (model_id, model) in zip(specs, settings.models.items(), strict=True):
        origin = settings.origins[model_id]
        _check_adapters(model_id, model, origin)
        _check_devices(model_id, model, origin)
        warnings += [f"{origin.place}: models.{model_id}: {text}" for text in without_effect(model)]
        if spec.missing:
            if settings.server.offline:
                warnings.append(f"{origin.place}: '{model_id}' is not in {settings.cache}, and --offline is set")
            continue
        problems = {"path": problem_of(spec.path)}
        if spec.mmproj is not None:
            problems["mmproj"] = problem_of(spec.mmproj)
        for key, problem in problems.items():
            if not problem:
                continue
            message = f"{origin.source_of(key)}: models.{model_id}.{key} {problem}"
            if strict or not origin.scanned:
                raise ConfigError(message)
            warnings.append(message)
    return warnings


def slot_secret(server: ServerSettings) -> bytes:
    """What signs saved slots, and prompt states where others write to their folder; "" = nothing does. Raises
    ConfigError when it can't be read."""
    if server.slot_save_secret_file is None:
        return b""
    try:
        secret = server.slot_save_secret_file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"server.slot_save_secret_file: {error.strerror}; check the path") from None
    if len(secret) < LEAST_SECRET_BYTES:
        raise ConfigError(f"server.slot_save_secret_file: give at least {LEAST_SECRET_BYTES} bytes")
    return signing_key(secret)


def _check_folders(server: ServerSettings) -> None:
    folders = {"slot_save_path": server.slot_save_path, "path": server.path, "media_path": server.media_path}
    for key, folder in folders.items():
        if isinstance(folder, Path) and not folder.is_dir():
            raise ConfigError(f"server.{key}: {folder} is not a folder; create it or correct the path")


def _check_adapters(model_id: str, model: ModelSettings, origin: Origin) -> None:
    for key, files in (("lora", model.lora), ("control_vectors", model.control_vectors)):
        for file in files:
            problem = problem_of(file.path)
            if problem:
                raise ConfigError(f"{origin.source_of(key)}: models.{model_id}.{key}: {problem}")
    if model.draft_model is not None and (problem := problem_of(model.draft_model)):
        raise ConfigError(f"{origin.source_of('draft_model')}: models.{model_id}.draft_model: {problem}")
    for key in ("lookup_cache_static", "lookup_cache_dynamic"):
        if (path := getattr(model, key)) is not None and not path.is_file():
            raise ConfigError(f"{origin.source_of(key)}: models.{model_id}.{key}: no such file: {path}")


def _check_devices(model_id: str, model: ModelSettings, origin: Origin) -> None:
    """The native library knows which exist here; it is only asked where somebody names one."""
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
                raise ConfigError(f"{origin.source_of(key)}: models.{model_id}.{key}: {error}") from None


def _check_template(spec: ModelSpec) -> None:
    if spec.chat.template is None or not spec.chat.jinja:
        return
    try:
        ChatTemplate(spec.chat.template, bos_token="", eos_token="")
    except ConfigError as error:
        raise ConfigError(f"{spec.source}: models.{spec.id}.chat_template: {error.message}; correct it") from None


def _config_path(flags: Flags, variables: Variables) -> Path | None:
    named = flags.config or variables.config
    if named:
        return Path(named)
    given = {*flags.model, *variables.model, *flags.server, *variables.server}
    if given & {*WHERE, "models_dir", "models_preset"}:
        return None
    return next((path for path in DEFAULT_CONFIGS if path.is_file()), None)


def _laid_over(inputs: Inputs, roster: ModelRegistry, place: Mapping[str, Any]) -> Settings:
    sources = stacked(Settings, inputs, roster)
    origins = {}
    for model_id, origin in roster.origins.items():
        given = sources[-1].merged(("models", model_id))
        origins[model_id] = replace(origin, sources={key: each.source for key, each in given.items()})
    try:
        skipped = (*inputs.flags.skipped, *inputs.variables.skipped, *roster.skipped, *_replaced_port(inputs))
        return Settings(sources=sources, origins=origins, skipped=skipped, **place)
    except ValidationError as error:
        raise ConfigError(_mistake(error, sources[-1], inputs, roster)) from None


def _replaced_port(inputs: Inputs) -> Iterator[str]:
    """Yield a warning where Vertex AI's port replaces another that was given."""
    stronger = inputs.variables.vertex.get("port")
    layers = (inputs.flags.server, inputs.variables.server, inputs.document.server)
    given = next((layer["port"] for layer in layers if "port" in layer), None)
    if stronger is not None and given is not None and str(given.value) != stronger.value:
        yield f"{given.source}: port {given.value} has no effect, since AIP_HTTP_PORT sets port {stronger.value}"


def _mistake(error: ValidationError, weakest: LayerSource, inputs: Inputs, roster: ModelRegistry) -> str:
    details = error.errors(include_url=False)[0]
    depth = 2 if details["loc"][0] == "models" else 1
    section = tuple(str(part) for part in details["loc"][:depth])
    details["loc"] = details["loc"][depth:]
    owners: dict[str, type[SettingsModel]] = {
        "server": ServerSettings,
        "defaults": ModelDefaults,
        "models": ModelSettings,
    }
    fallback = roster.origins[section[1]].place if depth == 2 else inputs.document.name
    return mistake(details, ".".join(section), weakest.merged(section), fallback, owners[section[0]])


def _check_together(settings: Settings, inputs: Inputs) -> None:
    _check_unique(settings)
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


def _check_unique(settings: Settings) -> None:
    owner = {model_id: model_id for model_id in settings.models}
    for model_id, model in settings.models.items():
        for alias in model.aliases:
            if owner.setdefault(alias, model_id) != model_id:
                place = settings.origins[model_id].place
                raise ConfigError(
                    f"{place}: models.{model_id}.aliases: '{alias}' already names model '{owner[alias]}'; remove it"
                )
