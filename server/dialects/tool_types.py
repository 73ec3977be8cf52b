"""Tool types that OpenAI and Anthropic define, as functions that any model can call: one table for both dialects.

Models see only functions. ``tool_types.json`` has, for each type whose calls the client executes, the function that
represents it and, for Responses, the items of a call and its output. The parameters of a function are names of
``members``, with ``?`` after optional ones; a suffix after a colon distinguishes members with the same name. A type
without a row is dropped with a warning: `omission_reason` tells whether the provider's servers would execute it. To
support a type, add a row.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import orjson

from server.dialects.common import Json
from server.dialects.fields import json_text
from server.formats.arguments import object_of

Schema = Mapping[str, Any]
_DELETES = "delete_file"  # an operation of apply_patch; only the function, not the item, has its ``diff``


@dataclass(frozen=True, slots=True)
class ToolType:
    """A tool type whose calls the client executes, as a function. Only Responses use the fields with a default."""

    name: str
    description: str
    parameters: Schema
    call: str = ""  # type of a call item
    output: str = ""  # type of an output item
    payload: str = ""  # the call item's member with the arguments; "" if they are members of the item
    prefix: str = ""  # of the id of a call item
    open: bool = False  # the client may set description and parameters
    fixed: Schema = field(default_factory=dict)  # added to the payload
    item: Schema = field(default_factory=dict)  # added to the item
    nothing: Schema = field(default_factory=dict)
    """Arguments without effect, for a call that must not be executed: it is truncated, or its arguments are invalid."""
    unfinished: str = "incomplete"  # the status of such a call

    def read(self, arguments: str) -> Json | None:
        """Return the arguments that a model generated, None if they are invalid."""
        try:
            given = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return None
        return given if _matches(given, {"type": "object"} if self.open else self.parameters) else None

    def body(self, arguments: Json | None) -> Json:
        """Return the members of a call item for `arguments`; for None, arguments without effect."""
        members = dict(self.nothing if arguments is None else arguments)
        if members.get("type") == _DELETES:
            members.pop("diff", None)
        return {**self.item, **({self.payload: {**self.fixed, **members}} if self.payload else members)}

    def arguments(self, item: Mapping[str, Any]) -> Json | None:
        """Return the arguments of a call item as the model generated them, None if the item is not of this type."""
        given: object = item.get(self.payload)
        if not self.payload:
            given = {name: item[name] for name in self.parameters["properties"] if item.get(name) is not None} or None
        if isinstance(given, str):
            given = object_of(given)
        if not isinstance(given, dict):
            return None if given is None else {"input": given}
        own = {name: value for name, value in given.items() if value is not None and self.fixed.get(name) != value}
        return {**own, "diff": ""} if own.get("type") == _DELETES else own


def _matches(value: object, schema: Schema) -> bool:
    """Return whether `value` matches a schema of this module. A schema without properties matches any object."""
    if "anyOf" in schema:
        return any(_matches(value, each) for each in schema["anyOf"])
    match schema.get("type"):
        case "object":
            members, others = schema.get("properties", {}), schema.get("additionalProperties") or {}
            return (
                isinstance(value, dict)
                and all(name in value for name in schema.get("required", ()))
                and all(_matches(given, members.get(name, others)) for name, given in value.items())
            )
        case "array":
            return isinstance(value, list) and all(_matches(each, schema.get("items", {})) for each in value)
        case "string":
            return isinstance(value, str) and value in schema.get("enum", (value,))
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
    return True


@dataclass(frozen=True, slots=True)
class Toolset:
    """Functions that one entry of ``tools`` represents. ``disabled``: those that are disabled by default."""

    name: str
    functions: Mapping[str, tuple[str, Schema]]
    disabled: frozenset[str] = frozenset()


_DATA: Json = orjson.loads(resources.files("server.dialects").joinpath("tool_types.json").read_bytes())
_MEMBERS: dict[str, Json] = _DATA["members"]
_MEMBERS["actions"]["items"] = _MEMBERS["action"]


def _parameters(names: str) -> Schema:
    """Return the schema of a function's parameters."""
    keys = {name.partition(":")[0].removesuffix("?"): name for name in names.split()}
    return {
        "type": "object",
        "properties": {name: dict(_MEMBERS[key.removesuffix("?")]) for name, key in keys.items()},
        "required": [name for name, key in keys.items() if not key.endswith("?")],
        "additionalProperties": False,
    }


def _types(rows: Json) -> dict[str, ToolType]:
    return {kind: ToolType(**{**row, "parameters": _parameters(row["parameters"])}) for kind, row in rows.items()}


def _toolset(row: Json) -> Toolset:
    functions = {name: (description, _parameters(names)) for name, (description, names) in row["functions"].items()}
    return Toolset(row["name"], functions, frozenset(row.get("off", ())))


RESPONSES = _types(_DATA["responses"])
"""Tool types of Responses, by ``type``."""
ANTHROPIC = _types(_DATA["anthropic"])
"""Tool types of Anthropic, by ``type``; a type without a date is for all versions without their own row."""
_ZOOMING = ANTHROPIC.pop("computer_zoom")
TOOLSETS = {kind: _toolset(row) for kind, row in _DATA["toolsets"].items()}
"""Toolsets of Anthropic, by ``type``. The model's name of a function is, for example, ``computer__left_click``."""


def written(arguments: Json) -> str:
    """Return arguments as models write them: with a space after each comma and colon."""
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        return json_text(arguments)


def called(kind: str, item: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the function and the arguments of a Responses item of type `kind`, None if it is no call item."""
    for row in RESPONSES.values():
        if row.call == kind and (arguments := row.arguments(item)) is not None:
            return row.name, written(arguments)
    return None


_DATED = re.compile(r"(bash|text_editor|memory|computer)_\d{8}")
SERVERS = (
    *("web_search", "web_fetch", "file_search", "code_interpreter", "code_execution", "image_generation", "advisor"),
    *("programmatic_tool_calling", "tool_search", "shell"),  # of the last two, the forms that run on the server
)
"""Types that only the provider's servers execute. Versions have a suffix, such as a date."""
_SERVERS = re.compile(rf"(?:{'|'.join(SERVERS)})(_\w+)?")


def anthropic_type(entry: Mapping[str, Any]) -> ToolType | None:
    """Return the type of an Anthropic tool whose calls the client executes, None for any other tool."""
    kind = entry.get("type")
    found = _DATED.fullmatch(kind) if isinstance(kind, str) else None
    if found is None:
        return None
    if found[1] == "computer" and entry.get("enable_zoom") is True:
        return _ZOOMING
    return ANTHROPIC.get(found[0]) or ANTHROPIC[found[1]]


def omission_reason(kind: str) -> str:
    """Return the reason why tools of a type without a row are dropped."""
    return "only the provider's servers execute them" if _SERVERS.fullmatch(kind) else "no model can use them here"
