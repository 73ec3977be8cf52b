"""Converts any text of a call's arguments to a JSON object, as responses, templates and instructions require.

A truncated object is closed. Text that is no object becomes the member ``arguments`` of one, so that nothing is
lost. `ObjectStream` does the same for streams, in which sent text can't be changed.
"""

import json
import math
import re
from enum import Enum
from typing import Any

import orjson
import pydantic_core


def object_of(text: str) -> dict[str, Any]:
    """Return the arguments as an object."""
    if not text.strip():
        return {}
    value: Any
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        continues = error.msg in ("Extra data", "Expecting ',' delimiter") and text[error.pos :].strip()
        value = text if continues else _closed(text)
    except (ValueError, RecursionError):  # a number of thousands of digits; too deep
        value = _closed(text)
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"arguments": value}


def object_text(text: str, *, whole: bool = False) -> str:
    """Return the text unchanged if it is an object, else a JSON object that contains it.

    ``whole``: return what an `ObjectStream` would send in total, and only the complete members of a truncated
    object, because half a value is no argument to act on.
    """
    try:
        if isinstance(orjson.loads(text), dict):
            return text
    except (ValueError, TypeError):  # the latter for lone surrogates
        pass
    if not whole:  # for prompts: numbers that JSON can't represent keep their text
        return json.dumps(object_of(text), ensure_ascii=False)
    stream = ObjectStream()
    begun = stream.feed(text)
    rest = stream.finish()
    return _json(pydantic_core.from_json(text, allow_partial=True), text) if stream.is_cut else begun + rest


def _json(value: Any, text: str) -> str:
    try:
        return pydantic_core.to_json(value, inf_nan_mode="null").decode()
    except ValueError:  # too deep, or half a character
        return _as_member(text)


def _as_member(text: str) -> str:
    return f'{{"arguments":{json.dumps(text)}}}'


_SPACES = re.compile(r"[ \t\n\r]*+")
_SCALAR = re.compile(r'[^ \t\n\r,:"\[\]{}]*+')
_SCALARS = re.compile(r"true|false|null|-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?")
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")  # Python's, which JSON does not have
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_CHARACTERS = re.compile(
    rf'(?:[^"\\\x00-\x1f\ud800-\udfff]++|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{{4}}|{_PAIR})*+'
)
"""Characters and whole escapes of a string, pairs of surrogates together."""
_MOST_OF_ESCAPE = re.compile(
    r"\\(?:u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?)?"
)
"""A prefix of an escape."""
_MAX_KEY, _MAX_SCALAR = 4096, 1024  # characters: longer text is neither
_CLOSING = {"{": "}", "[": "]", '"': '"'}


def _closed(text: str) -> Any:
    """Close truncated JSON; return the text unchanged if it is invalid in another way."""
    try:
        return pydantic_core.from_json(text, allow_partial="trailing-strings")
    except (ValueError, TypeError):
        return text


class _NotJson(Exception):
    """The text can't become a JSON object."""


class _Next(Enum):
    """The next token of a JSON text."""

    ROOT = 0
    KEY = 1
    FIRST_KEY = 2
    COLON = 3
    VALUE = 4
    FIRST_VALUE = 5
    CHARACTERS = 6
    COMMA = 7
    NOTHING = 8


class ObjectStream:
    """Pass the arguments to `feed` as they are generated, and send the results, which always form the prefix of an
    object.

    If the text stops being JSON, the sent part is closed, and the whole text is appended as the member
    ``arguments``. Truncated text is sent up to where it ends (``is_cut``). A key is sent with its value, and a
    number or a word when it is complete.
    """

    def __init__(self) -> None:
        self.is_cut = False
        self._texts: list[str] = []
        self._unread = ""
        self._pending = ""  # was parsed, and is sent with the next text
        self._open = ""  # open brackets, from the outside in
        self._next = _Next.ROOT
        self._is_empty = True  # no member was sent
        self._broken = False

    def feed(self, text: str) -> str:
        """Return the text to send."""
        self._texts.append(text)
        if self._broken:
            return ""
        text, sent, at = self._unread + text, list[str](), 0
        try:
            while (end := self._read(text, at, sent)) > at:
                at = end
        except _NotJson:
            self._broken = True
        self._unread = text[at:]
        return "".join(sent)

    def finish(self) -> str:
        """Return the rest at the end of the text."""
        text = "".join(self._texts)
        if self._next is _Next.ROOT:
            return _json(object_of(text), text)
        if not self._broken and self._next is _Next.NOTHING:
            return self._pending
        if not self._broken and _may_continue(text):
            self.is_cut = True
            return self._pending + self._unread
        closing = "".join(_CLOSING[each] for each in reversed(self._open[1:]))
        return f"{closing}{'' if self._is_empty else ','}{_as_member(text)[1:]}"

    def _read(self, text: str, at: int, sent: list[str]) -> int:
        """Read one token and return its end. Raises `_NotJson`."""
        if self._next is _Next.CHARACTERS:
            return self._characters(text, at, sent)
        start, at = at, _end(_SPACES, text, at)
        if at == len(text):
            return start
        match self._next, text[at]:
            case ((_Next.ROOT | _Next.VALUE | _Next.FIRST_VALUE), "{" | "[" | '"'):
                return self._opened(text, start, at, sent)
            case (_Next.FIRST_KEY, "}") | (_Next.FIRST_VALUE, "]") | (_Next.COMMA, "}" | "]"):
                return self._closed(text, start, at, sent)
            case ((_Next.VALUE | _Next.FIRST_VALUE), _):
                return self._scalar(text, start, at, sent)
            case ((_Next.KEY | _Next.FIRST_KEY), '"'):
                end = _end(_CHARACTERS, text, at + 1)
                if text[end : end + 1] != '"':
                    return self._waits(text, start, end, len(text) - at <= _MAX_KEY)
                self._next, end = _Next.COLON, end + 1
            case _Next.COLON, ":":
                self._next, end = _Next.VALUE, at + 1
            case _Next.COMMA, ",":
                self._next, end = (_Next.KEY if self._open[-1] == "{" else _Next.VALUE), at + 1
            case _:
                raise _NotJson
        self._pending += text[start:end]
        return end

    @staticmethod
    def _waits(text: str, start: int, end: int, short: bool) -> int:
        """Return `start` if the token that ends at `end` may continue."""
        if short and (end == len(text) or _MOST_OF_ESCAPE.fullmatch(text, end)):
            return start
        raise _NotJson

    def _characters(self, text: str, at: int, sent: list[str]) -> int:
        end = _end(_CHARACTERS, text, at)
        if text[end : end + 1] == '"':
            self._open, self._next, end = self._open[:-1], _Next.COMMA, end + 1
        elif end == at:
            return self._waits(text, at, end, True)
        sent.append(text[at:end])
        return end

    def _opened(self, text: str, start: int, at: int, sent: list[str]) -> int:
        if self._next is _Next.ROOT and text[at] != "{":
            raise _NotJson
        self._is_empty = self._next is _Next.ROOT
        self._open += text[at]
        self._next = {"{": _Next.FIRST_KEY, "[": _Next.FIRST_VALUE, '"': _Next.CHARACTERS}[text[at]]
        return self._send(text[start : at + 1], at + 1, sent)

    def _closed(self, text: str, start: int, at: int, sent: list[str]) -> int:
        if text[at] != _CLOSING[self._open[-1]]:
            raise _NotJson
        if len(self._open) == 1:  # more may follow, which would not be JSON
            self._pending += text[start : at + 1]
            self._next = _Next.NOTHING
            return at + 1
        self._open, self._next = self._open[:-1], _Next.COMMA
        return self._send(text[start : at + 1], at + 1, sent)

    def _scalar(self, text: str, start: int, at: int, sent: list[str]) -> int:
        end = _end(_SCALAR, text, at)
        if end == len(text) and end - at <= _MAX_SCALAR:
            return start
        word = text[at:end]
        if word in _NO_NUMBERS or (_SCALARS.fullmatch(word) and word[-1:].isdigit() and math.isinf(float(word))):
            word = "null"
        elif not _SCALARS.fullmatch(word):
            raise _NotJson
        self._is_empty, self._next = False, _Next.COMMA
        return self._send(text[start:at] + word, end, sent)

    def _send(self, text: str, end: int, sent: list[str]) -> int:
        sent.append(self._pending + text)
        self._pending = ""
        return end


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _may_continue(text: str) -> bool:
    """Return whether it may be a prefix of JSON."""
    try:
        pydantic_core.from_json(text, allow_partial=True)
    except ValueError:
        return False
    return True
