"""Parses Python calls and converts them to JSON incrementally::

    get_weather(city='Paris', days=3, units=["C", 'F'], exact=True)

Positional arguments get the names of the schema's properties, in order. A value that is not a literal becomes a string.
"""

import json
import re

from server.formats.calls.json_calls import several
from server.formats.calls.json_text import escaped
from server.formats.parsing.reader import Emit, EndOfText, NotMarkup, Reader, Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import TOOL_NAME

MAX_DEPTH = 64  # maximum nesting; deeper values are text
_KEY = re.compile(r"\w*")
_SCALAR = re.compile(r"[^,()\[\]{}'\"]*")
_KEY_TEXT = re.compile(r"[^,()\[\]{}:'\"]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_N_DIGITS = {"x": 2, "u": 4, "U": 8}
_OPENINGS = re.compile(r"[\[({]*")
_CLOSING = {"[": "]", "(": ")", "{": "}"}


def call(turn: StreamParser) -> Steps[None]:
    """Parse a call of a known function. Raises `NotMarkup`."""
    name = yield from turn.match(TOOL_NAME)
    if not turn.knows(name):
        raise NotMarkup
    yield from turn.expect("(")
    turn.certain()
    properties = turn.options.functions.get(name, {}).get("properties")
    names = iter(properties if isinstance(properties, dict) else ())
    separator = "{"
    while True:
        yield from turn.spaces()
        if (yield from turn.take(")")):
            break
        key, begun = yield from _argument(turn)
        if key is None:
            key = next(names, None)
        if key is None and separator == "{":
            raise NotMarkup
        if separator == "{":
            turn.begin(name)
        turn.arguments(separator + json.dumps(key or "", ensure_ascii=False) + ": ")
        separator = ", "
        yield from value(turn, turn.arguments, begun=begun)
        yield from turn.spaces()
        yield from _comma(turn, ")")
    if separator == "{":
        turn.begin(name)
        turn.arguments("{")
    turn.arguments("}")


calls = several(call, separators=(",", ";"))


def _argument(turn: StreamParser) -> Steps[tuple[str | None, str]]:
    """Return the key of a named argument, or the start of a positional one's value."""
    word = yield from turn.match(_KEY, limit=None)
    if not word:
        return None, ""
    yield from turn.spaces()
    if (yield from turn.take("=")):
        yield from turn.spaces()
        return word, ""
    return None, word


def value(reader: Reader, emit: Emit, *, begun: str = "", depth: int = 0, quote: str = "") -> Steps[None]:
    """Emit a Python or JSON literal as JSON. ``begun``: its already consumed start. ``quote``: other markup around
    strings, "" for none.
    """
    if quote and (yield from reader.take(quote)):
        yield from _quoted(reader, emit, quote)
        return
    first = yield from reader.peek()
    if first in ("'", '"') and (not begun or begun in "rRbBuUfF"):
        yield from _string(reader, emit, raw=begun in ("r", "R"))
    elif first in _CLOSING and first and not begun and depth < MAX_DEPTH:
        reader.consume(1)
        emit("{" if first == "{" else "[")
        yield from _items(reader, emit, first, depth + 1, quote)
        emit("}" if first == "{" else "]")
    else:
        text = begun + (yield from reader.match(_SCALAR, limit=None)).rstrip()
        if not reader.text:  # truncated within the value
            raise EndOfText
        if not text and depth >= MAX_DEPTH:
            text = yield from reader.match(_OPENINGS, limit=None)
        known = _WORDS.get(text) or (text if _NUMBER.fullmatch(text) else "")
        emit(known or f'"{escaped(text)}"')


def _items(reader: Reader, emit: Emit, opening: str, depth: int, quote: str) -> Steps[None]:
    """Parse the contents of brackets and the closing one."""
    closing, separator = _CLOSING[opening], ""
    while True:
        yield from reader.spaces()
        if (yield from reader.take(closing)):
            return
        emit(separator)
        separator = ", "
        if opening == "{":
            yield from _key(reader, emit, quote)
        yield from value(reader, emit, depth=depth, quote=quote)
        yield from reader.spaces()
        yield from _comma(reader, closing)


def _key(reader: Reader, emit: Emit, quote: str) -> Steps[None]:
    """Emit a key of a dict with quotes."""
    if quote and (yield from reader.take(quote)):
        yield from _quoted(reader, emit, quote)
    elif (yield from reader.peek()) in ("'", '"'):
        yield from _string(reader, emit)
    else:
        text = yield from reader.match(_KEY_TEXT, limit=None)
        emit(f'"{escaped(text.strip())}"')
    yield from reader.spaces()
    yield from reader.take(":")
    yield from reader.spaces()
    emit(": ")


def _quoted(reader: Reader, emit: Emit, quote: str) -> Steps[None]:
    """Emit the text up to `quote` as a JSON string."""
    emit('"')
    yield from reader.until((quote,), lambda text: emit(escaped(text)))
    emit('"')


def _comma(reader: Reader, closing: str) -> Steps[None]:
    """Parse the separator of two values. An unexpected character is skipped."""
    if (yield from reader.take(",")):
        return
    char = yield from reader.peek()
    if not char:
        raise EndOfText
    if char != closing and char in ")]}:":
        stray = reader.consume(1)
        if isinstance(reader, StreamParser):
            reader.content(stray)


def _string(reader: Reader, emit: Emit, *, raw: bool = False) -> Steps[None]:
    quote = reader.consume(1)
    if (yield from reader.take(quote * 2)):
        quote *= 3
    emit('"')

    def text(part: str) -> None:
        emit(escaped(part))

    while (yield from reader.until((quote, "\\"), text)) != quote:
        while not reader.text:
            yield from reader.more()
        char = reader.consume(1)
        if raw:
            emit(escaped("\\" + char))
        elif char in _N_DIGITS:
            emit((yield from _code(reader, char)))
        else:
            emit(escaped(_ESCAPES.get(char, char if char in "\\'\"" else "\\" + char)))
    emit('"')


def _code(reader: Reader, kind: str) -> Steps[str]:
    """Return the character of a numeric escape, in JSON form."""
    digits = ""
    while len(digits) < _N_DIGITS[kind]:
        char = yield from reader.peek()
        if not char or char not in "0123456789abcdefABCDEF":
            return escaped(f"\\{kind}{digits}")
        digits += reader.consume(1)
    code = int(digits, 16)
    if code > 0x10FFFF:
        return escaped(f"\\{kind}{digits}")
    return f"\\u{code:04x}" if 0xD800 <= code < 0xE000 else escaped(chr(code))
