"""Parses JSON values of an output while they are generated.

Values are not validated: the arguments reach the client unchanged. Only raw control characters in strings (mostly
newlines), which JSON forbids and models generate, are escaped.
"""

import json
import re

from server.formats.parsing.reader import Emit, NotMarkup, Reader, Steps

_FLAT = re.compile(r"""(?:[^{}\[\]"\x00-\x1f]|[\n\r\t]|"(?:[^"\\\x00-\x1f]|\\.)*+")*+""")  # with whole strings
_IN_STRING = re.compile(r'["\\]')
_SCALAR = re.compile(r"[^\s,\]}]*")
SCALARS = re.compile(r"true|false|null|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_ESCAPES = {n: json.dumps(chr(n))[1:-1] for n in range(32)}


def value(reader: Reader, emit: Emit) -> Steps[None]:
    """Emit the next JSON value. Raises `NotMarkup` before emitting anything if there is none."""
    first = yield from reader.peek()
    if first and first in "{[":
        yield from _container(reader, emit)
    elif first == '"':
        emit(reader.consume(1))
        yield from _rest_of_string(reader, emit)
    else:
        text = yield from reader.match(_SCALAR)
        if not SCALARS.fullmatch(text):
            raise NotMarkup
        emit(text)


def collected(reader: Reader) -> Steps[str]:
    """Return the text of the next JSON value."""
    parts: list[str] = []
    yield from value(reader, parts.append)
    return "".join(parts)


def string(reader: Reader) -> Steps[str]:
    """Return the next string, decoded. Raises `NotMarkup` if the next value is not a string."""
    if (yield from reader.peek()) != '"':
        raise NotMarkup
    text = yield from collected(reader)
    try:
        return str(json.loads(text))
    except ValueError:
        raise NotMarkup from None


def _container(reader: Reader, emit: Emit) -> Steps[None]:
    depth = 0
    while True:
        flat = _FLAT.match(reader.text)
        n_flat = flat.end() if flat else 0
        taken = reader.consume(n_flat + 1)
        if taken:
            emit(taken)
        else:
            yield from reader.more()
        match taken[n_flat:]:
            case '"':
                yield from _rest_of_string(reader, emit)
            case "{" | "[":
                depth += 1
            case "}" | "]":
                depth -= 1
                if depth == 0:
                    return


def _rest_of_string(reader: Reader, emit: Emit) -> Steps[None]:
    """Parse a string after its opening quote."""
    while True:
        found = _IN_STRING.search(reader.text)
        if found is None:
            if reader.text:
                emit(reader.consume(len(reader.text)).translate(_ESCAPES))
            yield from reader.more()
            continue
        emit(reader.consume(found.end()).translate(_ESCAPES))
        if found[0] == '"':
            return
        while not reader.text:  # the character that the backslash escapes
            yield from reader.more()
        emit(reader.consume(1).translate(_ESCAPES))


def escaped(text: str) -> str:
    """Return the text as it appears inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def encodable(text: str) -> str:
    """Replace lone surrogates, which escapes can create and UTF-8 can't encode."""
    return text.encode(errors="replace").decode()
