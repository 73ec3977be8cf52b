"""Decides whether two schemas are disjoint. Disjoint branches of a `oneOf` need no rewriting to exclude each other.

The result is conservative: keywords that are not analyzed (`not`, `if`, `items`, bounds, ...) can only reduce the set
of values.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from server.structured.grammar.schema.keywords import APART, Schema, applied, kind_of

MAX_DEPTH = 12  # references and nested schemas of one proof
MAX_PAIRS = 20_000  # of schemas that are compared in one document
_PER_PAIR = 50  # compared names or values that count as one pair
_PREFIX = re.compile(r"\^([A-Za-z0-9_-]+)([*?{]?)")  # of a pattern: prefix of every match
_EVERY = frozenset(APART)


class Disjointness:
    """Compares schemas of one document. ``definitions``: targets of references, by the full reference."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._left = MAX_PAIRS

    def of(self, one: Schema, other: Schema, depth: int = 0) -> bool:
        """Return whether it is certain that no value matches both."""
        self._left -= 1
        if one is False or other is False:
            return True
        if one is True or other is True or depth > MAX_DEPTH or self._left < 0:
            return False
        ones, others = (applied([each], self._definitions, ["allOf"]) for each in (one, other))
        types = _EVERY.intersection(*map(_types_of, ones + others))
        if not types or self._values_differ(ones, others):
            return True
        if types == {"object"} and self._properties_disjoint(ones, others, depth):
            return True
        return self._alternatives_disjoint(ones, other, depth) or self._alternatives_disjoint(others, one, depth)

    def _alternatives_disjoint(self, parts: list[dict[str, Any]], other: Schema, depth: int) -> bool:
        """Return whether all alternatives of some `anyOf` or `oneOf` are disjoint from the other schema."""
        cases = (part[key] for part in parts for key in ("anyOf", "oneOf") if key in part)
        return any(all(self.of(case, other, depth + 1) for case in each) for each in cases)

    def _values_differ(self, ones: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
        """Return whether both list their values, and have none in common."""
        named = [[keys for part in parts if (keys := _value_keys(part)) is not None] for parts in (ones, others)]
        self._left -= sum(len(keys) for each in named for keys in each) // _PER_PAIR
        return any(keys.isdisjoint(other_keys) for keys in named[0] for other_keys in named[1])

    def _properties_disjoint(self, ones: list[dict[str, Any]], others: list[dict[str, Any]], depth: int) -> bool:
        """Return whether a property that one of them requires can't match both."""
        names = dict.fromkeys(name for part in ones + others for name in part.get("required", ()))
        self._left -= len(names) // _PER_PAIR
        return any(
            self.of(own, other_schema, depth + 1)
            for name in names
            for own in _of_property(ones, name)
            for other_schema in _of_property(others, name)
        )


def _types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types of values that the schema's own keywords allow."""
    found = _EVERY
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        found = frozenset("number" if name == "integer" else name for name in names)
    keys = _value_keys(schema)
    return found if keys is None else found & {kind for kind, _ in keys}


def _value_keys(schema: Mapping[str, Any]) -> set[Any] | None:
    """Return keys of the listed values; None if the schema does not list them. Equal values have equal keys, as may
    different ones.
    """
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None:
        return None
    return {(kind_of(value), None if isinstance(value, list | dict) else value) for value in values}


def _of_property(parts: list[dict[str, Any]], name: str) -> Iterator[Schema]:
    """Yield the schemas that certainly apply to a property."""
    for part in parts:
        if name in part.get("properties", ()):
            yield part["properties"][name]
        elif not any(_may_match(pattern, name) for pattern in part.get("patternProperties", ())):
            yield part.get("additionalProperties", True)


def _may_match(pattern: str, name: str) -> bool:
    prefix = _PREFIX.match(pattern)
    if prefix is None or "|" in pattern:
        return True
    return name.startswith(prefix[1][:-1] if prefix[2] else prefix[1])
