"""Reads the sources of the settings into layers and merges them; every value keeps its source.

Sources, strongest first: command line (`server.options.flags`), environment, YAML, defaults. `merged` has the exact
order, and docs/adr/0005-settings-sources.md the reasons. Environment:

- ``LLAMA_ARG_*`` and ``LLAMA_API_KEY`` as in llama-server (llama.cpp common/arg.cpp); ``LLAMA_ARG_NO_X`` with any value
  switches X off. They apply to every model.
- ``LLAMAPOOL_CONFIG`` names the YAML file.
- ``LLAMAPOOL_SERVER__<FIELD>``, ``LLAMAPOOL_DEFAULTS__<FIELD>`` and ``LLAMAPOOL_MODELS__<ID>__<FIELD>`` set one field.
  In ``<ID>`` every character of the model's id that is not a letter or digit is ``_``; case is ignored.
- ``AIP_*`` as Vertex AI sets them.

An empty variable counts as unset. An unknown variable with one of these prefixes is an error, except the variables that
the kubelet sets for a Service.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic_core import ErrorDetails

from server.errors import ConfigError, without_credentials
from server.options.flags import FOREIGN, unsupported
from server.options.model import WHERE
from server.options.option import Layer, Section, Source, SourcedValue
from server.options.table import TABLE, merge_layers, nearest
from server.options.values import FALSE, is_address, read_text, without_secrets

CONFIG_VARIABLE = "LLAMAPOOL_CONFIG"
_OWN = "LLAMAPOOL_"
_LLAMA = "LLAMA_ARG_"
_NEGATED = "LLAMA_ARG_NO_"
_IP = r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:.]*)"
_URL = rf"(?:tcp|udp|sctp)://(?:{_IP}|\[{_IP}\]):\d+"
_SERVICE_LINK = (  # NAME=value; kubernetes/pkg/kubelet/envvars/envvars.go
    rf"""(?x)[A-Z0-9_]*[A-Z0-9]_(?:
        SERVICE_HOST={_IP}
      | SERVICE_PORT(?:_[A-Z0-9_]+)?=\d+
      | PORT(?:_\d+_(?:TCP|UDP|SCTP))?={_URL}
      | PORT_(?P<port>\d+)_(?:TCP|UDP|SCTP)_(?:PROTO=(?:tcp|udp|sctp)|PORT=(?P=port)|ADDR={_IP})
    )"""
)
_VERTEX_DEFAULTS = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HTTP_PORT": "8080"}
_VERTEX_FIELDS = {"AIP_PREDICT_ROUTE": "predict_route", "AIP_HEALTH_ROUTE": "health_route", "AIP_HTTP_PORT": "port"}
_YAML_SECTIONS = ("server", "defaults", "models")


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was read, before validation."""

    flags: Source
    variables: Source
    document: Source
    config_named: bool = False  # the user named the document; otherwise it is a default one
    is_demo: bool = False  # the document is the one that Llamapool ships


@dataclass(frozen=True, slots=True)
class Origin:
    """The place that configures a model (``file:line``, a flag, a folder), and the sources of its options."""

    place: str
    mmproj: Path | None = None
    scanned: bool = False
    kind: Literal["preset", "models_dir", "cache"] = "preset"  # llama-server's names
    hidden: bool = False  # not listed, because a preset uses the same file
    repository: str = ""  # of a cached model that is the repository's default
    sources: Mapping[str, str] = field(default_factory=dict)  # by field name

    def source_of(self, key: str) -> str:
        """Return the source of an option; without one, the place that configures the model."""
        return self.sources.get(key, self.place)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A configured model: its origin, and the values that only one kind of origin gives."""

    origin: Origin
    named: Layer = field(default_factory=dict)  # the model of -m
    catalogued: Layer = field(default_factory=dict)  # from --models-dir and --models-preset
    document: Layer = field(default_factory=dict)  # from the YAML file


@dataclass(frozen=True, slots=True)
class ModelRegistry:
    """The configured models in order, by id."""

    models: Mapping[str, FoundModel] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()  # a warning per key of a preset without effect
    serves_cache: bool = True  # models of the hub's cache are served too


# ---- merging


def merged(inputs: Inputs, registry: ModelRegistry) -> dict[str, Layer]:
    """Merge the sources: of each option the strongest value, unless a stronger source replaces the option.

    Return the values of ``server``, of ``defaults``, and of each model of `registry`, ``models.<id>``, in order.
    """
    flags, variables, document = inputs.flags, inputs.variables, inputs.document
    found: dict[str, Layer] = {
        "server": merge_layers("server", variables.vertex, flags.server, variables.server, document.server),
        "defaults": merge_layers("model", variables.defaults, document.defaults),
    }
    for model_id, model in registry.models.items():
        at_start = {"load": SourcedValue("startup", model.origin.place)} if model.named else {}
        found[f"models.{model_id}"] = merge_layers(
            "model",
            _shared(flags.model),
            model.named,
            variables.models.get(variable_part(model_id), {}),
            model.catalogued,  # a preset is stronger than LLAMA_ARG_..., as in llama-server
            _shared(variables.model),
            model.document,
            found["defaults"],
            at_start,
        )
    return found


def _shared(layer: Layer) -> Layer:
    """Return the options of a flag or variable that apply to every model."""
    return {key: value for key, value in layer.items() if key not in (*WHERE, "aliases")}


def mistake(details: ErrorDetails, layers: Mapping[str, Layer], fallback: str) -> str:
    """Return the error message for a value that pydantic rejected: its source, the key, the problem.

    ``details["loc"]`` is a path in the settings. ``fallback`` is the source of a section that has no value.
    """
    first, *rest = map(str, details["loc"])
    where = f"models.{rest.pop(0)}" if first == "models" else first
    layer = layers[where]
    message = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not rest:  # a check of several fields
        named = [value.source for key, value in layer.items() if re.search(rf"\b{key}\b", message)]
        return f"{', '.join(dict.fromkeys(named)) or fallback}: {where}: {message}"
    key = rest[0]
    if details["type"] == "too_short":
        message = "should have at least 1 entry"
    elif details["type"] == "path_type":  # pydantic also names the class
        message = "is not a valid path"
    given, entry = layer[key], TABLE.entries["server" if where == "server" else "model", key]
    if details["type"] == "extra_forbidden":
        return f"{given.source}: {where}.{key} belongs to one model; set models.<id>.{key}"
    value = given.value[0] if isinstance(given.value, list) and len(given.value) == 1 else given.value
    value = str(value) if isinstance(value, Path) else value
    if isinstance(value, str):  # a URL without its scheme may still contain a password
        value = without_credentials(value) if entry.metavar == "URL" else without_secrets(value)
    shown = "" if entry.secret else f" {value!r}"
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{located(given.source, f'{where}.{key}')}: invalid value{shown}: {message[0].lower()}{message[1:]}"


def located(source: str, key: str) -> str:
    """Return the start of an error message: a flag or variable alone, or a file's line with the key."""
    return source if source.startswith("-") or re.fullmatch(r"[A-Z0-9_]+", source) else f"{source}: {key}"


# ---- environment


def variable_part(model_id: str) -> str:
    """Return a model's id as it is written in the name of a variable."""
    return re.sub(r"[^A-Z0-9]", "_", model_id.upper())


def is_service_link(name: str, text: str) -> bool:
    """Return whether the kubelet set this variable to describe a Service of the Pod's namespace.

    The name and the value must both have the kubelet's form: a Service called ``llamapool`` yields
    ``LLAMAPOOL_PORT=tcp://10.0.0.1:80``, and ``LLAMAPOOL_PORT=8080`` is a mistake. A field of a model stays a
    setting: ``LLAMAPOOL_MODELS__MY_SERVICE_PORT_X__N_CTX=512`` also reads as the port ``x--n-ctx`` of a Service.
    """
    if not re.fullmatch(_SERVICE_LINK, f"{name}={text}"):
        return False
    field_of_model = name.rpartition("__")[2].lower()
    return not (name.startswith(f"{_OWN}MODELS__") and ("model", field_of_model) in TABLE.entries)


def read_environment(env: Mapping[str, str]) -> Source:
    """Read the variables of Llamapool, llama-server and Vertex AI. Raises ConfigError for an unknown variable."""
    found = Source(vertex=_read_vertex(env), config=env.get(CONFIG_VARIABLE, ""))
    names = [name for name in sorted(env) if not is_service_link(name, env[name])]
    for name in names:
        if name.startswith(_LLAMA) or name in TABLE.by_env:
            _read_llama(found, name, env[name])
    for name in names:
        if name.startswith(_OWN) and name != CONFIG_VARIABLE and env[name]:
            _read_own(found, name, env[name])
    return found


def _read_vertex(env: Mapping[str, str]) -> dict[str, SourcedValue]:
    if env.get("AIP_MODE") != "PREDICTION":
        return {}
    found: dict[str, SourcedValue] = {}
    for name, key in _VERTEX_FIELDS.items():
        text = env.get(name) or _VERTEX_DEFAULTS.get(name, "")
        if text:
            found[key] = SourcedValue(text if key == "port" else "/" + text.removeprefix("/"), name)
    return found


def _read_llama(found: Source, name: str, text: str) -> None:
    negated = TABLE.by_env.get(_LLAMA + name.removeprefix(_NEGATED)) if name.startswith(_NEGATED) else None
    if negated is not None and negated.is_switch and False in negated.constants.values():
        found.of(negated.section)[negated.key] = SourcedValue(False, name)
    elif name in TABLE.by_env:
        entry = TABLE.by_env[name]
        target = found.of(entry.section)
        if text and not (entry.key in target and target[entry.key].source.startswith(_NEGATED)):
            target[entry.key] = SourcedValue(entry.parse(text, name), name)
    elif text or name not in FOREIGN:
        on = name.startswith(_NEGATED) or text not in FALSE
        warning = unsupported(name, name, "unset it", on=on)
        if warning is None:
            raise ConfigError(f"unknown variable {name}" + nearest(name, [*TABLE.by_env], "; unset it"))
        found.skipped += [warning] if warning else []


def _read_own(found: Source, name: str, text: str) -> None:
    section, _, rest = name.removeprefix(_OWN).partition("__")
    if section == "SERVER" and rest:
        key = _field("server", name, rest)
        found.server[key] = SourcedValue(TABLE.entries["server", key].parse(text), name)
    elif section in ("DEFAULTS", "MODELS") and rest:
        model_id, _, last = rest.rpartition("__")
        if bool(model_id) != (section == "MODELS"):
            form = "<ID>__<FIELD>" if section == "MODELS" else "<FIELD>"
            raise ConfigError(f"{name} is not a setting; write {_OWN}{section}__{form}")
        key = _field("model", name, last)
        target = found.models.setdefault(model_id.upper(), {}) if model_id else found.defaults
        target[key] = SourcedValue(TABLE.entries["model", key].parse(text), name)
    else:
        fields = [f"{_OWN}SERVER__{key.upper()}" for key in TABLE.keys("server")]
        fields += [f"{_OWN}DEFAULTS__{key.upper()}" for key in TABLE.keys("model")]
        meant = [each for each in fields if each.endswith("__" + name.removeprefix(_OWN))]
        forms = (
            f"; write {CONFIG_VARIABLE}, {_OWN}SERVER__<FIELD>, {_OWN}DEFAULTS__<FIELD> or "
            f"{_OWN}MODELS__<ID>__<FIELD>, or unset it"
        )
        raise ConfigError(f"unknown variable {name}" + (f"; did you mean '{meant[0]}'?" if meant else forms))


def _field(section: Section, name: str, part: str) -> str:
    key = part.lower()
    if (section, key) not in TABLE.entries:
        hint = nearest(key, TABLE.keys(section), "; unset it or see docs/configuration.md")
        raise ConfigError(f"{name}: unknown field '{key}'{hint}")
    return key


def check_model_names(found: Source, model_ids: Iterable[str]) -> None:
    """Raise ConfigError for a LLAMAPOOL_MODELS__ variable that matches no model, or several."""
    by_part: dict[str, list[str]] = {}
    for model_id in model_ids:
        by_part.setdefault(variable_part(model_id), []).append(model_id)
    for part, layer in found.models.items():
        source = next(iter(layer.values())).source
        if part not in by_part:
            known = ", ".join(f"{model_id} ({key})" for key, ids in sorted(by_part.items()) for model_id in ids)
            raise ConfigError(f"{source}: no model has this id; known: {known or 'none'}")
        if len(by_part[part]) > 1:
            raise ConfigError(f"{source} matches several models: {', '.join(by_part[part])}; rename one")


# ---- YAML


class _YamlReader:
    """Walks the levels of the file that have fixed keys, so that every value has its line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loader = yaml.SafeLoader(read_text(path, remedy=f"check --config and {CONFIG_VARIABLE}"))
        self.document = Source(str(path))

    def read(self) -> None:
        root = self._loader.get_single_node()
        if root is None:
            return
        for name, node, place in self._items(root, "the file", str(self._path)):
            if name == "server":
                self.document.server = self._fields("server", node, "server", place)
            elif name == "defaults":
                self.document.defaults = self._fields("model", node, "defaults", place)
            elif name == "models":
                for model_id, fields, at in self._items(node, "models", place):
                    self.document.places[model_id] = at
                    self.document.models[model_id] = self._fields("model", fields, f"models.{model_id}", at)
            else:
                hint = nearest(name, list(_YAML_SECTIONS), f"; known: {', '.join(_YAML_SECTIONS)}")
                raise ConfigError(f"{place}: unknown key '{name}'{hint}")

    def _fields(self, section: Section, node: yaml.Node, where: str, place: str) -> dict[str, SourcedValue]:
        layer: dict[str, SourcedValue] = {}
        for key, value_node, at in self._items(node, where, place):
            entry = TABLE.entries.get((section, key))
            if entry is None:
                raise ConfigError(f"{at}: unknown key '{where}.{key}'{self._hint(section, key)}")
            value = self._loader.construct_object(value_node, deep=True)
            if entry.is_path:
                try:
                    value = self._absolute(value)
                except (RuntimeError, ValueError):  # an unknown user's ~, or a NUL in the name
                    raise ConfigError(
                        f"{at}: {where}.{key}: no user has the home folder after ~; write the full path"
                    ) from None
            layer[key] = SourcedValue(value, at)
        return layer

    def _absolute(self, value: Any) -> Any:
        """Resolve paths relative to the file's folder: one path, several, or mappings with a ``path``."""
        if is_address(value):
            return value
        if isinstance(value, str) and value:
            return Path(normpath(self._path.parent.resolve() / Path(value).expanduser()))
        if isinstance(value, list):
            return [self._absolute(item) for item in value]
        if isinstance(value, dict) and "path" in value:
            return {**value, "path": self._absolute(value["path"])}
        return value

    def _hint(self, section: Section, key: str) -> str:
        entry = TABLE.meant_by(key)
        if entry is None:
            return nearest(key, TABLE.keys(section), "; see docs/configuration.md")
        if entry.section == section:
            return f"; did you mean '{entry.key}'?"
        return f"; '{entry.key}' belongs to {'server' if section == 'model' else 'models.<id> or defaults'}"

    def _items(self, node: yaml.Node, where: str, place: str) -> Iterator[tuple[str, yaml.Node, str]]:
        """Yield key, value and place of each entry of a mapping."""
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{place}: {where} should be a mapping of keys to values")
        self._loader.flatten_mapping(node)
        known: set[str] = set()
        for key_node, value_node in node.value:
            key: Any = self._loader.construct_object(key_node, deep=True)
            at = f"{self._path}:{key_node.start_mark.line + 1}"
            if not isinstance(key, str) or not key:
                raise ConfigError(f'{at}: the key {key!r} in {where} is not text; write "{key}" in quotes')
            if key in known:
                raise ConfigError(f"{at}: '{key}' appears twice in {where}; remove one")
            known.add(key)
            yield key, value_node, at


def read_yaml(path: Path) -> Source:
    """Read the configuration in `path`. Relative paths in it are resolved from its folder.

    Raises ConfigError with one line: file, line, key, problem and remedy.
    """
    reader = _YamlReader(path)
    try:
        reader.read()
    except yaml.MarkedYAMLError as error:
        said = " ".join(part for part in (error.context, error.problem) if part)
        if error.problem_mark is None:
            raise ConfigError(f"{path}: invalid YAML: {said}") from None
        line, column = error.problem_mark.line + 1, error.problem_mark.column + 1
        raise ConfigError(f"{path}:{line}: invalid YAML: {said} (column {column}); check the indentation") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: invalid YAML: {' '.join(str(error).split())}") from None
    return reader.document
