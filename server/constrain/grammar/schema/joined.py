"""How many patterns one value must match together, and the number that it must be a multiple of.

llguidance makes one automaton of them before any of its limits counts: its states double with each pattern (15 of them
took half a minute and 2 GB), and are as many as the least common multiple (10 s for 999,983).
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import isfinite, lcm
from typing import Any

from server.constrain.grammar.schema.keywords import Schema
from server.errors import InvalidRequest

MAX_PATTERNS = 12
MAX_REMAINDERS = 100_000
MAX_LOOKS = 100_000  # for all joined values of a document
_Step = tuple[str, str | int | None]
"""A property by its name, an element by its place; None: those that are not listed."""


class Joined:
    """Of one plain document. ``definitions``: what references name, by the whole reference."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._checked: list[Schema] = []  # kept, since what is found is known by their identity
        self._multiples: dict[int, int] = {}
        self._n_at: dict[tuple[int, tuple[_Step, ...]], int] = {}
        self._searched: set[frozenset[int]] = set()
        self._left = MAX_LOOKS
        self._has_many = len(set(_patterns(definitions))) > MAX_PATTERNS

    def check(self, schema: dict[str, Any], place: str) -> None:
        """Raises `InvalidRequest` where they are too many."""
        self._checked.append(schema)
        if self._multiple(schema) > MAX_REMAINDERS:
            raise InvalidRequest(f"{place}: the keyword 'multipleOf' cannot be enforced beyond {MAX_REMAINDERS}", place)
        self._check_patterns(schema, (), place)
        if self._has_many:
            self._search([schema], schema, (), place)

    def _check_patterns(self, schema: Schema, path: tuple[_Step, ...], place: str) -> None:
        if self._at(schema, path) > MAX_PATTERNS:
            raise InvalidRequest(f"{place}: more than {MAX_PATTERNS} patterns of one text cannot be enforced", place)

    def _search(self, joined: list[Schema], schema: Schema, path: tuple[_Step, ...], place: str) -> None:
        """In the objects and arrays of `schema`, of which `joined` are at `path`."""
        every = self._every(joined)
        key = frozenset(map(id, every))
        if len(every) < 2 or key in self._searched:  # what stands alone is checked where it stands
            return
        self._searched.add(key)
        if path:
            self._check_patterns(schema, path, place)
        steps = dict.fromkeys(step for each in every for step in _steps(each))
        self._left -= len(every) * (1 + len(steps))
        if self._left < 0:
            raise InvalidRequest(f"{place}: more is joined here than can be looked through", place)
        for step in steps:
            below = [child for each in every for child in _children(each, step)]
            if len(below) > 1:
                kind, name = step
                self._search(
                    below, schema, (*path, step), f"{place}.{kind}" if name is None else f"{place}.{kind}.{name}"
                )

    def _every(self, joined: list[Schema]) -> list[dict[str, Any]]:
        """They, what holds together with them, and their alternatives."""
        every: dict[int, dict[str, Any]] = {}
        left = list(joined)
        while left:
            schema = left.pop()
            if not isinstance(schema, bool) and id(schema) not in every:
                every[id(schema)] = schema
                left += [*self._together(schema), *schema.get("anyOf", ()), *schema.get("oneOf", ())]
        return list(every.values())

    def _at(self, schema: Schema, path: tuple[_Step, ...]) -> int:
        """Patterns of one value at `path`; of alternatives the most."""
        if isinstance(schema, bool):
            return 0
        key = id(schema), path
        if key not in self._n_at:
            self._n_at[key] = 0  # what refers to itself adds nothing
            if path:
                n_patterns = sum(self._at(child, path[1:]) for child in _children(schema, path[0]))
            else:
                n_patterns = int("pattern" in schema)
            n_patterns += sum(self._at(each, path) for each in self._together(schema))
            for alternatives in ("anyOf", "oneOf"):
                n_patterns += max((self._at(way, path) for way in schema.get(alternatives, ())), default=0)
            self._n_at[key] = n_patterns
        return self._n_at[key]

    def _multiple(self, schema: Schema) -> int:
        """The least common multiple; of alternatives the most."""
        if isinstance(schema, bool):
            return 1
        if id(schema) not in self._multiples:
            self._multiples[id(schema)] = 1
            multiple = _remainders(schema.get("multipleOf", 1))
            for each in self._together(schema):
                multiple = _common(multiple, self._multiple(each))
            for alternatives in ("anyOf", "oneOf"):
                ways = map(self._multiple, schema.get(alternatives, ()))
                multiple = max((_common(multiple, way) for way in ways), default=multiple)
            self._multiples[id(schema)] = multiple
        return self._multiples[id(schema)]

    def _together(self, schema: dict[str, Any]) -> Iterator[Schema]:
        yield from schema.get("allOf", ())
        yield from (schema[key] for key in ("not", "if", "then", "else") if key in schema)
        if "$ref" in schema:
            yield self._definitions[schema["$ref"]]


def _steps(schema: dict[str, Any]) -> Iterator[_Step]:
    yield from (("properties", name) for name in schema.get("properties", ()))
    if "additionalProperties" in schema or "patternProperties" in schema:
        yield "additionalProperties", None
    yield from (("prefixItems", n) for n in range(len(schema.get("prefixItems", ()))))
    if "items" in schema:
        yield "items", None


def _children(schema: dict[str, Any], step: _Step) -> Iterator[Schema]:
    """Of a name that is not listed, those by every pattern of names."""
    kind, name = step
    if kind in ("properties", "additionalProperties"):
        if name in schema.get("properties", ()):
            yield schema["properties"][name]
            return
        yield from schema.get("patternProperties", {}).values()
        yield schema.get("additionalProperties", True)
    elif kind == "prefixItems" and name is not None and int(name) < len(schema.get("prefixItems", ())):
        yield schema["prefixItems"][name]
    else:
        yield schema.get("items", True)


def _patterns(value: object) -> Iterator[str]:
    """Every text under a keyword `pattern`, or under a property that is named so."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            if isinstance(each.get("pattern"), str):
                yield each["pattern"]
            left += each.values()
        elif isinstance(each, list):
            left += each


def _common(one: int, other: int) -> int:
    return min(lcm(one, other), MAX_REMAINDERS + 1)


def _remainders(number: float) -> int:
    """Of a multiple's digits, but for powers of two and five: these are the last digits'."""
    if not isfinite(number):
        return 1
    digits = Fraction(str(number)).numerator
    for factor in (2, 5):
        while digits % factor == 0:
            digits //= factor
    return min(digits, MAX_REMAINDERS + 1)
