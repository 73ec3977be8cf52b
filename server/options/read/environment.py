"""Reads llama-server's variables and Llamapool's own from the environment.

- ``LLAMA_ARG_*`` and ``LLAMA_API_KEY`` as llama-server reads them (llama.cpp common/arg.cpp); ``LLAMA_ARG_NO_X``
  with any value switches X off. They hold for every model.
- ``LLAMAPOOL_CONFIG`` names the YAML.
- ``LLAMAPOOL_SERVER__<FIELD>``, ``LLAMAPOOL_DEFAULTS__<FIELD>``, ``LLAMAPOOL_MODELS__<ID>__<FIELD>`` set one
  field; in ``<ID>`` every character of the model's id that is not a letter or digit is ``_``, case is ignored.

An empty variable counts as unset. An unknown variable of these families is an error, unless the kubelet set it: see
`is_service_link`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from server.errors import ConfigError
from server.options.read.layers import SourcedValue, from_text
from server.options.read.vertex import read_vertex
from server.options.table.option import Section, Table, nearest
from server.options.table.values import FALSE, TRUE
from server.options.unsupported import DEAD_VARIABLES, FIXED_VARIABLES, VARIABLES, dead, refusal

CONFIG_VARIABLE = "LLAMAPOOL_CONFIG"
_OWN = "LLAMAPOOL_"
_LLAMA = "LLAMA_ARG_"
_NEGATED = "LLAMA_ARG_NO_"
_IP = r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:.]*)"
_URL = rf"(?:tcp|udp|sctp)://(?:{_IP}|\[{_IP}\]):\d+"
_SERVICE_LINK = re.compile(  # NAME=value; kubernetes/pkg/kubelet/envvars/envvars.go
    rf"""[A-Z0-9_]*[A-Z0-9]_(?:
        SERVICE_HOST={_IP}
      | SERVICE_PORT(?:_[A-Z0-9_]+)?=\d+
      | PORT(?:_\d+_(?:TCP|UDP|SCTP))?={_URL}
      | PORT_(?P<port>\d+)_(?:TCP|UDP|SCTP)_(?:PROTO=(?:tcp|udp|sctp)|PORT=(?P=port)|ADDR={_IP})
    )""",
    re.VERBOSE,
)


@dataclass(slots=True)
class Variables:
    """What the environment says. ``model`` (LLAMA_ARG_*) holds for every model; ``models`` by variable name.

    ``vertex`` is what Vertex AI sets, which is stronger than flags. ``skipped`` is what has no effect, a line each.
    """

    server: dict[str, SourcedValue] = field(default_factory=dict)
    model: dict[str, SourcedValue] = field(default_factory=dict)
    defaults: dict[str, SourcedValue] = field(default_factory=dict)
    models: dict[str, dict[str, SourcedValue]] = field(default_factory=dict)
    vertex: dict[str, SourcedValue] = field(default_factory=dict)
    config: str = ""
    skipped: list[str] = field(default_factory=list)

    def of_model(self, model_id: str) -> dict[str, SourcedValue]:
        """The variables that name this model."""
        return self.models.get(variable_part(model_id), {})


def variable_part(model_id: str) -> str:
    """A model's id as it is written in a variable's name."""
    return re.sub(r"[^A-Z0-9]", "_", model_id.upper())


def is_service_link(table: Table, name: str, text: str) -> bool:
    """Return whether the kubelet set this variable to describe a Service of the Pod's namespace.

    The name and the value must both have the kubelet's form: a Service called ``llamapool`` yields
    ``LLAMAPOOL_PORT=tcp://10.0.0.1:80``, and ``LLAMAPOOL_PORT=8080`` is a mistake. A field of a model stays a
    setting: ``LLAMAPOOL_MODELS__MY_SERVICE_PORT_X__N_CTX=512`` also reads as the port ``x--n-ctx`` of a Service.
    """
    if not _SERVICE_LINK.fullmatch(f"{name}={text}"):
        return False
    field_of_model = name.rpartition("__")[2].lower()
    return not (name.startswith(f"{_OWN}MODELS__") and ("model", field_of_model) in table.entries)


def read_environment(table: Table, env: Mapping[str, str]) -> Variables:
    """Read the variables of Llamapool and llama-server; ignore the kubelet's service links.

    Raises ConfigError with one line for an unknown variable.
    """
    found = Variables(vertex=read_vertex(env), config=env.get(CONFIG_VARIABLE, ""))
    names = [name for name in sorted(env) if not is_service_link(table, name, env[name])]
    for name in names:
        if name.startswith(_LLAMA) or name in table.by_env:
            _read_llama(table, found, name, env[name])
    for name in names:
        if name.startswith(_OWN) and name != CONFIG_VARIABLE and env[name]:
            _read_own(table, found, name, env[name])
    return found


def _read_llama(table: Table, found: Variables, name: str, text: str) -> None:
    negated = table.by_env.get(_LLAMA + name.removeprefix(_NEGATED)) if name.startswith(_NEGATED) else None
    if negated is not None and negated.negatable:
        (found.server if negated.section == "server" else found.model)[negated.key] = SourcedValue(False, name)
    elif name in table.by_env:
        entry = table.by_env[name]
        target = found.server if entry.section == "server" else found.model
        if text and not (entry.key in target and target[entry.key].source.startswith(_NEGATED)):
            target[entry.key] = SourcedValue(from_text(entry, text, name), name)
    elif _fixed(found, name, text):
        return
    elif name in DEAD_VARIABLES:
        found.skipped.append(dead(name))
    elif name in VARIABLES:
        raise ConfigError(refusal(name, "unset it"))
    else:
        raise ConfigError(f"unknown variable {name}" + nearest(name, [*table.by_env], "; unset it"))


def _fixed(found: Variables, name: str, text: str) -> bool:
    """Whether it is a variable with one value here. Raises ConfigError when another is asked for and matters."""
    negated = name.startswith(_NEGATED) and _LLAMA + name.removeprefix(_NEGATED) in FIXED_VARIABLES
    fixed = FIXED_VARIABLES.get(_LLAMA + name.removeprefix(_NEGATED) if negated else name)
    if fixed is None:
        return False
    wanted = False if negated else {**dict.fromkeys(TRUE, True), **dict.fromkeys(FALSE, False)}.get(text)
    if text and wanted is not fixed.value:
        found.skipped.append(fixed.refuse(f"{name}={text}", "unset it"))
    return True


def _read_own(table: Table, found: Variables, name: str, text: str) -> None:
    section, _, rest = name.removeprefix(_OWN).partition("__")
    if section == "SERVER" and rest:
        key = _field(table, "server", name, rest)
        found.server[key] = SourcedValue(from_text(table.entries["server", key], text), name)
    elif section in ("DEFAULTS", "MODELS") and rest:
        model_id, _, last = rest.rpartition("__")
        if bool(model_id) != (section == "MODELS"):
            raise ConfigError(f"{name} is not a setting; write {_OWN}{section}__" + _form(section))
        key = _field(table, "model", name, last)
        target = found.models.setdefault(model_id.upper(), {}) if model_id else found.defaults
        target[key] = SourcedValue(from_text(table.entries["model", key], text), name)
    else:
        own = (
            f"; Llamapool's own are {CONFIG_VARIABLE}, {_OWN}SERVER__<FIELD>, "
            f"{_OWN}DEFAULTS__<FIELD> and {_OWN}MODELS__<ID>__<FIELD>"
        )
        fields = [f"{_OWN}SERVER__{key.upper()}" for key in table.keys("server")]
        fields += [f"{_OWN}DEFAULTS__{key.upper()}" for key in table.keys("model")]
        meant = [each for each in fields if each.endswith("__" + name.removeprefix(_OWN))]
        raise ConfigError(f"unknown variable {name}" + (f"; did you mean '{meant[0]}'?" if meant else own))


def _form(section: str) -> str:
    return "<ID>__<FIELD>" if section == "MODELS" else "<FIELD>"


def _field(table: Table, section: Section, name: str, part: str) -> str:
    if (section, part.lower()) in table.entries:
        return part.lower()
    hint = nearest(part, table.keys(section), "; unset it or see docs/configuration.md")
    raise ConfigError(f"{name}: unknown field '{part.lower()}'{hint}")


def check_model_names(found: Variables, model_ids: Iterable[str]) -> None:
    """Raises ConfigError for a variable that names no model, or more than one."""
    by_part: dict[str, list[str]] = {}
    for model_id in model_ids:
        by_part.setdefault(variable_part(model_id), []).append(model_id)
    for part, layer in found.models.items():
        source = next(iter(layer.values())).source
        if part not in by_part:
            known = ", ".join(f"{model_id} ({key})" for key, ids in sorted(by_part.items()) for model_id in ids)
            raise ConfigError(f"{source}: no model of that id is configured; known: {known or 'none'}")
        if len(by_part[part]) > 1:
            raise ConfigError(f"{source} names several models: {', '.join(by_part[part])}; rename one")
