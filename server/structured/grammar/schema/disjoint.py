"""Decides whether two schemas are disjoint, so that a `oneOf` of them may be an `anyOf`.

The result is conservative: keywords that are not analyzed can only reduce the set of values.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from server.structured.grammar.schema.keywords import TYPES, Schema

MAX_DEPTH = 6  # nested properties of one proof
MAX_PAIRS = 20_000  # of schemas that are compared in one document


class Disjointness:
    """Compares schemas of one document. ``definitions``: targets of references, by the full reference."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._n_left = MAX_PAIRS

    def of(self, one: Schema, other: Schema, depth: int = 0) -> bool:
        """Return whether it is certain that no value matches both."""
        ones, others = self._parts(one), self._parts(other)
        names = {name for part in ones + others for name in part.get("required", ())}
        self._n_left -= 1 + len(names)
        if depth > MAX_DEPTH or self._n_left < 0:
            return False
        mine, theirs = _values(ones), _values(others)
        if not _types(ones) & _types(others) or (mine and theirs and mine.isdisjoint(theirs)):
            return True
        return any(
            self.of(left, right, depth + 1)
            for name in names
            for left in _property(ones, name)
            for right in _property(others, name)
        )

    def _parts(self, schema: Schema) -> list[dict[str, Any]]:
        """Return all schemas that a value must match: the schema, its references and its `allOf`."""
        found: dict[int, dict[str, Any]] = {}
        waiting = [schema]
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict) and id(each) not in found:
                found[id(each)] = each
                waiting += each.get("allOf", ())
                waiting += [self._definitions[each["$ref"]]] if "$ref" in each else []
        return list(found.values())


def _types(parts: list[dict[str, Any]]) -> frozenset[str]:
    found = TYPES
    for part in parts:
        given = part.get("type", TYPES)
        named = {given} if isinstance(given, str) else set(given)
        found &= named | ({"integer"} if "number" in named else set())
    return found


def _values(parts: list[dict[str, Any]]) -> set[str]:
    """Return the strings that the schemas allow, if all of some `enum` or `const` are strings; otherwise nothing."""
    for part in parts:
        given = [part["const"]] if "const" in part else part.get("enum", ())
        if given and all(isinstance(value, str) for value in given):
            return set(given)
    return set()


def _property(parts: list[dict[str, Any]], name: str) -> Iterator[Schema]:
    for part in parts:
        if name in part.get("properties", ()):
            yield part["properties"][name]
