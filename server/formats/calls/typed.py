"""Arguments as one text per parameter, as in XML-like formats. They are converted to one JSON object with types from
the schema.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from server.formats.calls import python_calls
from server.formats.calls.json_text import encodable, escaped
from server.formats.parameter_schema import STRING, kind_of, member, types_of
from server.formats.parsing.reader import EndOfText, NotMarkup, Reader, Steps
from server.formats.parsing.stream_parser import StreamParser


@dataclass(frozen=True, slots=True)
class Argument:
    """The text after it, up to one of ``ends``, is its value. ``types``: if the format itself has types."""

    name: str
    ends: tuple[str, ...]
    types: frozenset[str] | None = None


def typed_call(turn: StreamParser, name: str, next_argument: Callable[[], Steps[Argument | None]]) -> Steps[None]:
    """Parse a call with `next_argument`, which returns None at the end. It raises `NotMarkup` for text that is no
    argument, which ends the call and becomes content.
    """
    turn.begin(name, "")
    schema = turn.how.functions.get(name, {})
    joint = "{"
    while True:
        turn.mark()
        try:
            argument = yield from next_argument()
        except (NotMarkup, EndOfText):
            turn.arguments("{}" if joint == "{" else "}")
            raise
        turn.settle()
        if argument is None:
            turn.arguments("{}" if joint == "{" else "}")
            return
        turn.arguments(joint + json.dumps(encodable(argument.name), ensure_ascii=False) + ": ")
        joint = ", "
        types = argument.types or types_of(member(schema, argument.name), schema)
        end = yield from typed_value(turn, types, argument.ends)
        turn.back(end[len(end.rstrip("\n<")) :])  # the value's end marker


def typed_value(turn: StreamParser, types: frozenset[str], ends: tuple[str, ...]) -> Steps[str]:
    """Emit the text before one of `ends` as JSON. Strings are streamed, other types are emitted when complete."""
    if types == STRING:
        turn.arguments('"')
        end = yield from turn.until(ends, lambda text: turn.arguments(escaped(text)))
        turn.arguments('"')
        return end
    parts: list[str] = []
    try:
        end = yield from turn.until(ends, parts.append)
    except EndOfText:
        turn.arguments("".join(parts).strip())  # truncated: the text so far
        raise
    turn.arguments(as_json("".join(parts), types))
    return end


def as_json(text: str, types: frozenset[str]) -> str:
    """Return `text` unchanged if it is JSON of one of these types, else as a JSON string."""
    stripped = text.strip()
    for read in (_as_it_is, _from_python):
        candidate = read(stripped)
        kind = _kind(candidate)
        if kind in types or (kind == "integer" and "number" in types):
            if kind != "string":
                return candidate
        elif kind and "string" not in types:
            return candidate
    if stripped.lower() in ("true", "false") and "boolean" in types and "string" not in types:
        return stripped.lower()
    return f'"{escaped(text)}"'


def _as_it_is(text: str) -> str:
    return text


def _from_python(text: str) -> str:
    """A Python literal as JSON, ``{'a': True}``, which templates teach where they print values as they are."""
    if text[:1] not in ("{", "[", "("):
        return {"True": "true", "False": "false", "None": "null"}.get(text, "")
    parts: list[str] = []
    reader = Reader(text)
    try:
        reader.run(python_calls.value(reader, parts.append))
    except EndOfText:
        return ""
    return "" if reader.text else "".join(parts)


def _kind(text: str) -> str:
    """The type of a JSON text; "" when it is none."""
    try:
        return kind_of(json.loads(text, parse_constant=_refused))
    except (ValueError, RecursionError):
        return ""


def _refused(constant: str) -> None:
    raise ValueError(constant)
