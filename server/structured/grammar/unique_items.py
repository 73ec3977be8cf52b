"""Enforces `uniqueItems`, which no grammar can express, by rejecting tokens that repeat an item.

`UniquePlaces` finds the arrays whose items must differ. `Cursor` follows the generated JSON byte by byte. If the schema
lists the values (`enum`, `const`, booleans, few integers), tokens that can only lead to a repeated item are rejected.
The same holds for an item that is `true`, `false`, `null` or the integer 0. Otherwise the reply fails if every
continuation repeats an item.
"""

import json
import time
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping
from copy import copy
from decimal import Decimal
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from server.errors import InvalidRequest
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.grammar.schema.keywords import applied, definitions_of
from server.structured.grammar.text_tokens import TextTokens

MARK = "x-unique"
"""The keyword for `uniqueItems` in a rewritten schema; its value is the path in the client's. llguidance ignores it."""
_MAX_VALUES = 2000  # listed values of a schema; longer lists are not used
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_LITERALS = (b"false", b"null", b"true")
_ZEROS = (b"0", b"-0")  # no digit may follow in an integer
_QUOTE, _ESCAPE = ord('"'), ord("\\")


class UniquePlaces:
    """The places of one rewritten schema, `document`. Forks share it, because only its caches change."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._definitions = definitions_of(document)
        self._places: dict[tuple[int, ...], Place] = {}

    @property
    def root(self) -> "Place":
        return self.place([self._definitions["#"]])

    def place(self, schemas: Iterable[Any]) -> "Place":
        """Return the place of a value to which all of `schemas` apply, including their schemas in place."""
        found = applied(schemas, self._definitions, _IN_PLACE)
        key = tuple(map(id, found))
        if key not in self._places:
            self._places[key] = Place(self, found)
        return self._places[key]


class Place:
    """A position in the JSON. ``schemas``: all schemas that apply to its value."""

    def __init__(self, places: UniquePlaces, schemas: list[dict[str, Any]]) -> None:
        self._places, self._schemas = places, schemas
        self._below: dict[str | int | None, Place] = {}
        self.is_unique = any(MARK in schema for schema in schemas)  # whether the items of an array here must differ
        listed = [_listed(schema) for schema in schemas]
        values = [] if None in listed else [value for each in listed for value in each or ()]
        texts = (
            json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
            for value in values[: _MAX_VALUES + 1]
        )
        # The JSON text and the value of every value that is allowed here; empty if the schema does not list them.
        self.values = {text: _value(text) for text in texts} if len(values) <= _MAX_VALUES else {}
        self.texts = sorted(self.values)
        named = [schema.get("type", ()) for schema in schemas]
        types = {name for each in named for name in ([each] if isinstance(each, str) else each)}
        has_fractions = any(isinstance(value, float) for each in listed for value in each or ())
        self.is_integer = "integer" in types and "number" not in types and not has_fractions

    def property(self, name: str) -> "Place":
        # Unlisted names share a place: models choose them, and the cache outlives a reply.
        key = name if any(name in schema.get("properties", ()) for schema in self._schemas) else None
        if key not in self._below:
            self._below[key] = self._places.place(
                each for schema in self._schemas for each in _of_property(schema, name)
            )
        return self._below[key]

    def item(self, index: int) -> "Place":
        index = min(index, max((len(schema.get("prefixItems", ())) for schema in self._schemas), default=0))
        if index not in self._below:
            firsts = ((schema.get("prefixItems", ())[index:] or [schema.get("items")])[0] for schema in self._schemas)
            self._below[index] = self._places.place(firsts)
        return self._below[index]


def _of_property(schema: Mapping[str, Any], name: str) -> list[Any]:
    known = schema.get("properties", {})
    own = known[name] if name in known else schema.get("additionalProperties")
    return [own, *schema.get("patternProperties", {}).values()]


def _listed(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists, [] if only referenced schemas list them; None if it does not list them."""
    least, most = schema.get("minimum"), schema.get("maximum")
    if "const" in schema or "enum" in schema:
        return [schema["const"]] if "const" in schema else list(schema["enum"])
    match schema.get("type"):
        case "boolean":
            return [False, True]
        case "null":
            return [None]
        case "integer" if isinstance(least, int) and isinstance(most, int) and most - least < _MAX_VALUES:
            return list(range(least, most + 1))
    return [] if schema.keys() & {"$ref", *_IN_PLACE} else None


class _Frame(NamedTuple):
    """An open object or array."""

    is_array: bool
    place: Place
    n_before: int = 0
    start: int = -1  # where the current item starts in the text; -1 after its end
    seen: frozenset[Hashable] | None = None  # the values of the items so far; None if they may repeat


class Cursor:
    """The position in the output. The text must be JSON that matches the schema apart from uniqueness."""

    __slots__ = ("_escaped", "_frames", "_in_key", "_in_scalar", "_key", "_place", "_text", "in_string")

    def __init__(self, root: Place) -> None:
        self._frames: tuple[_Frame, ...] = ()
        self._place = root  # of the next value
        self._text = b""  # the text that is still needed (`_trim`)
        self._key = 0  # where the current key starts in it
        self.in_string = self._in_key = self._escaped = self._in_scalar = False

    def fork(self) -> "Cursor":
        return copy(self)

    @property
    def is_inside(self) -> bool:
        """Return whether an array whose items must differ is open."""
        return any(frame.seen is not None for frame in self._frames)

    @property
    def is_listed(self) -> bool:
        """Return whether the current item is not the first, and the schema lists its values."""
        return bool(self._frames and self._frames[-1].seen and self._place.values)

    def take(self, piece: bytes) -> bool:
        """Advance by a piece. Return False, in an undefined state, if it repeats an item or can only lead to that."""
        start, self._text = len(self._text), self._text + piece
        for at, byte in enumerate(piece, start):
            if self._escaped:
                self._escaped = False
            elif not self.in_string:
                if not self._structure(chr(byte), at):
                    return False
            elif byte == _ESCAPE:
                self._escaped = True
            elif byte == _QUOTE:
                self.in_string = False
                if self._in_key:
                    self._place = self._frames[-1].place.property(json.loads(self._text[self._key : at + 1]))
                elif not self._item_ends(at + 1):
                    return False
        if not self._can_differ():
            return False
        self._trim()
        return True

    def _trim(self) -> None:
        """Drop the text that precedes both the current key and all open items that must differ."""
        needed = [frame.start for frame in self._frames if frame.seen is not None and frame.start >= 0]
        n_done = min([*needed, self._key] if self._in_key and self.in_string else needed, default=len(self._text))
        if n_done:
            self._text, self._key = self._text[n_done:], self._key - n_done
            self._frames = tuple(each._replace(start=max(each.start - n_done, -1)) for each in self._frames)

    def _structure(self, char: str, at: int) -> bool:
        """Advance by a character outside of strings. Return whether the item that it ends differs from the others."""
        differs = True
        if self._in_scalar and char in ",]} \t\n\r":
            self._in_scalar = False
            differs = self._item_ends(at)
        if char == '"':
            self.in_string, self._key = True, at
        elif char in "[{":
            place, is_array = self._place, char == "["
            seen = frozenset[Hashable]() if is_array and place.is_unique else None
            self._frames = (*self._frames, _Frame(is_array, place, 0, at + 1, seen))
            self._in_key = not is_array
            self._place = place.item(0) if is_array else place
        elif char in "]}":
            self._frames = self._frames[:-1]
            self._in_key = False
            differs = differs and self._item_ends(at + 1)
        elif char == ",":
            frame = self._frames[-1]
            self._in_key = not frame.is_array
            if frame.is_array:
                frame = frame._replace(n_before=frame.n_before + 1, start=at + 1)
                self._frames = (*self._frames[:-1], frame)
                self._place = frame.place.item(frame.n_before)
        elif char == ":":
            self._in_key = False
        elif not char.isspace():
            self._in_scalar = True
        return differs

    def _item_ends(self, end: int) -> bool:
        """End a value. Return whether it differs from the array's others."""
        if not self._frames or self._frames[-1].seen is None:
            return True
        frame = self._frames[-1]
        assert frame.seen is not None
        value = _value(self._text[frame.start : end])
        self._frames = (*self._frames[:-1], frame._replace(seen=frame.seen | {value}, start=-1))
        return value not in frame.seen

    def _can_differ(self) -> bool:
        """Return whether the open or the next item can still differ from the others; True if that is unknown."""
        frame = self._frames[-1] if self._frames else None
        if frame is None or not frame.seen or frame.start < 0:
            return True
        item = self._text[frame.start :].lstrip()
        values, texts = self._place.values, self._place.texts
        at = first = bisect_left(texts, item)
        while at < len(texts) and texts[at].startswith(item):
            if values[texts[at]] not in frame.seen:
                return True
            at += 1
        if at > first:
            return False
        if self._place.is_integer and item in _ZEROS:
            return _value(item) not in frame.seen
        return not any(item and text.startswith(item) and _value(text) in frame.seen for text in _LITERALS)


def _value(text: bytes) -> Hashable:
    """Return equal objects for equal JSON values: 1 and 1.0 are equal, 1 and true are not.

    For a value of several hundred levels, return the text itself.
    """
    try:
        return _hashable(json.loads(text, parse_int=Decimal))  # int() rejects thousands of digits
    except RecursionError:
        return b"".join(text.split())


def _hashable(value: Any) -> Hashable:
    if isinstance(value, dict):
        return "object", frozenset((key, _hashable(each)) for key, each in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_hashable, value))
    return ("boolean" if isinstance(value, bool) else "scalar"), value


class UniqueItems(MatcherConstraint):
    """Wraps a constraint to also reject the tokens that repeat an item."""

    __slots__ = ("_cursor", "_tokens")

    def __init__(self, base: MatcherConstraint, cursor: Cursor, tokens: TextTokens) -> None:
        super().__init__(base.matcher, base.tokenizer, base._param, base.recipe)
        self._cursor, self._tokens = cursor, tokens

    def fork(self) -> Self:
        fork = super().fork()
        fork._cursor = self._cursor.fork()
        return fork

    def allows(self, token: int) -> bool:
        return super().allows(token) and self._cursor.fork().take(self._tokens.piece(token))

    def mask(self) -> bytes:
        """Return a bit per token. Raises `InvalidRequest` in an error state, or if only repetitions are left."""
        bits = np.frombuffer(super().mask(), np.uint8).copy()
        began = time.thread_time()
        if not self._cursor.is_inside:
            candidates = _set(bits, self._tokens.items)
        elif self._cursor.in_string and not self._cursor.is_listed:
            candidates = _set(bits, self._tokens.quotes)
        else:
            candidates = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        for token in candidates.tolist():
            if not self._cursor.fork().take(self._tokens.piece(token)):
                bits[token // 8] &= np.uint8(~(1 << token % 8) & 255)
        self._count(time.thread_time() - began)
        if not bits.any():
            raise InvalidRequest("the output cannot be kept to 'uniqueItems': an item repeats another one", self._param)
        return bits.tobytes()

    def masked_by(self) -> None:
        """Return None, because the matcher alone does not determine the mask."""

    def accept(self, token: int) -> None:
        super().accept(token)
        self._cursor.take(self._tokens.piece(token))


def _set(bits: NDArray[np.uint8], tokens: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the `tokens` whose bit is set."""
    found: NDArray[np.intp] = tokens[(bits[tokens // 8] >> (tokens % 8)) & 1 != 0]
    return found
