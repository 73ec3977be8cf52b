"""The JSON Schema keywords that constrain an instance, and the form of their values (draft 4 to 2020-12).

All other keywords are annotations.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any] | bool

APART = ("array", "boolean", "null", "number", "object", "string")
"""The disjoint types: every value has exactly one. Integers are numbers."""
TYPES = frozenset((*APART, "integer"))
SINGLE = frozenset(
    [
        *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames"),
        *("then", "unevaluatedItems", "unevaluatedProperties"),
    ]
)
LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
MAPS = frozenset(["dependentSchemas", "patternProperties", "properties"])
DEFINITIONS = ("$defs", "definitions")
REFUSED = ("$dynamicRef", "$recursiveRef")  # their target depends on the referrer


def subschemas(schema: Mapping[str, Any]) -> Iterator[Schema]:
    """Yield the direct subschemas of a valid schema, without its definitions."""
    for key, value in schema.items():
        if key in MAPS:
            yield from value.values()
        elif key in LISTS:
            yield from value
        elif key in SINGLE:
            yield value


def with_subschemas(schema: Mapping[str, Any], change: Callable[[Schema, str], Schema]) -> dict[str, Any]:
    """Return the schema with each direct subschema replaced by `change` of it and its path, such as ``.anyOf.0``."""
    changed: dict[str, Any] = {}
    for key, value in schema.items():
        if key in MAPS:
            changed[key] = {name: change(each, f".{key}.{name}") for name, each in value.items()}
        elif key in LISTS:
            changed[key] = [change(each, f".{key}.{n}") for n, each in enumerate(value)]
        else:
            changed[key] = change(value, f".{key}") if key in SINGLE else value
    return changed


def definitions_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the targets of references in a normalized document, by the full reference."""
    own = {key: value for key, value in document.items() if key != "$defs"}
    return {"#": own} | {f"#/$defs/{name}": schema for name, schema in document.get("$defs", {}).items()}


def applied(schemas: Iterable[Any], definitions: Mapping[str, Any], keys: Iterable[str]) -> list[dict[str, Any]]:
    """Return the schemas that apply to one value: `schemas`, their references and the lists below `keys`.

    Booleans are omitted.
    """
    found: dict[int, dict[str, Any]] = {}
    waiting = list(schemas)
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict) and id(each) not in found:
            found[id(each)] = each
            waiting += [part for key in keys for part in each.get(key, ())]
            waiting += [definitions[each["$ref"]]] if "$ref" in each else []
    return list(found.values())


def values_in(value: Any) -> Iterator[Any]:
    """Yield a JSON value and every value inside it, in document order."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        yield value
        if isinstance(value, dict | list):
            waiting += reversed(value.values() if isinstance(value, dict) else value)


def kind_of(value: Any) -> str:
    """Return the type of a JSON value: one of `APART`."""
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


Form: TypeAlias = tuple[Callable[[Any], bool], str]
"""A check of a value, at least as strict as the meta-schemas of all drafts, and its description."""
_COUNT: Form = (_is_count, "a whole number of at least 0")
_NUMBER: Form = (_is_number, "a number")
_STRING: Form = (lambda value: isinstance(value, str), "a string")
_STRINGS: Form = (_is_strings, "a list of different strings")

VALUES: Mapping[str, Form] = {
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), _NUMBER),
    **dict.fromkeys(("maxContains", "maxItems", "maxLength", "maxProperties"), _COUNT),
    **dict.fromkeys(("minContains", "minItems", "minLength", "minProperties"), _COUNT),
    **dict.fromkeys(("$ref", "format", "pattern"), _STRING),
    "const": (lambda value: True, "a value"),
    "dependentRequired": (
        lambda value: isinstance(value, dict) and all(map(_is_strings, value.values())),
        "an object of lists of different strings",
    ),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number greater than 0"),
    "required": _STRINGS,
    "type": (_is_type, f"one of {', '.join(sorted(TYPES))}, or a list of these"),
    "uniqueItems": (lambda value: isinstance(value, bool), "a boolean"),
}
"""The form of the keywords that contain no schemas."""

COUNTS = frozenset(name for name, form in VALUES.items() if form is _COUNT)
SINCE: Mapping[str, int] = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "maxContains", "minContains"), 2019),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), 2019),
    "prefixItems": 2020,
}
"""The first draft with a keyword, if that is not draft 4."""
