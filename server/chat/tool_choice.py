"""Grammars that make the model call: for ``tool_choice`` required, or one named function."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.errors import InvalidRequest

Control = Callable[[str], int | None]
"""The id of the control token with that text, which a grammar must name by its id; None where it is plain text."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """What a forced call looks like.

    ``open`` and ``close`` stand around each call, or (``listed``) around a JSON list of them. ``bare``: nothing does.
    ``arguments`` is the key that the model was taught.
    """

    open: str = ""
    close: str = ""
    listed: bool = False
    bare: bool = False
    arguments: str = "arguments"


def calls_lark(
    form: CallFormat, functions: Sequence[Mapping[str, Any]], *, parallel: bool, control: Control | None = None
) -> str:
    """Lark (llguidance's dialect) whose `start` is one call of these functions, or several, and nothing else.

    Each function's parameters are a schema of their own, so that a ``$ref`` in them means what it meant. Raises
    `InvalidRequest` for parameters that are nested too deeply.
    """
    opening, closing = _tag(form.open, control), _tag(form.close, control)
    try:
        objects = [_object(number, function, form) for number, function in enumerate(functions)]
    except RecursionError:
        raise InvalidRequest("tools: the parameters of a function are nested too deeply", "tools") from None
    one = "(" + " | ".join(f"call_{number}" for number in range(len(objects))) + ")"
    if form.listed:
        more = f' (", " {one})*' if parallel else ""
        start = f'{opening} "[" {one}{more} "]"'
    elif form.bare:
        start = one
    else:
        tagged = f'{opening} "\\n" {one} "\\n" {closing}'
        start = tagged + (f' ("\\n" {tagged})*' if parallel else "")
    return f"start: {start}\n" + "".join(objects)


def _object(number: int, function: Mapping[str, Any], form: CallFormat) -> str:
    parameters = function.get("parameters") or {"type": "object"}
    if form.bare:
        # All JSON: beside a JSON answer the parser could not tell a text in front of the schema from the answer.
        return f"call_{number}: %json {json.dumps(_call_schema(function['name'], parameters, form.arguments))}\n"
    head = f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "{form.arguments}": '
    schema = f"arguments_{number}: %json {json.dumps(parameters)}"
    return f'call_{number}: {json.dumps(head)} arguments_{number} "}}"\n{schema}\n'


def _call_schema(name: str, parameters: Any, key: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, key: _moved(parameters, f"#/properties/{key}")},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema with its references pointing to where it stands now."""
    if isinstance(schema, list):
        return [_moved(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: place + part[1:] if key == "$ref" and isinstance(part, str) and part[:1] == "#" else _moved(part, place)
        for key, part in schema.items()
    }


def _tag(tag: str, control: Control | None) -> str:
    token = control(tag) if control and tag else None
    return json.dumps(tag) if token is None else f"<[{token}]>"
