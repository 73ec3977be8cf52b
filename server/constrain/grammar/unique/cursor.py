"""Reads JSON as it is written, token by token, and says when an item of a unique array repeats another."""

import json
from bisect import bisect_left
from collections.abc import Hashable
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from server.constrain.grammar.unique.places import Place, UniquePlaces

_QUOTE, _ESCAPE = ord('"'), ord("\\")
_LONGEST_INT = 300  # digits


class _Frame(NamedTuple):
    """An object or array that is open. ``start``: of the item that is being written, in the whole text.

    ``seen``: the items so far where they must differ, else None. ``members``: what an item can be at all, if few.
    """

    is_array: bool
    place: Place
    n_before: int = 0
    start: int = 0
    seen: frozenset[Hashable] | None = None
    members: tuple[str, ...] | None = None


class Cursor:
    """Where the output is. The text is known to be JSON that matches the schema but for the uniqueness."""

    __slots__ = ("_escaped", "_frames", "_in_key", "_in_scalar", "_in_string", "_key", "_place", "_places", "_text")

    def __init__(self, places: UniquePlaces) -> None:
        self._places = places
        self._frames: tuple[_Frame, ...] = ()
        self._place = places.root  # of the next value
        self._text = bytearray()
        self._key = 0  # where the key that is written, or was last written, begins
        self._in_key = self._in_string = self._escaped = self._in_scalar = False

    def fork(self, *, text: bool) -> "Cursor":
        """A copy; with a text of its own where it is to go on, else only to look ahead."""
        copy = Cursor.__new__(Cursor)
        copy._places, copy._frames, copy._place, copy._key = self._places, self._frames, self._place, self._key
        copy._in_key, copy._in_string, copy._escaped = self._in_key, self._in_string, self._escaped
        copy._in_scalar = self._in_scalar
        copy._text = bytearray(self._text) if text else self._text
        return copy

    @property
    def is_inside(self) -> bool:
        """Whether an array whose items must differ is open."""
        return any(frame.seen is not None for frame in self._frames)

    @property
    def in_string(self) -> bool:
        """Whether the next character is one of a string, or its end."""
        return self._in_string

    @property
    def has_members(self) -> bool:
        """Whether the next token belongs to an item whose possible values are known."""
        return bool(self._frames) and self._frames[-1].members is not None

    def take(self, piece: bytes) -> None:
        """Advance by what `may_take`."""
        self._read(piece)
        self._text += piece

    def may_take(self, piece: bytes) -> bool:
        """Whether nothing is repeated with `piece`, and something that isn't can still come."""
        ahead = self.fork(text=False)
        return ahead._read(piece) and ahead._can_differ(piece)

    def _read(self, piece: bytes) -> bool:
        differs = True
        for at, byte in enumerate(piece):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif byte == _ESCAPE:
                    self._escaped = True
                elif byte == _QUOTE:
                    self._in_string = False
                    differs &= self._string_ends(piece, at)
            else:
                differs &= self._structure(chr(byte), piece, at)
        return differs

    def _structure(self, char: str, piece: bytes, at: int) -> bool:
        differs = True
        if self._in_scalar and char in ",]} \t\n\r":
            self._in_scalar = False
            differs = self._item_ends(piece, at)
        if char == '"':
            self._in_string = True
            if self._in_key:
                self._key = len(self._text) + at
            else:
                self._begins(at)
        elif char in "[{":
            self._begins(at)
            self._open(char == "[")
        elif char in "]}":
            self._frames = self._frames[:-1]
            self._in_key = False
            differs &= self._item_ends(piece, at + 1)
        elif char == ",":
            differs &= self._next()
        elif char == ":":
            self._in_key = False
        elif char not in " \t\n\r" and not self._in_scalar:
            self._in_scalar = True
            self._begins(at)
        return differs

    def _begins(self, at: int) -> None:
        """A value begins."""
        if self._frames and self._frames[-1].is_array:
            self._frames = (*self._frames[:-1], self._frames[-1]._replace(start=len(self._text) + at))

    def _open(self, is_array: bool) -> None:
        place = self._place
        unique = is_array and self._places.is_unique(place)
        below = self._places.item(place, 0) if is_array else ()
        members = self._places.members(below) if unique else None
        frame = _Frame(is_array, place, seen=frozenset() if unique else None, members=members)
        self._frames = (*self._frames, frame)
        self._place, self._in_key = below, not is_array

    def _next(self) -> bool:
        """Behind a comma: the next key, or the next item, if there can be one."""
        frame = self._frames[-1]
        if not frame.is_array:
            self._in_key = True
            return True
        n_before = frame.n_before + 1
        self._place = self._places.item(frame.place, n_before)
        members = self._places.members(self._place) if frame.seen is not None else None
        frame = frame._replace(n_before=n_before, members=members, start=0)
        self._frames = (*self._frames[:-1], frame)
        return members is None or bool(_left(frame))

    def _string_ends(self, piece: bytes, at: int) -> bool:
        if self._in_key:
            name = json.loads(self._since(self._key, piece, at + 1))
            self._place = self._places.property(self._frames[-1].place, name)
            return True
        return self._item_ends(piece, at + 1)

    def _item_ends(self, piece: bytes, end: int) -> bool:
        """A value ended before `end`; if it is an item of a unique array: whether it differs from the others."""
        if not self._frames or self._frames[-1].seen is None:
            return True
        frame = self._frames[-1]
        assert frame.seen is not None
        value = _value(self._since(frame.start, piece, end))
        self._frames = (*self._frames[:-1], frame._replace(seen=frame.seen | {value}, members=None))
        return value not in frame.seen

    def _can_differ(self, piece: bytes) -> bool:
        """Whether the item that is being written can still become one that is not there yet."""
        if not self.has_members or not (self._in_string or self._in_scalar):
            return True
        frame = self._frames[-1]
        begun = self._since(frame.start, piece, len(piece))
        left = _left(frame)
        first = bisect_left(left, begun)
        return first < len(left) and left[first].startswith(begun)

    def _since(self, start: int, piece: bytes, end: int) -> bytes:
        """The text from a place in it up to a place in the piece behind it."""
        n_text = len(self._text)
        return bytes(self._text[start:]) + piece[:end] if start < n_text else piece[start - n_text : end]


def _left(frame: _Frame) -> list[bytes]:
    """Return the members that are not there yet, sorted."""
    assert frame.seen is not None
    return _unseen(frame.members or (), frame.seen)


@lru_cache(maxsize=64)
def _unseen(members: tuple[str, ...], seen: frozenset[Hashable]) -> list[bytes]:
    return sorted(text for text, value in _with_values(members) if value not in seen)


@lru_cache(maxsize=64)
def _with_values(members: tuple[str, ...]) -> list[tuple[bytes, Hashable]]:
    return [(text.encode(), _value(text.encode())) for text in members]


def _value(text: bytes) -> Hashable:
    """Equal for equal JSON values (1 and 1.0 are, 1 and true are not); of some hundred levels the text itself."""
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
