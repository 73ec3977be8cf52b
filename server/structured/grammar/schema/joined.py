"""How many patterns one value must match together, and the number that it must be a multiple of.

llguidance makes one automaton of them before any of its limits counts: its states double with each pattern (15 of them
took half a minute and 2 GB), and are as many as the least common multiple (10 s for 999,983).
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import isfinite, lcm
from typing import Any

from server.errors import InvalidRequest
from server.structured.grammar.schema.formats import FORMATS
from server.structured.grammar.schema.keywords import Schema

MAX_PATTERNS = 12
MAX_REMAINDERS = 100_000
MAX_LOOKS = 100_000  # for all joined values of a document
_Step = tuple[str, str | int | None]
"""A property by its name, an element by its place; None: those that are not listed."""
_Value = frozenset[Any]
"""All constraints on one value: schemas, by their ids, and alternatives, each a frozen set of such values."""


class Joined:
    """Finds combined schemas in a normalized document. ``definitions``: targets by the full reference."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._schemas: dict[int, dict[str, Any]] = {}  # kept alive, since results use their ids
        self._multiples: dict[int, int] = {}
        self._values: dict[int, _Value] = {}
        self._inside: dict[tuple[_Value, _Step], _Value] = {}
        self._counts: dict[_Value, int] = {}
        self._searched: set[_Value] = set()
        self._left = MAX_LOOKS
        self._has_many = len(set(_patterns(definitions))) > MAX_PATTERNS

    def check(self, schema: dict[str, Any], place: str) -> None:
        """Raises `InvalidRequest` where they are too many."""
        try:
            self._check(schema, place)
        except RecursionError:
            raise InvalidRequest(f"{place}: references join too many schemas, one behind the other", place) from None

    def _check(self, schema: dict[str, Any], place: str) -> None:
        if self._multiple(schema) > MAX_REMAINDERS:
            raise InvalidRequest(f"{place}: the keyword 'multipleOf' cannot be enforced beyond {MAX_REMAINDERS}", place)
        left = [(self._value(schema), place)]
        while left:
            value, at = left.pop()
            if self._n_patterns(value) > MAX_PATTERNS:
                raise InvalidRequest(f"{at}: more than {MAX_PATTERNS} patterns of one text cannot be enforced", at)
            if self._has_many and value not in self._searched:
                self._searched.add(value)
                left += self._below(value, at)

    def _below(self, value: _Value, place: str) -> Iterator[tuple[_Value, str]]:
        """Return the combinations in the properties and items of a value."""
        every = self._every(value)
        steps = dict.fromkeys(step for each in every for step in _steps(each))
        self._left -= len(every) * len(steps)
        if self._left < 0:
            said = f"more is joined here than can be looked through for {MAX_PATTERNS} patterns: use fewer of them"
            raise InvalidRequest(f"{place}: {said}", place)
        if len(every) < 2:  # a single schema is checked on its own
            return
        for step in steps:
            kind, name = step
            yield self._at(value, step), f"{place}.{kind}" if name is None else f"{place}.{kind}.{name}"

    def _value(self, schema: Schema) -> _Value:
        if isinstance(schema, bool):
            return frozenset()
        if id(schema) not in self._values:
            self._values[id(schema)] = frozenset()  # a self-reference adds nothing
            self._schemas[id(schema)] = schema
            parts = frozenset[Any]([id(schema)]).union(*map(self._value, self._together(schema)))
            ways = [frozenset(map(self._value, schema[key])) for key in ("anyOf", "oneOf") if key in schema]
            self._values[id(schema)] = parts.union(ways)
        return self._values[id(schema)]

    def _at(self, value: _Value, step: _Step) -> _Value:
        """Return the combinations one step into a value."""
        key = value, step
        if key not in self._inside:
            found: set[Any] = set()
            for part in value:
                if isinstance(part, int):
                    found.update(*map(self._value, _children(self._schemas[part], step)))
                else:
                    found.add(frozenset(self._at(way, step) for way in part))
            self._inside[key] = frozenset(found)
        return self._inside[key]

    def _every(self, value: _Value) -> list[dict[str, Any]]:
        """Its schemas, those of alternatives, too."""
        seen: set[_Value] = set()
        left = [value]
        while left and self._left >= 0:
            one = left.pop()
            self._left -= 1
            if one not in seen:
                seen.add(one)
                left += [way for part in one if not isinstance(part, int) for way in part]
        return [self._schemas[part] for part in frozenset[Any]().union(*seen) if isinstance(part, int)]

    def _n_patterns(self, value: _Value) -> int:
        """Patterns of one text; of alternatives the most."""
        if value not in self._counts:
            alternatives = (part for part in value if not isinstance(part, int))
            self._counts[value] = sum(_n_own(self._schemas[part]) for part in value if isinstance(part, int)) + sum(
                max(map(self._n_patterns, ways), default=0) for ways in alternatives
            )
        return self._counts[value]

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


def _n_own(schema: Mapping[str, Any]) -> int:
    """Return the number of patterns in the schema itself; a `format` counts as one."""
    return ("pattern" in schema) + (schema.get("format") in FORMATS)


def _patterns(value: object) -> Iterator[str]:
    """Every text under a keyword `pattern` or `format`, or under a property that is named so."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            yield from (each[key] for key in ("pattern", "format") if isinstance(each.get(key), str))
            left += each.values()
        elif isinstance(each, list):
            left += each


def _common(one: int, other: int) -> int:
    return min(lcm(one, other), MAX_REMAINDERS + 1)


def _remainders(number: float) -> int:
    """Return the number of remainders for a multiple's digits, except powers of two and five, which only affect the
    last digits.
    """
    if not isfinite(number):
        return 1
    digits = Fraction(str(number)).numerator
    for factor in (2, 5):
        while digits % factor == 0:
            digits //= factor
    return min(digits, MAX_REMAINDERS + 1)
