"""Negates schemas, for `not`, `if` and `oneOf`.

A negation that can't be fully expressed is stricter. Every value that matches it is invalid for the schema. But it does
not match values that only violate an unsupported keyword (`pattern`, `format`, `items`, ...).
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from server.structured.grammar.schema.keywords import APART, Schema, kind_of
from server.structured.grammar.schema.language import MAX_WORD, none_of

MAX_DEPTH = 12  # references and nested schemas of one negation
MAX_PARTS = 5000  # keywords negated in one document
MAX_WORDS_CHARS = 4000  # of the strings of an enum whose complement is spelled out


class Negations:
    """Negates schemas of one document. ``definitions``: targets of references, by the full reference."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._left = MAX_PARTS

    def of(self, schema: Schema, depth: int = 0) -> Schema:
        """Return a schema of values that `schema` rejects; False if none can be described."""
        if isinstance(schema, bool):
            return not schema
        self._left -= len(schema) + sum(map(_n_parts, schema.values()))
        if depth > MAX_DEPTH or self._left < 0:
            return False

        def negate(part: Schema) -> Schema:
            return self.of(part, depth + 1)

        found: list[Schema] = []
        for key, value in schema.items():
            if key == "$ref":
                found.append(negate(self._definitions[value]))
            elif key in _NEGATIONS:
                found += _NEGATIONS[key](value, negate)
        return any_of(found)


def _n_parts(value: Any) -> int:
    """Return the cost of a keyword's list (`enum`, `required`), because each value becomes a schema."""
    if not isinstance(value, list):
        return 0
    return len(value) // 10 + sum(len(each) for each in value if isinstance(each, str)) // 100


def any_of(schemas: list[Schema]) -> Schema:
    """Return a schema that matches if one of these matches."""
    possible = [schema for schema in schemas if schema is not False]
    if True in possible:
        return True
    return {"anyOf": possible} if len(possible) > 1 else possible[0] if possible else False


def other_types(types: list[str]) -> Schema:
    """Return a schema of values of none of these types. If integers are excluded, all numbers are."""
    excluded = {"number" if name == "integer" else name for name in types}
    rest = [name for name in APART if name not in excluded]
    return {"type": rest} if rest else False


def _type(value: Any, _: Any) -> list[Schema]:
    return [other_types([value] if isinstance(value, str) else value)]


def _required(value: list[str], _: Any) -> list[Schema]:
    return [{"type": "object", "properties": {name: False}} for name in value]


def _properties(value: dict[str, Schema], negate: Callable[[Schema], Schema]) -> list[Schema]:
    negated = ((name, negate(schema)) for name, schema in value.items())
    return [
        {"type": "object", "required": [name], "properties": {name: schema}, "additionalProperties": True}
        for name, schema in negated
        if schema is not False
    ]


def _enum(values: list[Any], _: Any) -> list[Schema]:
    kinds: dict[str, list[Any]] = {}
    for value in values:
        kinds.setdefault(kind_of(value), []).append(value)
    found: list[Schema] = [other_types(list(kinds))]
    words = kinds.get("string", [])
    if words and sum(map(len, words)) <= MAX_WORDS_CHARS and max(map(len, words)) <= MAX_WORD:
        found.append({"type": "string", "pattern": none_of(words)})
    if "boolean" in kinds:
        found += [{"const": other} for other in (True, False) if other not in kinds["boolean"]]
    numbers = sorted(kinds.get("number", []))
    if numbers:
        found.append({"type": "number", "exclusiveMaximum": numbers[0]})
        found.append({"type": "number", "exclusiveMinimum": numbers[-1]})
        between = pairwise(numbers)
        found += [{"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high} for low, high in between]
    return found


def _bound(kind: str, opposite: str, shift: int = 0) -> Callable[[Any, Any], list[Schema]]:
    def negated(value: Any, _: Any) -> list[Schema]:
        return [{"type": kind, opposite: value + shift}] if value + shift >= 0 or kind == "number" else []

    return negated


def _all(value: list[Schema], negate: Callable[[Schema], Schema]) -> list[Schema]:
    negated = [negate(part) for part in value]
    return [] if False in negated else [{"allOf": negated}]


_NEGATIONS: Mapping[str, Callable[[Any, Callable[[Schema], Schema]], list[Schema]]] = {
    "allOf": lambda value, negate: [negate(part) for part in value],
    "anyOf": _all,
    "const": lambda value, negate: _enum([value], negate),
    "enum": _enum,
    "exclusiveMaximum": _bound("number", "minimum"),
    "exclusiveMinimum": _bound("number", "maximum"),
    "maxItems": _bound("array", "minItems", 1),
    "maxLength": _bound("string", "minLength", 1),
    "maximum": _bound("number", "exclusiveMinimum"),
    "minItems": _bound("array", "maxItems", -1),
    "minLength": _bound("string", "maxLength", -1),
    "minimum": _bound("number", "exclusiveMaximum"),
    "oneOf": _all,  # values that match several branches are missing
    "not": lambda value, _: [value],
    "properties": _properties,
    "required": _required,
    "type": _type,
}
