"""Queries on the schema of a function's parameters, for formats that write one argument at a time.

Parsers need the possible types of a text, grammars the parameters. Full JSON Schema support is in `structured.grammar`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from server.errors import InvalidRequest
from server.formats.grammar.lark_text import ANY_TEXT
from server.structured.grammar.schema.formats import FORMATS
from server.structured.grammar.schema.language import alternatives, without_look_aheads, without_operators

KINDS = ("object", "array", "string", "number", "integer", "boolean", "null")
ANY = frozenset(KINDS)
STRING = frozenset(("string",))
NOT_STRING = ANY - STRING
_KINDS = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_MAX_REFERENCES, _MAX_VISITS = 16, 10_000
_NAME_IN_MARKUP = re.compile(r"""[^\x00-\x20<>{}\[\](),;="'`|\\\x7f]+""")
_ESCAPE = re.compile(r"\\.|/", re.DOTALL)
_ASCII = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]", "/": r"\/"}
_TEXT_KEYWORDS = ("not", "if", "allOf")
_FOR_NULL: Mapping[str, Any] = {"properties": {}, "required": []}  # clients in Go send null for empty values


def object_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the arguments, which are an object."""
    given = function.get("parameters") or {}
    schema = {key: _FOR_NULL.get(key) if value is None else value for key, value in given.items()}
    has_type = any(key in schema for key in ("type", "$ref", "anyOf", "oneOf", "allOf"))
    return schema if has_type else {"type": "object", **schema}


def properties_of(schema: Mapping[str, Any]) -> dict[str, tuple[Any, bool]]:
    """Return each parameter's schema, and whether it is required. Raises `InvalidRequest`."""
    named, needed = schema.get("properties") or {}, dict.fromkeys(required_in(schema))
    if not isinstance(named, Mapping):
        raise InvalidRequest("tools: 'properties' must be an object", "tools")
    return {key: (named.get(key, {}), key in needed) for key in {**named, **needed}}


def required_in(schema: Mapping[str, Any]) -> list[str]:
    """Return the names that a schema requires. Raises `InvalidRequest`."""
    required = schema.get("required") or []
    if not isinstance(required, list):
        raise InvalidRequest("tools: 'required' must be a list of names", "tools")
    return list(map(str, required))


def others_of(schema: Mapping[str, Any]) -> Any:
    """Return the schema of further parameters; False if the schema only lists its own, as in llama-server
    (common/json-schema.cpp, build_object).
    """
    return schema.get("additionalProperties", "properties" not in schema)


def names_in_markup(schema: Mapping[str, Any], *, never: str = "") -> dict[str, tuple[Any, bool]]:
    """Return `properties_of` for names in markup without quotes, none of which contains a character of `never`.

    Raises `InvalidRequest` for names that would be markup.
    """
    found = properties_of(schema)
    for key in found:
        if not _NAME_IN_MARKUP.fullmatch(key) or not set(never).isdisjoint(key):
            raise not_a_name(key)
    return found


def not_a_name(key: str) -> InvalidRequest:
    """Return the error of a parameter name that a model's notation can't contain."""
    return InvalidRequest(f"tools: a parameter of the name {key[:64]!r} can't be enforced", "tools")


def member(schema: Any, name: str) -> Any:
    """Return the schema of an object's property; None if there is none."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(name) if isinstance(properties, Mapping) else None


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0, left: Iterator[int] | None = None) -> frozenset[str]:
    """Return the JSON types that a value may have; all of them if the schema doesn't restrict them.

    ``left``: bounds the number of visits, because exponentially many paths of references may lead to one schema.
    """
    left = left or iter(range(_MAX_VISITS))
    if not isinstance(schema, Mapping) or depth > _MAX_REFERENCES or next(left, None) is None:
        return ANY
    if isinstance(schema.get("$ref"), str):
        found = referred(schema, root)
        return ANY if found is schema else types_of(found, root, depth + 1, left)
    kind = schema.get("type")
    if isinstance(kind, str | list):
        return frozenset([kind] if isinstance(kind, str) else filter(ANY.__contains__, map(str, kind))) & ANY or ANY
    values = values_of(schema)
    if values is not None:
        return frozenset(kind_of(value) for value in values)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return frozenset().union(*(types_of(part, root, depth + 1, left) for part in schema[key])) or ANY
    if isinstance(schema.get("allOf"), list):
        return ANY.intersection(*(types_of(part, root, depth + 1, left) for part in schema["allOf"])) or ANY
    return frozenset(("object",)) if "properties" in schema else ANY


def referred(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the target of a schema's reference; None if there is no target."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        found: Any = root
        for part in filter(None, reference[1:].split("/")):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        schema = found
    return schema


def values_of(schema: Any) -> list[Any] | None:
    """Return the allowed values; None if the schema does not list them."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def kind_of(value: Any) -> str:
    return _KINDS.get(type(value), "object")


def text_limits(schema: Mapping[str, Any]) -> list[str]:
    """Return the regexes that a whole text must match. Raises `InvalidRequest`."""
    keyword = next((key for key in _TEXT_KEYWORDS if key in schema), None)
    if keyword is not None:
        raise InvalidRequest(f"tools: the keyword '{keyword}' of a text cannot be enforced in a tool call", "tools")
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    limits = [f"(?s:.{{{least},{most}}})"] if least or most != "" else []
    pattern = schema.get("pattern")
    patterns = without_look_aheads(pattern) if isinstance(pattern, str) else []
    return [*limits, *map(_whole, (*patterns, *FORMATS.get(str(schema.get("format")), ())))]


def _whole(pattern: str) -> str:
    """Convert a pattern that is searched to one that matches the whole text."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not alternatives(pattern, "$")[-1]
    inner = pattern[begins : len(pattern) - ends]
    if (begins or ends) and len(alternatives(inner)) > 1:
        raise InvalidRequest(
            "tools: a pattern with anchors and alternatives cannot be enforced in a tool call", "tools"
        )
    inner = _ESCAPE.sub(lambda found: _ASCII.get(found[0], found[0]), without_operators(inner)).replace("\n", "\\n")
    return f"{'' if begins else ANY_TEXT}(?:{inner}){'' if ends else ANY_TEXT}"
