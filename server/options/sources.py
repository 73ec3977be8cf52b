"""The sources of the settings, for pydantic-settings: their base, Llamapool's and Vertex AI's variables, and the YAML.

`load_settings` lists them in order of precedence (docs/adr/0005-settings-sources.md). Those of llama-server's flags
and variables are in `server.options.flags`, presets and folders of models in `server.options.presets`. Environment:

- ``LLAMAPOOL_CONFIG`` names the YAML file.
- ``LLAMAPOOL_SERVER__<FIELD>``, ``LLAMAPOOL_DEFAULTS__<FIELD>`` and ``LLAMAPOOL_MODELS__<ID>__<FIELD>`` set one field.
  In ``<ID>`` every character of the model's id that is not a letter or digit is ``_``; case is ignored.
- ``AIP_*`` as Vertex AI sets them.

An empty variable counts as unset. An unknown variable with one of these prefixes is an error, except the variables that
the kubelet sets for a Service.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, InitSettingsSource

from server.errors import ConfigError, without_credentials
from server.options.model import WHERE
from server.options.option import Layer, Section, SourcedValue
from server.options.table import TABLE, hint, nearest, visible
from server.options.values import is_address, read_text, without_secrets

CONFIG_VARIABLE = "LLAMAPOOL_CONFIG"
_OWN = "LLAMAPOOL_"
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
_VERTEX = {"predict_route": "AIP_PREDICT_ROUTE", "health_route": "AIP_HEALTH_ROUTE", "port": "AIP_HTTP_PORT"}
_VERTEX_DEFAULTS = {"predict_route": "/predict", "port": "8080"}


@dataclass(frozen=True, slots=True)
class Origin:
    """The place that configures a model: ``file:line``, a flag, a folder."""

    place: str
    mmproj: Path | None = None
    scanned: bool = False
    kind: Literal["preset", "models_dir", "cache"] = "preset"  # llama-server's names
    hidden: bool = False  # not listed, because a preset uses the same file
    repository: str = ""  # of a cached model that is the repository's default
    at_start: bool = False  # loads at startup unless a source says otherwise, as the model of -m


def section_of(where: str) -> Section:
    """Return the section of the table for a section of the settings."""
    return "server" if where == "server" else "model"


class OptionSource(InitSettingsSource):
    """Base of the sources: values of options, each with the flag, variable or ``file:line`` that gives it.

    ``sections`` are ``server``, ``defaults``, ``models.<id>``, and ``model`` for every model. ``skipped`` has a warning
    per flag, variable or key without effect.
    """

    def __init__(self) -> None:
        super().__init__(BaseSettings, {})
        self.sections = defaultdict[str, Layer](dict)
        self.skipped: list[str] = []

    def __call__(self) -> dict[str, Any]:
        """Return the values that no stronger source hides, and the strongest source of each option, hidden or not.

        pydantic-settings calls the strongest source first, and has merged what they returned into `current_state`.
        """
        models = {f"models.{model_id}": model_id for model_id in self.current_state.get("origins", ())}
        every_model = {key: given for key, given in self.sections["model"].items() if key not in (*WHERE, "aliases")}
        values: dict[str, dict[str, Any]] = {}
        sources: dict[str, dict[str, str]] = {}
        for name in ("server", "defaults", *models):
            layer = self.sections[name] | (every_model if name in models else {})
            stronger = self.current_state.get("sources", {}).get(name, {})
            seen = visible(section_of(name), layer, stronger)
            values[name] = {key: given.value for key, given in seen.items()}
            sources[name] = stronger | {key: given.source for key, given in layer.items() if key not in stronger}
        of_models = {model_id: values.pop(name) for name, model_id in models.items()}
        return {**values, "models": of_models, "sources": sources}


class Defaults(OptionSource):
    """Gives ``defaults`` to every model."""

    def __call__(self) -> dict[str, Any]:
        values, sources = self.current_state["defaults"], self.current_state["sources"]["defaults"]
        self.sections["model"] = {key: SourcedValue(values[key], sources[key]) for key in values}
        for model_id, origin in self.current_state.get("origins", {}).items():
            if origin.at_start:
                self.sections[f"models.{model_id}"] = {"load": SourcedValue("startup", origin.place)}
        return super().__call__()


def mistake(details: ErrorDetails, merged: Mapping[str, Any]) -> str:
    """Return the error message for a value that pydantic rejected: its source, the key, the problem.

    ``details["loc"]`` is a path in `merged`, the settings before validation.
    """
    where, *rest = map(str, details["loc"])
    values, place = merged[where], "the settings"
    if where == "models":
        model_id, *rest = rest
        where, values, place = f"models.{model_id}", values[model_id], merged["origins"][model_id].place
    sources = merged["sources"][where]
    message = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not rest:  # a check of several fields
        named = [source for key, source in sources.items() if re.search(rf"\b{key}\b", message)]
        return f"{', '.join(dict.fromkeys(named)) or place}: {where}: {message}"
    key, entry, source = rest[0], TABLE.entries[section_of(where), rest[0]], sources[rest[0]]
    if details["type"] == "extra_forbidden":
        return f"{source}: {where}.{key} belongs to one model; set models.<id>.{key}"
    if details["type"] == "too_short":
        message = "should have at least 1 entry"
    elif details["type"] == "path_type":  # pydantic also names the class
        message = "is not a valid path"
    value = values[key]
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    value = str(value) if isinstance(value, Path) else value
    if isinstance(value, str):  # a URL without its scheme may still contain a password
        value = without_credentials(value) if entry.metavar == "URL" else without_secrets(value)
    shown = "" if entry.secret else f" {value!r}"
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{located(source, f'{where}.{key}')}: invalid value{shown}: {message[0].lower()}{message[1:]}"


def located(source: str, key: str) -> str:
    """Return the start of an error message: a flag or variable alone, or a file's line with the key."""
    return source if source.startswith("-") or re.fullmatch(r"[A-Z0-9_]+", source) else f"{source}: {key}"


# ---- environment


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


class VertexVariables(OptionSource):
    """Vertex AI's variables. `weaker` are the sources of which a port has no effect."""

    def __init__(self, env: Mapping[str, str], weaker: Iterable[OptionSource] = ()) -> None:
        super().__init__()
        if env.get("AIP_MODE") != "PREDICTION":
            return
        for key, name in _VERTEX.items():
            if text := env.get(name) or _VERTEX_DEFAULTS.get(key):
                value = text if key == "port" else "/" + text.removeprefix("/")
                self.sections["server"][key] = SourcedValue(value, name)
        port = self.sections["server"]["port"].value
        ports = [source.sections["server"]["port"] for source in weaker if "port" in source.sections["server"]]
        if ports and str(ports[0].value) != port:
            given = ports[0]
            self.skipped = [f"{given.source}: port {given.value} has no effect, since AIP_HTTP_PORT sets port {port}"]


class OwnVariables(OptionSource):
    """Llamapool's variables. ``config_file`` is the YAML file's path. Raises ConfigError for an unknown variable."""

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__()
        self.config_file = env.get(CONFIG_VARIABLE, "")
        for name in sorted(env):
            if name.startswith(_OWN) and name != CONFIG_VARIABLE and env[name] and not is_service_link(name, env[name]):
                self._read(name, env[name])

    def _read(self, name: str, text: str) -> None:
        family, _, rest = name.removeprefix(_OWN).partition("__")
        if family not in ("SERVER", "DEFAULTS", "MODELS") or not rest:
            meant = [row.own_variable for row in TABLE if row.key.upper() == name.removeprefix(_OWN)]
            forms = (
                f"; write {CONFIG_VARIABLE}, {_OWN}SERVER__<FIELD>, {_OWN}DEFAULTS__<FIELD> or "
                f"{_OWN}MODELS__<ID>__<FIELD>, or unset it"
            )
            raise ConfigError(f"unknown variable {name}" + (f"; did you mean '{meant[0]}'?" if meant else forms))
        model_id, _, key = rest.lower().rpartition("__") if family != "SERVER" else ("", "", rest.lower())
        if bool(model_id) != (family == "MODELS"):
            form = "<ID>__<FIELD>" if family == "MODELS" else "<FIELD>"
            raise ConfigError(f"{name} is not a setting; write {_OWN}{family}__{form}")
        where, section = f"models.{model_id}" if model_id else family.lower(), section_of(family.lower())
        if (section, key) not in TABLE.entries:
            raise ConfigError(f"{name}: unknown field '{key}'{hint(section, key)}")
        self.sections[where][key] = SourcedValue(TABLE.entries[section, key].parse(text), name)

    def name_models(self, model_ids: Iterable[str]) -> None:
        """Replace the ``<ID>`` of variables by the models' ids. Raises ConfigError if none has it, or several."""
        by_part: dict[str, list[str]] = {}
        for model_id in model_ids:
            by_part.setdefault(re.sub(r"[^a-z0-9]", "_", model_id.lower()), []).append(model_id)
        for where in [where for where in self.sections if where.startswith("models.")]:
            layer = self.sections.pop(where)
            source, found = next(iter(layer.values())).source, by_part.get(where.removeprefix("models."), [])
            if not found:
                known = ", ".join(f"{each} ({key.upper()})" for key, ids in sorted(by_part.items()) for each in ids)
                raise ConfigError(f"{source}: no model has this id; known: {known or 'none'}")
            if len(found) > 1:
                raise ConfigError(f"{source} matches several models: {', '.join(found)}; rename one")
            self.sections[f"models.{found[0]}"] = layer


# ---- YAML


class _Loader(yaml.SafeLoader):
    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Return the text of a node. Raises ValueError if it has no UTF-8, which an escape such as "\\ud800" may do."""
        text = super().construct_scalar(node)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"line {node.start_mark.line + 1}: half of a surrogate pair is no character") from None
        return text


class YamlFile(OptionSource):
    """The configuration in `path`; None = no file. Relative paths in it are resolved from its folder.

    Walks the levels of the file that have fixed keys, so that every value has its line. ``places`` has the line of each
    model. `is_named`: the user chose the file; otherwise it is a default one. `is_demo`: it is the one shipped with
    Llamapool. Raises ConfigError with one line: file, line, key, problem and remedy.
    """

    def __init__(self, path: Path | None, *, is_named: bool = False, is_demo: bool = False) -> None:
        super().__init__()
        self.is_named, self.is_demo = is_named, is_demo
        self.places: dict[str, str] = {}
        if path is None:
            return
        self._path = path
        try:
            self._loader = _Loader(read_text(path, remedy=f"check --config and {CONFIG_VARIABLE}"))
            self._read()
        except yaml.MarkedYAMLError as error:
            said = " ".join(part for part in (error.context, error.problem) if part)
            if error.problem_mark is None:
                raise ConfigError(f"{path}: invalid YAML: {said}") from None
            line, column = error.problem_mark.line + 1, error.problem_mark.column + 1
            raise ConfigError(f"{path}:{line}: invalid YAML: {said} (column {column}); check the indentation") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as a date that is none
            raise ConfigError(f"{path}: invalid YAML: {' '.join(str(error).split())}") from None

    def _read(self) -> None:
        root = self._loader.get_single_node()
        if root is None:
            return
        for name, node, place in self._items(root, "the file", str(self._path)):
            if name in ("server", "defaults"):
                self._read_section(name, node, place)
            elif name == "models":
                for model_id, fields, at in self._items(node, "models", place):
                    self.places[model_id] = at
                    self._read_section(f"models.{model_id}", fields, at)
            else:
                known = ["server", "defaults", "models"]
                similar = nearest(name, known, f"; known: {', '.join(known)}")
                raise ConfigError(f"{place}: unknown key '{name}'{similar}")

    def _read_section(self, where: str, node: yaml.Node, place: str) -> None:
        for key, value_node, at in self._items(node, where, place):
            section = section_of(where)
            if (section, key) not in TABLE.entries:
                raise ConfigError(f"{at}: unknown key '{where}.{key}'{hint(section, key)}")
            value, entry = self._loader.construct_object(value_node, deep=True), TABLE.entries[section, key]
            if entry.is_path and value not in entry.words:
                try:
                    value = self._absolute(value)
                except (RuntimeError, ValueError):  # an unknown user's ~, or a NUL in the name
                    raise ConfigError(
                        f"{at}: {where}.{key}: no user has the home folder after ~; write the full path"
                    ) from None
            self.sections[where][key] = SourcedValue(value, at)

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

    def _items(self, node: yaml.Node, where: str, place: str) -> Iterator[tuple[str, yaml.Node, str]]:
        """Yield key, value and place of each entry of a mapping, whose own entries replace those that ``<<`` merges."""
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{place}: {where} should be a mapping of keys to values")
        own = {key_node for key_node, _ in node.value}
        self._loader.flatten_mapping(node)
        found: dict[str, tuple[yaml.Node, yaml.Node, str]] = {}
        for key_node, value_node in node.value:
            key: Any = self._loader.construct_object(key_node, deep=True)
            at = f"{self._path}:{key_node.start_mark.line + 1}"
            if not isinstance(key, str) or not key:
                raise ConfigError(f'{at}: the key {key!r} in {where} is not text; write "{key}" in quotes')
            if key in found and found[key][0] in own:
                raise ConfigError(f"{at}: '{key}' appears twice in {where}; remove one")
            found[key] = key_node, value_node, at
        node.value = [entry[:2] for entry in found.values()]
        for key, (_, value_node, at) in found.items():
            yield key, value_node, at
