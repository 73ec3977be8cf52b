"""Calls with one text per argument, as in XML-like formats. They become one JSON object with types from the schema."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pydantic_core

from server.formats.calls import python_calls
from server.formats.calls.json_calls import json_arguments
from server.formats.calls.json_text import encodable, escaped
from server.formats.parameter_schema import NOT_STRING, STRING, kind_of, member, types_of
from server.formats.parsing.reader import EndOfText, NotMarkup, Reader, Steps
from server.formats.parsing.stream_parser import Parse, StreamParser
from server.formats.tool_call_syntax import Markup, Parameters, ToolCallSyntax, parts

_TAG = re.compile("<[^<>]+>")
_CUT_TAG = re.compile("<[^<>]{0,32}$")
_SCALAR = re.compile(r"[\w.+-]*", re.ASCII)
_IN_STRING = re.compile(r'\s*(?=[\[{"])(?:[\s\w{}\[\]:,.+-]|"(?:[^"\\\x00-\x1f]|\\.)*+")*+"(?:[^"\\\x00-\x1f]|\\.)*+')
"""JSON from the start of a list, an object or a string that ends inside a string."""
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*+(?:'|\Z)|"(?:[^"\\]|\\.)*+(?:"|\Z)|\s+|\b(?:True|False|None)\b""", re.DOTALL)
_SCALAR_SO_FAR = re.compile(r"\s*+(?:[tfnTFN][a-zA-Z]{0,4}|[\d.eE+-]*)\s*+\Z")
_VALUE_SO_FAR = re.compile(rf"\s*+[\[{{]|{_SCALAR_SO_FAR.pattern}")
"""The start of a value that may become a constant or a number, or also a list or an object."""
_MAX_UNDECIDED = 64
"""The parts of a value after which it is not examined again before its end."""
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_TYPE = re.compile(r'\s*(?:(?:string|type)="|<\S*arg_type>\s*)(\w+)')
"""A parameter's attribute with its type: ``string``, ``str``, ``true`` (for a string) or another one."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter's name. Its value is the text before one of ``ends``. ``types``: if the format specifies them."""

    name: str
    ends: tuple[str, ...]
    types: frozenset[str] | None = None


def parameter_calls(syntax: ToolCallSyntax) -> Parse:
    """Return the parser of all calls after an opening, or of one call if its name directly follows the opening."""
    call = parameter_call(syntax)
    before = str(syntax.before) if syntax.open else str(syntax.before).removeprefix(syntax.openings[0]).strip()
    return block_calls(before, (syntax.close.strip() or syntax.after.strip(),), call) if before else call


def block_calls(before: str, closings: tuple[str, ...], call: Parse) -> Parse:
    """Return the parser of calls up to one of `closings`, each parsed by `call` after `before`."""

    def calls(turn: StreamParser) -> Steps[None]:
        yield from turn.spaces()
        yield from turn.expect(before)
        while True:
            yield from call(turn)
            turn.end_call()
            yield from turn.spaces()
            if (yield from turn.expect(before, *closings)) in closings:
                return

    return calls


def parameter_call(syntax: ToolCallSyntax) -> Parse:
    """Return the parser of one call after the markup before its name, in a syntax whose arguments are `Parameters`.

    A name may have quotes around it, with attributes after them. After a name without quotes the arguments may also be
    one JSON object.
    """
    given, after_name = syntax.arguments, syntax.after_name[0]
    assert isinstance(given, Parameters)
    is_quoted = str(syntax.before).endswith('"')
    name_ends = _name_ends(after_name) if is_quoted else (">", *_TAG.findall(str(after_name)))
    key_ends = _name_ends(given.before_value) or (">",)
    ends = tuple(filter(None, (given.end, syntax.after.strip())))

    def call(turn: StreamParser) -> Steps[None]:
        turn.certain()
        if is_quoted:
            name, _ = yield from _name(turn, name_ends)
        else:
            yield from turn.spaces()
            name = yield from turn.name()
            yield from turn.spaces()
            yield from turn.take(*name_ends)
            yield from turn.spaces()
            if (yield from turn.peek()) == "{":
                yield from json_arguments(turn, name)
                yield from turn.skip(given.end)
                return
            turn.back((yield from turn.expect(given.before, *ends)))
            if not name:
                raise NotMarkup
        turn.begin(name)
        schema = turn.options.functions.get(name, {})

        def value(argument: Argument) -> Steps[None]:
            types = argument.types or types_of(member(schema, argument.name), schema)
            end = yield from typed_value(turn, types, argument.ends)
            turn.back(end[len(end.rstrip("\n<")) :])  # the value's end marker

        yield from members(turn, lambda: argument(turn), value)

    def argument(turn: StreamParser) -> Steps[Argument | None]:
        yield from turn.spaces()
        found = yield from turn.expect(given.before, *ends)
        if found != given.before:
            turn.back("" if found == given.end else found)
            return None
        key, attributes = yield from _name(turn, key_ends)
        if given.verbatim and (yield from turn.take(given.verbatim[0])):
            return Argument(key, given.verbatim[1:], STRING)
        kind = _TYPE.match(attributes)
        types = None if kind is None else STRING if kind[1] in ("string", "str", "true") else NOT_STRING
        value_ends = (given.after, *given.never)
        if given.after.startswith("\n") and not (yield from turn.take("\n")):  # the value is on the same line
            value_ends = (given.after.strip(),)
        return Argument(key, value_ends, types)

    return call


def _name_ends(after: Markup) -> tuple[str, ...]:
    """Return the text that ends a name before that markup, and the text that ends the attributes after the name."""
    first, last = parts(after)[0], parts(after)[-1]
    assert isinstance(first, str)
    assert isinstance(last, str)
    return ('"', last.rpartition('"')[2].strip()) if first[0] == '"' else tuple(_TAG.findall(first))


def _name(turn: StreamParser, ends: tuple[str, ...]) -> Steps[tuple[str, str]]:
    """Return a name and the attributes after it."""
    name, _ = yield from turn.word(ends[0])
    attributes = (yield from turn.word(*ends[1:]))[0] if len(ends) > 1 else ""
    if not name.strip():
        raise NotMarkup
    return name.strip(), attributes


def invoke_syntax(block: str, prefix: str = "", *, typed: bool = False, **options: Any) -> ToolCallSyntax:
    """Return the syntax of ``invoke`` elements with ``parameter`` elements, in a block of that name::

        <block>
        <invoke name="get_weather">
        <parameter name="city">Paris</parameter>
        </invoke>
        </block>

    ``prefix`` precedes each element's name. ``typed``: parameters have the attribute ``string="true"`` or ``"false"``.
    """
    string, other = ('" string="true">', '" string="false">') if typed else ('">', None)
    opening, closing = f'<{prefix}parameter name="', f"</{prefix}parameter>"
    return ToolCallSyntax(
        f'<{prefix}invoke name="',
        ('">\n',),
        open=f"<{prefix}{block}>\n",
        close=f"\n</{prefix}{block}>",
        separator="\n",
        arguments=Parameters(opening, string, closing, "\n", f"</{prefix}invoke>", before_json_value=other),
        **options,
    )


def members(
    turn: StreamParser, next_member: Callable[[], Steps[Argument | None]], value: Callable[[Argument], Steps[None]]
) -> Steps[None]:
    """Emit the members of an object, whose values `value` parses. `next_member` returns None at the end, and raises
    `NotMarkup` for other text.
    """
    separator, end = "{", "{}"
    while True:
        try:
            found = yield from next_member()
        except (NotMarkup, EndOfText):
            turn.close_arguments(end)
            raise
        if found is None:
            turn.arguments(end)
            return
        turn.arguments(separator + json.dumps(encodable(found.name), ensure_ascii=False) + ": ")
        separator, end = ", ", "}"
        yield from value(found)


def typed_value(turn: StreamParser, types: frozenset[str], ends: tuple[str, ...]) -> Steps[str]:
    """Emit the text before one of `ends` as JSON. Other types than strings are emitted when complete, also a string
    while it may still become a value of another type.

    Strings inside a JSON value may contain `ends`, because grammars allow them there.
    """
    parts: list[str] = []
    n_checked, quote, is_text = 0, "", types == STRING
    other = _SCALAR_SO_FAR if types.isdisjoint(("array", "object")) else _VALUE_SO_FAR

    def take(text: str) -> None:
        nonlocal is_text
        if is_text:
            turn.arguments(escaped(text))
            return
        parts.append(text)
        if "string" in types and len(parts) <= _MAX_UNDECIDED and not other.match(begun := "".join(parts)):
            is_text = True
            turn.arguments(f'"{escaped(begun)}')

    if is_text:
        turn.arguments('"')
    try:
        while True:
            end = yield from turn.until(ends, take)
            if "string" in types or not _IN_STRING.fullmatch(quote + "".join(parts[n_checked:])):
                break
            parts.append(end)  # in a string of a JSON value
            n_checked, quote = len(parts), '"'
    except EndOfText:
        if not is_text:
            turn.arguments(_truncated_value("".join(parts), types))
        raise
    turn.arguments('"' if is_text else as_json("".join(parts), types))
    return end


def as_json(text: str, types: frozenset[str]) -> str:
    """Return `text` unchanged if it is JSON of one of these types, else as a JSON string."""
    stripped, may_be_text = text.strip(), "string" in types
    for read in (str, _from_literal) if may_be_text else (str, _from_literal, _from_python):
        candidate = read(stripped)
        kind = _kind(candidate)
        if kind != "string" and (kind in types or (kind == "integer" and "number" in types)):
            return candidate
        if kind and not may_be_text:
            return candidate
    if stripped.lower() in ("true", "false") and "boolean" in types and not may_be_text:
        return stripped.lower()
    return f'"{escaped(text)}"'


def _truncated_value(text: str, types: frozenset[str]) -> str:
    """Return the JSON of a truncated value. Partial markup after the value is dropped."""
    text = _CUT_TAG.sub("", text).strip()
    if text[:1] in ("{", "["):
        try:
            pydantic_core.from_json(text, allow_partial=True)
        except ValueError:
            pass
        else:
            return text
    if "string" in types:
        return f'"{escaped(text)}'
    return text if _SCALAR.fullmatch(text) else ""


def _from_literal(text: str) -> str:
    """Return a Python literal such as ``{'a': True}`` as JSON, because some templates render values as Python does.

    Other text becomes invalid JSON.
    """
    return _TOKEN.sub(_json_token, text) if text[:1] in ("{", "[") else _CONSTANTS.get(text, "")


def _json_token(found: re.Match[str]) -> str:
    """Return a string, white space or a constant of a Python literal as JSON."""
    token = found[0]
    if token[0] not in "'\"":
        return _CONSTANTS.get(token, " ")
    if "\\" in token:
        return _parsed(token) or token
    return f'"{escaped(token[1:-1])}"' if token[0] == token[1:][-1:] else token


def _from_python(text: str) -> str:
    """Return text in brackets as JSON. What is no Python literal in it becomes strings."""
    return _parsed(text) if text[:1] in ("{", "[", "(") else ""


def _parsed(text: str) -> str:
    """Return what `python_calls` reads as JSON; "" if that is not the whole text."""
    parts: list[str] = []
    reader = Reader(text)
    try:
        reader.run(python_calls.value(reader, parts.append))
    except EndOfText:
        return ""
    return "" if reader.text else "".join(parts)


def _kind(text: str) -> str:
    """Return the type of a JSON text; "" if it is invalid."""
    try:
        return kind_of(orjson.loads(text))
    except ValueError:
        return ""
