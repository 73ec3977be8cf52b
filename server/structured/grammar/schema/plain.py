"""Detects schemas that compile in linear time, so that they need no sandbox.

In such a schema, a single subschema describes each value, by names, lists, lengths and references. Combined schemas,
patterns, large counts and unknown keywords may take more time.
"""

import json
from typing import Any

from server.structured.grammar.schema.keywords import DEFINITIONS, subschemas

MAX_VALUES = 600
MAX_CHARS = 25_000  # of the names and values as JSON
MAX_COUNT = 200
"""The largest length or number of items in a plain schema."""
_ANNOTATIONS = frozenset(
    ["$schema", "$comment", "$id", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"]
)
_VALUES = frozenset(["type", "required", "enum", "const", "minimum", "maximum"])
_COUNTS = frozenset(["minLength", "maxLength", "minItems", "maxItems"])
_MAPS = frozenset(["properties", *DEFINITIONS])
_WITHOUT_SIBLINGS = frozenset(["$ref", "anyOf"])  # with siblings, they combine schemas


def is_plain(schema: object) -> bool:
    """Return whether the schema compiles in linear time."""
    left, n_values, n_chars = [schema], 0, 0
    while left:
        each = left.pop()
        if isinstance(each, bool):
            continue
        if not isinstance(each, dict) or not _is_plain(each):
            return False
        try:
            left += [*subschemas(each), *(sub for key in DEFINITIONS for sub in each.get(key, {}).values())]
        except (AttributeError, TypeError):  # not objects or lists, so not valid schemas
            return False
        data = [each[key] for key in _VALUES & each.keys()] + [[*each[key]] for key in _MAPS & each.keys()]
        text = json.dumps(data)
        n_values += 1 + text.count(",")
        n_chars += len(text)
        if n_values > MAX_VALUES or n_chars > MAX_CHARS:
            return False
    return True


def _is_plain(schema: dict[str, Any]) -> bool:
    keywords = schema.keys() - _ANNOTATIONS
    if keywords & _WITHOUT_SIBLINGS:
        return (
            keywords <= {*_WITHOUT_SIBLINGS, *DEFINITIONS}
            and len(keywords & _WITHOUT_SIBLINGS) == 1
            and str(schema.get("$ref", "#"))[:1] == "#"
        )
    if not keywords <= _VALUES | _COUNTS | _MAPS | {"items", "additionalProperties"}:
        return False
    return all(isinstance(schema[key], int) and 0 <= schema[key] <= MAX_COUNT for key in keywords & _COUNTS)
