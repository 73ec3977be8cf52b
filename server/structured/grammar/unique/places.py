"""Finds where a JSON Schema requires unique items, and follows it from value to value.

At each position, the schemas that may apply are known, rather too many than too few: all alternatives, and patterns
of property names even if they don't match. So an array is unique if any of them requires it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

MARK = "x-unique"
"""The keyword for `uniqueItems` in a rewritten schema, with its place in the client's. llguidance ignores it."""

Place: TypeAlias = tuple[int, ...]
"""The schemas that concern a value, by number."""


class UniquePlaces:
    """The positions of one rewritten schema. ``document``: the schema. ``first``: the first such position, as text.
    Only caches change, so forks share it.
    """

    def __init__(self, root: Mapping[str, Any], first: str) -> None:
        self.document = root
        self.first = first
        self._definitions = {f"#/$defs/{name}": schema for name, schema in root.get("$defs", {}).items()} | {"#": root}
        self._schemas: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._closures: dict[int, tuple[int, ...]] = {}
        self._below: dict[tuple[Place, str | int | None], Place] = {}
        self._unique: dict[Place, bool] = {}
        self.root = self._place([root])

    def property(self, place: Place, name: str) -> Place:
        """Return the place of a property's value."""
        # Names that no schema lists share an entry: clients choose them, and the cache outlives a reply.
        listed = any(name in schema.get("properties", ()) for schema in self._at(place))
        key = (place, name if listed else None)
        if key not in self._below:
            self._below[key] = self._place(each for schema in self._at(place) for each in _of_property(schema, name))
        return self._below[key]

    def item(self, place: Place, index: int) -> Place:
        """Return the place of an item."""
        key = (place, min(index, max((len(schema.get("prefixItems", ())) for schema in self._at(place)), default=0)))
        if key not in self._below:
            self._below[key] = self._place(each for schema in self._at(place) for each in _of_item(schema, key[1]))
        return self._below[key]

    def is_unique(self, place: Place) -> bool:
        """Whether the items of an array here must differ."""
        if place not in self._unique:
            self._unique[place] = any(MARK in schema for schema in self._at(place))
        return self._unique[place]

    def _at(self, place: Place) -> Iterator[Mapping[str, Any]]:
        for number in place:
            for each in self._closure(number):
                yield self._schemas[each]

    def _place(self, schemas: Iterable[Any]) -> Place:
        return tuple(dict.fromkeys(self._number(schema) for schema in schemas if isinstance(schema, dict)))

    def _number(self, schema: Any) -> int:
        number = self._numbers.get(id(schema))
        if number is None:
            number = self._numbers[id(schema)] = len(self._schemas)
            self._schemas.append(schema)
        return number

    def _closure(self, number: int) -> tuple[int, ...]:
        """A schema and all that concern the same value through it."""
        if number not in self._closures:
            seen = {number: None}
            waiting = [number]
            while waiting:
                for schema in self._in_place(self._schemas[waiting.pop()]):
                    if isinstance(schema, dict) and (found := self._number(schema)) not in seen:
                        seen[found] = None
                        waiting.append(found)
            self._closures[number] = tuple(seen)
        return self._closures[number]

    def _in_place(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        for key in ("allOf", "anyOf", "oneOf"):
            yield from schema.get(key, ())
        if "$ref" in schema:
            yield self._definitions[schema["$ref"]]


def _of_property(schema: Mapping[str, Any], name: str) -> Iterator[Any]:
    known = schema.get("properties", {})
    if name in known:
        yield known[name]
    yield from schema.get("patternProperties", {}).values()
    if name not in known and "additionalProperties" in schema:
        yield schema["additionalProperties"]


def _of_item(schema: Mapping[str, Any], index: int) -> Iterator[Any]:
    first = schema.get("prefixItems", ())
    if index < len(first):
        yield first[index]
    elif "items" in schema:
        yield schema["items"]
