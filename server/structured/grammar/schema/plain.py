"""Detects schemas that compile in linear time, so that they need no sandbox.

Such a schema combines nothing: one position describes each value, by names, lists, lengths and references. Combined
schemas, patterns, large counts and unknown keywords have no such bound.
"""

from collections.abc import Iterator
from typing import Any

MAX_VALUES = 600
MAX_CHARS = 20_000
MAX_COUNT = 200
"""Of a length or a number of items that a plain schema may name."""
_SAYS_NOTHING = frozenset(
    ["$schema", "$comment", "$id", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"]
)
_VALUES = frozenset(["type", "required", "enum", "const", "minimum", "maximum"])
_COUNTS = frozenset(["minLength", "maxLength", "minItems", "maxItems"])
_MAPS = frozenset(["properties", "$defs", "definitions"])
_ALONE = frozenset(["$ref", "anyOf"])  # with siblings, they combine schemas
_SCHEMAS = frozenset(["items", "additionalProperties"])


def is_plain(schema: object) -> bool:
    """Return whether `schema` compiles in linear time."""
    left, n_values, n_chars = [schema], 0, 0
    while left:
        each = left.pop()
        if isinstance(each, bool):
            continue
        if not isinstance(each, dict) or not _is_plain(each):
            return False
        left += _schemas_in(each)
        for value in _data(each):
            n_values += 1
            n_chars += len(value) if isinstance(value, str) else 1
        if n_values > MAX_VALUES or n_chars > MAX_CHARS:
            return False
    return True


def _is_plain(schema: dict[str, Any]) -> bool:
    said = schema.keys() - _SAYS_NOTHING
    if said & _ALONE:
        return len(said - {"$defs", "definitions"}) == 1 and _is_local(schema.get("$ref", "#"))
    if not said <= _VALUES | _COUNTS | _MAPS | _SCHEMAS:
        return False
    return all(isinstance(schema[key], int) and 0 <= schema[key] <= MAX_COUNT for key in said & _COUNTS)


def _is_local(reference: object) -> bool:
    return isinstance(reference, str) and reference.startswith("#")


def _schemas_in(schema: dict[str, Any]) -> Iterator[Any]:
    for key, value in schema.items():
        if key in _MAPS:
            yield from value.values() if isinstance(value, dict) else [None]
        elif key == "anyOf":
            yield from value if isinstance(value, list) else [None]
        elif key in _SCHEMAS:
            yield value


def _data(schema: dict[str, Any]) -> Iterator[Any]:
    """Return the names and values in a schema, and the schema itself."""
    yield None
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            yield from value
        elif key in _VALUES:
            left = [value]
            while left:
                each = left.pop()
                yield each
                if isinstance(each, list):
                    left += each
                elif isinstance(each, dict):
                    left += [*each, *each.values()]
