"""Where a JSON Schema wants the items of an array to be unique, followed from value to value.

At each place in a document the schemas that may concern it are known, more of them rather than fewer: of alternatives
all, of patterns of property names those that don't match, too. So an array is held unique where one of them says so.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

MARK = "x-unique"  # how a rewritten schema says `uniqueItems`; llguidance ignores what it doesn't know
MAX_MEMBERS = 500  # of the values that an item can have at most, where these are looked at one by one
MAX_DEPTH = 64  # alternatives and references within each other, to find these values

Place: TypeAlias = tuple[int, ...]
"""The schemas that concern a value, by number."""


class UniquePlaces:
    """The places of one rewritten schema. Only caches change, so that forks share it.

    ``document``: the schema. ``first``: the first such place, in words.
    """

    def __init__(self, root: Mapping[str, Any], first: str) -> None:
        self.document = root
        self.first = first
        self._definitions = {f"#/$defs/{name}": schema for name, schema in root.get("$defs", {}).items()} | {"#": root}
        self._schemas: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._closures: dict[int, tuple[int, ...]] = {}
        self._below: dict[tuple[Place, str | int], Place] = {}
        self._unique: dict[Place, bool] = {}
        self._members: dict[Place, tuple[str, ...] | None] = {}
        self._referred: dict[str, list[str] | None] = {}
        self.root = self._place([root])

    def property(self, place: Place, name: str) -> Place:
        """The place of a property's value."""
        key = (place, name)
        if key not in self._below:
            self._below[key] = self._place(each for schema in self._at(place) for each in _of_property(schema, name))
        return self._below[key]

    def item(self, place: Place, index: int) -> Place:
        """The place of an item."""
        key = (place, index)
        if key not in self._below:
            self._below[key] = self._place(each for schema in self._at(place) for each in _of_item(schema, index))
        return self._below[key]

    def is_unique(self, place: Place) -> bool:
        """Whether the items of an array here must differ."""
        if place not in self._unique:
            self._unique[place] = any(schema.get(MARK) for schema in self._at(place))
        return self._unique[place]

    def members(self, place: Place) -> tuple[str, ...] | None:
        """The texts of all values that may stand here, where they are few and no arrays or objects; else None."""
        if place not in self._members:
            found = [self._texts(self._schemas[number], 0) for number in place]
            known = [texts for texts in found if texts is not None]
            texts = tuple(dict.fromkeys(text for each in known for text in each))
            complete = bool(found) and len(known) == len(found) and len(texts) <= MAX_MEMBERS
            self._members[place] = texts if complete else None
        return self._members[place]

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

    def _texts(self, schema: Any, depth: int) -> list[str] | None:
        """A superset of the values of a schema, as they are written."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return None
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            plain = all(not isinstance(value, dict | list | float) for value in values)
            return [json.dumps(value, ensure_ascii=False) for value in values] if plain else None
        if schema.get("type") in ("boolean", "null"):
            return ["true", "false"] if schema["type"] == "boolean" else ["null"]
        if "$ref" in schema:
            name = schema["$ref"]
            if name not in self._referred:
                self._referred[name] = None  # what refers to itself says nothing
                self._referred[name] = self._texts(self._definitions[name], depth + 1)
            return self._referred[name]
        for part in schema.get("allOf", ()):
            if (texts := self._texts(part, depth + 1)) is not None:
                return texts
        for key in ("anyOf", "oneOf"):
            parts = [self._texts(part, depth + 1) for part in schema.get(key, ())]
            if parts and None not in parts:
                found = list(dict.fromkeys(text for texts in parts for text in texts or ()))
                return found if len(found) <= MAX_MEMBERS else None
        return None


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
