"""The JSON Schema keywords that constrain an instance, and the form of their values. JSON Schema Core and Validation,
draft 4 to 2020-12. Everything else is an annotation.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any] | bool

TYPES = frozenset(["null", "boolean", "integer", "number", "string", "array", "object"])
SINGLE = frozenset(
    [
        *("additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then"),
        *("unevaluatedItems", "unevaluatedProperties"),
    ]
)
LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
MAPS = frozenset(["dependentSchemas", "patternProperties", "properties"])
DEFINITIONS = ("$defs", "definitions")
REFUSED = ("$dynamicRef", "$recursiveRef")  # their target depends on the referrer


def kind_of(value: Any) -> str:
    """The type of a JSON value, where whole numbers are numbers."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", list: "array", dict: "object", type(None): "null"}[type(value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and (isinstance(value, int) or value.is_integer())


def _is_type(value: Any) -> bool:
    return value in TYPES if isinstance(value, str) else bool(value) and _is_strings(value) and TYPES.issuperset(value)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value) and len(set(value)) == len(value)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


VALUES: Mapping[str, Callable[[Any], bool]] = {
    "$ref": _is_string,
    "const": lambda value: True,
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_is_strings, value.values())),
    "enum": lambda value: isinstance(value, list),
    "exclusiveMaximum": _is_number,
    "exclusiveMinimum": _is_number,
    "format": _is_string,
    "maxContains": _is_count,
    "maxItems": _is_count,
    "maxLength": _is_count,
    "maxProperties": _is_count,
    "maximum": _is_number,
    "minContains": _is_count,
    "minItems": _is_count,
    "minLength": _is_count,
    "minProperties": _is_count,
    "minimum": _is_number,
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "pattern": _is_string,
    "required": _is_strings,
    "type": _is_type,
    "uniqueItems": lambda value: isinstance(value, bool),
}
"""Those without schemas in them, each with a check that is never laxer than the meta-schemas of all drafts."""

COUNTS = frozenset(name for name, check in VALUES.items() if check is _is_count)
