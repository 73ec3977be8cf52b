"""`uniqueItems`, which no grammar can express: refuses the tokens that repeat an item, or that leave it no other way.

`UniquePlaces` finds the arrays whose items must differ. `Cursor` follows the JSON as it is written, byte by byte, and
says when an item repeats another or must do so. An item's text is kept in a canonical form: without white space outside
strings, and with a blank after each number, `true`, `false` and `null`, so that ``1`` and a prefix of ``12`` differ. A
*dead prefix* is a prefix of an item that every possible continuation turns into one that the array already has. The
dead prefixes that an item leaves are found when it ends, by rolling back a second matcher over bytes. So a reply never
reaches a state from which every continuation is impossible.
"""

import json
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import llguidance
import numpy as np
from numpy.typing import NDArray

from server.errors import InvalidRequest
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.grammar.panics import contained
from server.structured.grammar.text_tokens import TextTokens

MARK = "x-unique"
"""The keyword for `uniqueItems` in a rewritten schema, with its place in the client's. llguidance ignores it."""
MAX_STEPS_BACK = 4096
"""Bytes of an item whose prefixes are examined: about 20 microseconds each."""
_QUOTE, _ESCAPE = ord('"'), ord("\\")
_SPACE = b" \t\n\r"
_AFTER_SCALAR = b",]}"
_LONGEST_INT = 300  # digits

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
        """Return whether the items of an array here must differ."""
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
        """Return a schema and all that concern the same value through it."""
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


class _Frame(NamedTuple):
    """An open object or array.

    ``start``: where the current item begins in the canonical text; ``raw_start``: in the text as written.
    ``seen``: the values of the items so far, None where they may repeat. ``dead``: the shortest dead prefixes.
    """

    is_array: bool
    place: Place
    n_before: int = 0
    start: int = 0
    raw_start: int = 0
    seen: frozenset[Hashable] | None = None
    dead: tuple[bytes, ...] = ()


class Cursor:
    """The position in the output. The text must be JSON that matches the schema apart from uniqueness."""

    __slots__ = (
        *("_ended", "_escaped", "_frames", "_in_key", "_in_scalar", "_in_string", "_key", "_more", "_piece", "_place"),
        *("_places", "_raw", "_text"),
    )

    def __init__(self, places: UniquePlaces) -> None:
        self._places = places
        self._frames: tuple[_Frame, ...] = ()
        self._place = places.root  # of the next value
        self._raw, self._text = bytearray(), bytearray()
        self._piece, self._more = b"", bytearray()  # the current value, as written and canonical
        self._ended = -1  # bytes of `_piece` before the end of an item whose dead prefixes are not known yet
        self._key = 0  # where the current or last key begins in the canonical text
        self._in_key = self._in_string = self._escaped = self._in_scalar = False

    def fork(self, *, text: bool) -> "Cursor":
        """Return a copy. Without ``text`` it shares the text and may only look ahead."""
        copy = Cursor.__new__(Cursor)
        copy._places, copy._frames, copy._place, copy._key = self._places, self._frames, self._place, self._key
        copy._in_key, copy._in_string, copy._escaped = self._in_key, self._in_string, self._escaped
        copy._in_scalar, copy._ended, copy._piece, copy._more = self._in_scalar, -1, b"", bytearray()
        copy._raw, copy._text = (bytearray(self._raw), bytearray(self._text)) if text else (self._raw, self._text)
        return copy

    @property
    def is_inside(self) -> bool:
        """Whether an array whose items must differ is open."""
        return any(frame.seen is not None for frame in self._frames)

    @property
    def in_string(self) -> bool:
        """Whether the next character belongs to a string or ends it."""
        return self._in_string

    def dead_ends(self) -> Iterator[bytes]:
        """Texts that may not follow: each completes a dead prefix of an item that is open or may begin."""
        for frame, begun in self._items():
            yield from (prefix[len(begun) :] for prefix in frame.dead if prefix.startswith(begun))

    def take(self, piece: bytes, state: llguidance.LLMatcher) -> None:
        """Advance by a piece that `may_take` accepts. ``state``: a matcher over bytes before the piece."""
        self._read(piece, state)
        if self._ended >= 0:
            self._find_dead(state)
        self._raw += piece
        self._text += self._more
        self._piece, self._more = b"", bytearray()

    def may_take(self, piece: bytes, state: llguidance.LLMatcher) -> bool:
        """Return whether no item is repeated with `piece`, and the items that it leaves open can still differ."""
        ahead = self.fork(text=False)
        return ahead._read(piece, state) and not any(
            frame.dead and begun.startswith(frame.dead) for frame, begun in ahead._items()
        )

    def _items(self) -> Iterator[tuple[_Frame, bytes]]:
        """Yield each open array with the canonical text of the item that is being written, empty between items."""
        for depth, frame in enumerate(self._frames):
            if frame.dead:
                is_open = depth + 1 < len(self._frames) or self._in_string or self._in_scalar
                yield frame, self._since(frame.start) if is_open else b""

    def _read(self, piece: bytes, state: llguidance.LLMatcher) -> bool:
        differs = True
        self._piece = piece
        for at, byte in enumerate(piece):
            if self._in_string:
                self._more.append(byte)
                if self._escaped:
                    self._escaped = False
                elif byte == _ESCAPE:
                    self._escaped = True
                elif byte == _QUOTE:
                    self._in_string = False
                    differs &= self._string_ends(at)
            else:
                differs &= self._structure(byte, at, state)
        return differs

    def _structure(self, byte: int, at: int, state: llguidance.LLMatcher) -> bool:
        char, differs = chr(byte), True
        is_space = byte in _SPACE
        if self._in_scalar and (is_space or byte in _AFTER_SCALAR):
            self._in_scalar = False
            self._more.append(_SPACE[0])
            differs = self._item_ends(at)
        if is_space:
            return differs
        if char == '"':
            self._in_string = True
            if self._in_key:
                self._key = len(self._text) + len(self._more)
            else:
                self._begin(at)
        elif char in "[{":
            self._begin(at)
            self._open(char == "[")
        elif char in "]}":
            self._frames = self._frames[:-1]
            self._in_key, self._ended = False, -1
        elif char == ":":
            self._in_key = False
        elif char != "," and not self._in_scalar:
            self._in_scalar = True
            self._begin(at)
        self._more.append(byte)
        if char in "]}":
            differs &= self._item_ends(at)
        elif char == ",":
            differs &= self._next(state)
        return differs

    def _begin(self, at: int) -> None:
        """Begin a value."""
        if self._frames and self._frames[-1].is_array:
            start, raw_start = len(self._text) + len(self._more), len(self._raw) + at
            self._frames = (*self._frames[:-1], self._frames[-1]._replace(start=start, raw_start=raw_start))

    def _open(self, is_array: bool) -> None:
        place = self._place
        unique = is_array and self._places.is_unique(place)
        self._frames = (*self._frames, _Frame(is_array, place, seen=frozenset() if unique else None))
        self._place = self._places.item(place, 0) if is_array else ()
        self._in_key = not is_array

    def _next(self, state: llguidance.LLMatcher) -> bool:
        """Go to the next key or item after a comma. Return whether there can be one that differs."""
        frame = self._frames[-1]
        if not frame.is_array:
            self._in_key = True
            return True
        if self._ended >= 0:
            self._find_dead(state)
            frame = self._frames[-1]
        n_before = frame.n_before + 1
        place = self._places.item(frame.place, n_before)
        dead = frame.dead if place == self._place_of_item(frame) else ()  # they belong to one schema of items
        self._place = place
        self._frames = (*self._frames[:-1], frame._replace(n_before=n_before, dead=dead))
        return b"" not in dead

    def _place_of_item(self, frame: _Frame) -> Place:
        return self._places.item(frame.place, frame.n_before)

    def _string_ends(self, at: int) -> bool:
        if self._in_key:
            name = json.loads(self._since(self._key))
            self._place = self._places.property(self._frames[-1].place, name)
            return True
        return self._item_ends(at)

    def _item_ends(self, at: int) -> bool:
        """End a value with or before byte `at` of the piece. Return whether it differs from the array's others."""
        if not self._frames or self._frames[-1].seen is None:
            return True
        frame = self._frames[-1]
        assert frame.seen is not None
        value = _value(self._since(frame.start))
        self._frames = (*self._frames[:-1], frame._replace(seen=frame.seen | {value}))
        self._ended = at
        return value not in frame.seen

    def _find_dead(self, state: llguidance.LLMatcher) -> None:
        """Add the dead prefixes of the item that ended at byte `_ended` of the piece."""
        frame, at, self._ended = self._frames[-1], self._ended, -1
        assert frame.seen is not None
        state = state.deep_copy()
        if not all(state.consume_token(byte) for byte in self._piece[:at]):
            return  # over a limit: the reply can still fail
        n_raw = len(self._raw)
        begun = bytes(self._raw[frame.raw_start :]) if frame.raw_start < n_raw else b""
        raw = begun + self._piece[max(0, frame.raw_start - n_raw) : at]
        if found := _dead_prefixes(raw, frame.seen, frame.dead, state):
            kept = (prefix for prefix in frame.dead if not prefix.startswith(found))
            self._frames = (*self._frames[:-1], frame._replace(dead=(*kept, *found)))

    def _since(self, start: int) -> bytes:
        """Return the canonical text from `start` on."""
        n_text = len(self._text)
        return bytes(self._text[start:] + self._more if start < n_text else self._more[start - n_text :])


def _dead_prefixes(
    raw: bytes, seen: frozenset[Hashable], dead: tuple[bytes, ...], state: llguidance.LLMatcher
) -> tuple[bytes, ...]:
    """Return the shortest prefixes of an item whose continuations all repeat one of `seen`.

    ``raw``: the item as written without the byte that ended it. ``dead``: prefixes known to be dead. ``state``: a
    matcher after `raw`, which is rolled back.
    """
    found: tuple[bytes, ...] = ()
    canonical, prefixes = _prefixes(raw)
    position = len(raw)
    for n_raw, n_canonical, in_string, in_scalar in reversed(prefixes[-MAX_STEPS_BACK:]):
        if position > n_raw and not state.rollback(position - n_raw):
            return found
        position = n_raw
        begun = canonical[:n_canonical]
        mask = state.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
        if not in_string:
            allowed = [byte for byte in allowed if byte not in _SPACE]
        if not begun:
            allowed = [byte for byte in allowed if byte != ord("]")]  # ends the array before its first item
        known = dead + found
        if in_scalar:
            endings = [byte for byte in allowed if byte in _AFTER_SCALAR]
            if not all(_repeats(begun + b" ", byte, seen, known) for byte in endings):
                return found
            allowed = [byte for byte in allowed if byte not in _AFTER_SCALAR]
        if not all(_repeats(begun, byte, seen, known) for byte in allowed):
            return (*found, begun + b" ") if in_scalar else found
        found = (begun,)
    return found


def _prefixes(raw: bytes) -> tuple[bytes, list[tuple[int, int, bool, bool]]]:
    """Return the canonical text of `raw`, and each prefix that does not end with white space.

    Of a prefix: its length, that of its canonical text, and whether it ends inside a string or in a number or word.
    """
    canonical, found = bytearray(), [(0, 0, False, False)]
    in_string = escaped = in_scalar = False
    for at, byte in enumerate(raw, 1):
        if in_string:
            in_string = escaped or byte != _QUOTE
            escaped = not escaped and byte == _ESCAPE
        elif byte in _SPACE:
            continue
        else:
            if in_scalar and byte in _AFTER_SCALAR:
                canonical += b" "
            in_string = byte == _QUOTE
            in_scalar = byte not in b'[]{}:,"'
        canonical.append(byte)
        found.append((at, len(canonical), in_string, in_scalar))
    return bytes(canonical), found


def _repeats(begun: bytes, byte: int, seen: frozenset[Hashable], dead: tuple[bytes, ...]) -> bool:
    """Return whether an item with the prefix `begun` followed by `byte` can only become one of `seen`."""
    longer = begun + bytes([byte])
    if dead and longer.startswith(dead):
        return True
    if byte in _AFTER_SCALAR and begun.endswith(b" ") and begun[:1] not in b'[{"':
        return _value(begun) in seen
    if byte not in b'"]}':
        return False
    try:
        return _value(longer) in seen
    except ValueError:  # not complete yet
        return False


def _value(text: bytes) -> Hashable:
    """Return equal objects for equal JSON values (1 and 1.0 are equal, 1 and true are not). Beyond some hundred levels,
    return the text itself.
    """
    try:
        return _hashable(json.loads(text, parse_int=_integer))
    except RecursionError:
        return text


def _integer(digits: str) -> Any:
    return int(digits) if len(digits) <= _LONGEST_INT else Decimal(digits)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, dict):
        return "object", frozenset((key, _hashable(each)) for key, each in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_hashable, value))
    return ("boolean" if isinstance(value, bool) else "scalar"), value


class UniqueItems(MatcherConstraint):
    """A matcher's constraint without the tokens that repeat an item.

    ``state``: a matcher of the same grammar over bytes.
    """

    __slots__ = ("_base", "_cursor", "_state", "_tokens")

    def __init__(
        self, base: MatcherConstraint, cursor: Cursor, tokens: TextTokens, state: llguidance.LLMatcher
    ) -> None:
        super().__init__(base.matcher, base._n_tokens, base._ends, base._param, base.recipe)
        self._base, self._cursor, self._tokens, self._state = base, cursor, tokens, state

    @contained
    def fork(self) -> "UniqueItems":
        """Return an independent copy in the same state."""
        copy = UniqueItems(self._base.fork(), self._cursor.fork(text=True), self._tokens, self._state.deep_copy())
        copy._since_mask_s, copy._slow_s = self._since_mask_s, self._slow_s
        return copy

    @contained
    def allows(self, token: int) -> bool:
        """Return whether `token` may be next."""
        return super().allows(token) and self._cursor.may_take(self._tokens.piece(token), self._state)

    @contained
    def mask(self) -> bytes:
        """Return a bit per token. Raises `InvalidRequest` when the matcher gave up or only repetitions are left."""
        bits = np.frombuffer(super().mask(), np.uint8).copy()
        began = time.thread_time()
        dead_ends = [self._tokens.beginning_with(text) for text in self._cursor.dead_ends() if text]
        for token in _set(bits, np.concatenate([self._may_end(), *dead_ends])).tolist():
            if not self._cursor.may_take(self._tokens.piece(token), self._state):
                bits[token // 8] &= np.uint8(~(1 << token % 8) & 255)
        self._count(time.thread_time() - began)
        if not bits.any():
            raise InvalidRequest("the output cannot be kept to 'uniqueItems': an item repeats another one", self._param)
        return bits.tobytes()

    def _may_end(self) -> NDArray[np.intp]:
        """Return the tokens that may end an item here."""
        if not self._cursor.is_inside:
            return self._tokens.items
        return self._tokens.quotes if self._cursor.in_string else self._tokens.item_ends

    def masked_by(self) -> None:
        """Return nothing: the matcher alone does not determine the mask."""

    @contained
    def accept(self, token: int) -> None:
        """Advance by an allowed token."""
        super().accept(token)
        began = time.thread_time()
        piece = self._tokens.piece(token)
        self._cursor.take(piece, self._state)
        for byte in piece:
            self._state.consume_token(byte)
        self._state.compute_bitmask()  # gives the lexer new fuel
        self._count(time.thread_time() - began)


def _set(bits: NDArray[np.uint8], tokens: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the `tokens` whose bit is set."""
    found: NDArray[np.intp] = tokens[(bits[tokens // 8] >> (tokens % 8)) & 1 != 0]
    return found
