"""Detects schemas that compile in linear time, so that they need no sandbox.

Such a schema combines nothing: one position describes each value, by names, lists, lengths and references. Combined
schemas, patterns, large counts and unknown keywords have no such bound.
"""

import json
from typing import Any

from server.structured.grammar.schema.keywords import DEFINITIONS, subschemas

MAX_VALUES = 600
MAX_CHARS = 25_000  # of the names and values as JSON
MAX_COUNT = 200
"""Of a length or a number of items that a plain schema may name."""
_SAYS_NOTHING = frozenset(
    ["$schema", "$comment", "$id", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"]
)
_VALUES = frozenset(["type", "required", "enum", "const", "minimum", "maximum"])
_COUNTS = frozenset(["minLength", "maxLength", "minItems", "maxItems"])
_MAPS = frozenset(["properties", *DEFINITIONS])
_ALONE = frozenset(["$ref", "anyOf"])  # with siblings, they combine schemas


def is_plain(schema: object) -> bool:
    left, n_values, n_chars = [schema], 0, 0
    while left:
        each = left.pop()
        if isinstance(each, bool):
            continue
        if not isinstance(each, dict) or not _is_plain(each):
            return False
        try:
            left += [*subschemas(each), *(sub for key in DEFINITIONS for sub in each.get(key, {}).values())]
        except (AttributeError, TypeError):  # they are no objects or lists, and so no schemas
            return False
        data = [each[key] for key in _VALUES & each.keys()] + [[*each[key]] for key in _MAPS & each.keys()]
        text = json.dumps(data)
        n_values += 1 + text.count(",")
        n_chars += len(text)
        if n_values > MAX_VALUES or n_chars > MAX_CHARS:
            return False
    return True


def _is_plain(schema: dict[str, Any]) -> bool:
    said = schema.keys() - _SAYS_NOTHING
    if said & _ALONE:
        return said <= {*_ALONE, *DEFINITIONS} and len(said & _ALONE) == 1 and str(schema.get("$ref", "#"))[:1] == "#"
    if not said <= _VALUES | _COUNTS | _MAPS | {"items", "additionalProperties"}:
        return False
    return all(isinstance(schema[key], int) and 0 <= schema[key] <= MAX_COUNT for key in said & _COUNTS)
