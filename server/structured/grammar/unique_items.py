"""`uniqueItems`, which no grammar can express: refuses the tokens that repeat an item.

`UniquePlaces` finds the arrays whose items must differ. `Cursor` follows the JSON as it is written, byte by byte.
While the text of an item is the start of another item's, `UniqueItems` looks ahead, so that no item is begun that can
only repeat one. A reply still fails if that takes more than `MAX_STATES`, or the item is spelled otherwise.
"""

import json
import time
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, Self

import llguidance
import numpy as np
from numpy.typing import NDArray

from server.errors import InvalidRequest
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.grammar.panics import contained
from server.structured.grammar.text_tokens import TextTokens

MARK = "x-unique"
"""The keyword for `uniqueItems` in a rewritten schema, which llguidance ignores."""
MAX_STATES = 500
"""States that are looked at ahead of one token: about 0.1 ms each."""
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_QUOTE, _ESCAPE, _SPACES = ord('"'), ord("\\"), b" \t\n\r"
_LONGEST_INT = 300  # digits


class UniquePlaces:
    """The places of one rewritten schema, in llguidance's `grammar` of it. Only caches change, so forks share it."""

    def __init__(self, grammar: str) -> None:
        document = json.loads(grammar)["grammars"][0]["json_schema"]
        self._definitions = {f"#/$defs/{name}": schema for name, schema in document.get("$defs", {}).items()}
        self._definitions["#"] = document
        self._places: dict[tuple[int, ...], Place] = {}
        self.root = self.place([document])

    def place(self, schemas: Iterable[Any]) -> "Place":
        """Return the place of a value that all of `schemas` concern, with the schemas that apply in place."""
        found: dict[int, Mapping[str, Any]] = {}
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, dict) and id(schema) not in found:
                found[id(schema)] = schema
                waiting += [each for key in _IN_PLACE for each in schema.get(key, ())]
                waiting += [self._definitions[schema["$ref"]]] if "$ref" in schema else []
        key = tuple(found)
        if key not in self._places:
            self._places[key] = Place(self, tuple(found.values()))
        return self._places[key]


class Place:
    """A value's place. ``schemas``: all that concern it. ``is_unique``: whether items of an array here must differ."""

    def __init__(self, places: UniquePlaces, schemas: tuple[Mapping[str, Any], ...]) -> None:
        self._places, self._schemas = places, schemas
        self._below: dict[str | int | None, Place] = {}
        self.is_unique = any(MARK in schema for schema in schemas)

    def property(self, name: str) -> "Place":
        """Return the place of a property's value."""
        # Names that no schema lists share a place: clients choose them, and the cache outlives a reply.
        key = name if any(name in schema.get("properties", ()) for schema in self._schemas) else None
        if key not in self._below:
            self._below[key] = self._places.place(
                each for schema in self._schemas for each in _of_property(schema, name)
            )
        return self._below[key]

    def item(self, index: int) -> "Place":
        """Return the place of an item."""
        index = min(index, max((len(schema.get("prefixItems", ())) for schema in self._schemas), default=0))
        if index not in self._below:
            firsts = ((schema.get("prefixItems", ())[index:] or [schema.get("items")])[0] for schema in self._schemas)
            self._below[index] = self._places.place(firsts)
        return self._below[index]


def _of_property(schema: Mapping[str, Any], name: str) -> list[Any]:
    known = schema.get("properties", {})
    own = known[name] if name in known else schema.get("additionalProperties")
    return [own, *schema.get("patternProperties", {}).values()]


class _Frame(NamedTuple):
    """An open object or array. ``start``: where the current item begins in the text, -1 after its end. ``seen``: the
    values of the items so far, None where they may repeat; ``texts``: their texts in order.
    """

    is_array: bool
    place: Place
    n_before: int = 0
    start: int = -1
    seen: frozenset[Hashable] | None = None
    texts: tuple[bytes, ...] = ()


class Cursor:
    """The position in the output. The text must be JSON that matches the schema apart from uniqueness."""

    __slots__ = ("_escaped", "_frames", "_in_key", "_key", "_place", "_text", "in_scalar", "in_string")

    def __init__(self, root: Place) -> None:
        self._frames: tuple[_Frame, ...] = ()
        self._place = root  # of the next value
        self._text = bytearray()  # without white space between tokens: what `_trim` leaves
        self._key = 0  # where the current key begins in it
        self.in_string = self._in_key = self._escaped = self.in_scalar = False

    def fork(self) -> "Cursor":
        """Return an independent copy."""
        copy = Cursor.__new__(Cursor)
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    @property
    def is_inside(self) -> bool:
        """Whether an array whose items must differ is open."""
        return any(frame.seen is not None for frame in self._frames)

    def repetitions(self) -> Iterator[bytes]:
        """Yield what the open or next item of an array would have to continue with to repeat another one."""
        for frame in self._frames:
            begun = bytes(self._text[frame.start :])
            at = bisect_left(frame.texts, begun) if frame.start >= 0 else len(frame.texts)
            while at < len(frame.texts) and frame.texts[at].startswith(begun):
                yield frame.texts[at][len(begun) :]
                at += 1

    @property
    def may_repeat(self) -> bool:
        """Whether the open or next item of an array may become one of the others."""
        return any(True for _ in self.repetitions())

    def take(self, piece: bytes) -> bool:
        """Advance by a piece. Return False, in an undefined state, if it repeats an item."""
        self._text = bytearray(self._text)
        for byte in piece:
            at = len(self._text)
            if self.in_string or byte not in _SPACES:
                self._text.append(byte)
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
        self._trim()
        return True

    def _trim(self) -> None:
        """Drop the text before all open items of arrays whose items must differ, and before the current key."""
        needed = [frame.start for frame in self._frames if frame.seen is not None and frame.start >= 0]
        n_done = min([*needed, self._key] if self._in_key and self.in_string else needed, default=len(self._text))
        if n_done:
            self._text, self._key = self._text[n_done:], self._key - n_done
            self._frames = tuple(each._replace(start=max(each.start - n_done, -1)) for each in self._frames)

    def _structure(self, char: str, at: int) -> bool:
        """Advance by a character outside of strings. Return whether the item that it ends differs from the others."""
        differs = True
        if self.in_scalar and char in ",]} \t\n\r":
            self.in_scalar = False
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
            self.in_scalar = True
        return differs

    def _item_ends(self, end: int) -> bool:
        """End a value. Return whether it differs from the array's others."""
        if not self._frames or self._frames[-1].seen is None:
            return True
        frame = self._frames[-1]
        assert frame.seen is not None
        text = bytes(self._text[frame.start : end])
        value, at = _value(text), bisect_left(frame.texts, text)
        texts = (*frame.texts[:at], text, *frame.texts[at:])
        self._frames = (*self._frames[:-1], frame._replace(seen=frame.seen | {value}, texts=texts, start=-1))
        return value not in frame.seen


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
    """A matcher's constraint without the tokens that repeat an item."""

    __slots__ = ("_cursor", "_tokens")

    def __init__(self, base: MatcherConstraint, cursor: Cursor, tokens: TextTokens) -> None:
        super().__init__(base.matcher, base.tokenizer, base._param, base.recipe)
        self._cursor, self._tokens = cursor, tokens

    def fork(self) -> Self:
        """Return an independent copy in the same state."""
        made = super().fork()
        made._cursor = self._cursor.fork()
        return made

    def allows(self, token: int) -> bool:
        """Return whether `token` may be next."""
        if not super().allows(token):
            return False
        began = time.thread_time()
        differs = self._differs(token)
        self._count(time.thread_time() - began, uses_fuel=False)
        return differs

    def mask(self) -> bytes:
        """Return a bit per token. Raises `InvalidRequest` when the matcher gave up or only repetitions are left."""
        bits = np.frombuffer(super().mask(), np.uint8).copy()
        began = time.thread_time()
        refused = [token for token in self._ending(bits) if not self._differs(token)]
        differing: list[bytes] = []
        for token, piece in self._alike(bits):
            if not any(longer.startswith(piece) for longer in differing):
                if self._differs(token):
                    differing.append(piece)
                else:
                    refused.append(token)
        for token in refused:
            bits[token // 8] &= np.uint8(~(1 << token % 8) & 255)
        self._count(time.thread_time() - began, uses_fuel=False)
        if not bits.any():
            raise InvalidRequest("the output cannot be kept to 'uniqueItems': an item repeats another one", self._param)
        return bits.tobytes()

    def _ending(self, bits: NDArray[np.uint8]) -> Iterable[int]:
        """Return the allowed tokens that may end an item."""
        if not self._cursor.is_inside:
            return _set(bits, self._tokens.items)
        if self._cursor.in_scalar:
            return _tokens_of(bits)
        return _set(bits, self._tokens.quotes if self._cursor.in_string else self._tokens.ends)

    def _alike(self, bits: NDArray[np.uint8]) -> list[tuple[int, bytes]]:
        """Return the allowed tokens that may continue an item like another one, with their text, longer ones first."""
        rests = sorted(rest.translate(None, _SPACES) for rest in self._cursor.repetitions())
        firsts = np.frombuffer(b"\0" + b"".join({rest[:1] for rest in rests}), np.uint8)
        likely = np.flatnonzero(np.isin(self._tokens.firsts, firsts)) if rests else np.zeros(0, np.intp)
        found = []
        for token in _set(bits, likely):
            piece = self._tokens.pieces[token]
            text = piece.translate(None, _SPACES)
            at = bisect_left(rests, text)
            if at < len(rests) and rests[at].startswith(text):
                found.append((token, piece))
        return sorted(found, key=lambda each: len(each[1]), reverse=True)

    @contained
    def _differs(self, token: int) -> bool:
        """Return whether an allowed token neither repeats an item nor leads to nothing else."""
        cursor = self._cursor.fork()
        if not cursor.take(self._tokens.piece(token)):
            return False
        if not cursor.may_repeat:
            return True
        waiting = [(_after(self.matcher, token), cursor)]
        for _ in range(MAX_STATES):
            if not waiting:
                return False
            state, cursor = waiting.pop()
            continued = self._continued(state, cursor)
            if not all(after.may_repeat for _, after in continued):
                return True
            waiting += [(_after(state, token), after) for token, after in continued]
        return True

    def _continued(self, state: llguidance.LLMatcher, cursor: Cursor) -> list[tuple[int, Cursor]]:
        """Return the tokens that may follow without a repetition; of those that differ at once, only one."""
        found: list[tuple[int, Cursor]] = []
        for token in _tokens_of(np.frombuffer(state.compute_bitmask(), np.uint8)):
            piece, after = self._tokens.piece(token), cursor.fork()
            if (piece.strip() or cursor.in_string) and after.take(piece):
                if not after.may_repeat:
                    return [(token, after)]
                found.append((token, after))
        return found

    def masked_by(self) -> None:
        """Return nothing: the matcher alone does not determine the mask."""

    def accept(self, token: int) -> None:
        """Advance by an allowed token."""
        super().accept(token)
        self._cursor.take(self._tokens.piece(token))


def _after(state: llguidance.LLMatcher, token: int) -> llguidance.LLMatcher:
    state = state.deep_copy()
    state.consume_token(token)
    return state


def _tokens_of(bits: NDArray[np.uint8]) -> Iterator[int]:
    """Yield the tokens whose bit is set."""
    for at in map(int, np.flatnonzero(bits)):
        yield from (at * 8 + bit for bit in range(8) if bits[at] >> bit & 1)


def _set(bits: NDArray[np.uint8], tokens: NDArray[np.intp]) -> list[int]:
    """Return the `tokens` whose bit is set."""
    found: list[int] = tokens[(bits[tokens // 8] >> (tokens % 8)) & 1 != 0].tolist()
    return found
