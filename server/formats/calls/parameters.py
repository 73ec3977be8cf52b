"""Calls with one text per argument, as in XML-like formats. They become one JSON object with types from the schema."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from server.formats.calls import python_calls
from server.formats.calls.json_calls import json_arguments
from server.formats.calls.json_text import encodable, escaped
from server.formats.parameter_schema import NOT_STRING, STRING, kind_of, member, types_of
from server.formats.parsing.reader import EndOfText, NotMarkup, Reader, Steps
from server.formats.parsing.stream_parser import Parse, StreamParser, anywhere
from server.formats.tool_call_syntax import TOOL_NAME, Parameters, ToolCallSyntax, parts


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter's name. Its value is the text before one of ``ends``. ``types``: if the format specifies them."""

    name: str
    ends: tuple[str, ...]
    types: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ParameterCalls:
    """Parses calls with an element for each parameter.

    ``openings``: markup before all calls, or before each name if ``call`` is empty. ``call``: markup before each name.
    ``name_end``, ``key_end``: the text after a name; two texts if attributes may be between them. ``key``: markup
    before a parameter's name. ``value_end``, ``end``: markup after a value and after the last one. ``closings``:
    markup after all calls. ``verbatim``: markup before and after a value that is a string in any case. ``type_in``:
    matches a parameter's attributes; its group is ``string``, ``str``, ``true`` or another type. ``silent``: markup
    without meaning. ``bare_name``: the name ends at white space, one of ``name_end`` or other markup, and the arguments
    may be one JSON object.
    """

    openings: tuple[str, ...]
    name_end: tuple[str, ...]
    key: str
    key_end: tuple[str, ...]
    value_end: str
    end: str
    call: str = ""
    closings: tuple[str, ...] = ()
    verbatim: tuple[str, str] | None = None
    type_in: re.Pattern[str] | None = None
    silent: tuple[str, ...] = ()
    bare_name: bool = False

    @property
    def by_opening(self) -> dict[str, Parse]:
        """Return the parser of the calls after each opening."""
        return dict.fromkeys(self.openings, self.calls)

    @property
    def parse(self) -> Parse:
        """Return the parser of an output with calls at any position."""
        return anywhere(self.by_opening, *self.silent)

    def calls(self, turn: StreamParser) -> Steps[None]:
        """Parse the calls after one of the openings. Raises `NotMarkup`."""
        if not self.call:
            yield from self.named_call(turn)
            return
        yield from turn.spaces()
        yield from turn.expect(self.call)
        while True:
            yield from self.named_call(turn)
            turn.end_call()
            yield from turn.spaces()
            if (yield from turn.expect(self.call, *self.closings)) in self.closings:
                return

    def named_call(self, turn: StreamParser) -> Steps[None]:
        """Parse a call after the markup before its name."""
        turn.certain()
        if self.bare_name:
            name = yield from self._bare_name(turn)
            if (yield from turn.peek()) == "{":
                yield from json_arguments(turn, name)
                yield from turn.spaces()
                if (yield from turn.take(self.end)):
                    turn.mark()
                return
            turn.back((yield from turn.expect(self.key, self.end)))
            if not name:
                raise NotMarkup
        else:
            name, _ = yield from _name(turn, self.name_end)
        yield from typed_call(turn, name, lambda: self._argument(turn))

    def _bare_name(self, turn: StreamParser) -> Steps[str]:
        yield from turn.spaces()
        name = yield from turn.match(TOOL_NAME)
        yield from turn.spaces()
        yield from turn.take(*self.name_end)
        yield from turn.spaces()
        return name

    def _argument(self, turn: StreamParser) -> Steps[Argument | None]:
        yield from turn.spaces()
        if (yield from turn.expect(self.key, self.end)) == self.end:
            return None
        key, attributes = yield from _name(turn, self.key_end)
        if self.verbatim and (yield from turn.take(self.verbatim[0])):
            return Argument(key, self.verbatim[1:], STRING)
        given = self.type_in.match(attributes) if self.type_in else None
        types = None if given is None else STRING if given[1] in ("string", "str", "true") else NOT_STRING
        return Argument(key, (self.value_end,), types)


def _name(turn: StreamParser, ends: tuple[str, ...]) -> Steps[tuple[str, str]]:
    """Return a name and the attributes after it."""
    name, _ = yield from turn.word(ends[0])
    attributes = (yield from turn.word(*ends[1:]))[0] if len(ends) > 1 else ""
    if not name.strip():
        raise NotMarkup
    return name.strip(), attributes


def parameter_calls(form: ToolCallSyntax, **options: Any) -> ParameterCalls:
    """Return the parser of calls in that syntax, whose arguments are `Parameters`. ``options`` replace its fields."""
    given = form.arguments
    assert isinstance(given, Parameters)
    name_end, key_end = (str(parts(markup)[0]) for markup in (form.after_name[0], given.before_value))
    derived: dict[str, Any] = {
        "openings": tuple(text for text, _ in form.all_triggers),
        "call": form.before if form.open else "",
        "name_end": (name_end.strip() or name_end,),
        "key": given.before,
        "key_end": (key_end,),
        "value_end": given.after,
        "end": given.end,
        "closings": (form.close.strip(),) if form.open else (),
    }
    return ParameterCalls(**{**derived, **options})


def invokes(prefix: str, *blocks: str) -> ParameterCalls:
    """Return the parser of `invoke_syntax` in blocks of these names, for parameters with types and without."""
    return parameter_calls(
        invoke_syntax(blocks[0], prefix),
        openings=tuple(f"<{prefix}{name}>" for name in blocks),
        closings=tuple(f"</{prefix}{name}>" for name in blocks),
        key_end=('"', ">"),
        type_in=re.compile(r'\s*string="(true|false)"'),
    )


def invoke_syntax(block: str, prefix: str = "", *, typed: bool = False, **options: Any) -> ToolCallSyntax:
    """Return the syntax of ``invoke`` elements with ``parameter`` elements, in a block of that name.

    ``prefix`` precedes each element's name. ``typed``: parameters have the attribute ``string``.
    """
    string, other = ('" string="true">', '" string="false">') if typed else ('">', None)
    opening, closing = f'<{prefix}parameter name="', f"</{prefix}parameter>"
    return ToolCallSyntax(
        f'<{prefix}invoke name="',
        ('">\n',),
        open=f"<{prefix}{block}>\n",
        close=f"\n</{prefix}{block}>",
        joint="\n",
        arguments=Parameters(opening, string, closing, "\n", f"</{prefix}invoke>", before_json_value=other),
        **options,
    )


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
    for read in (str, _from_python):
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


def _from_python(text: str) -> str:
    """Return a Python literal such as ``{'a': True}`` as JSON: some templates show values as Python prints them."""
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
    """Return the type of a JSON text; "" if it is no JSON."""
    try:
        return kind_of(json.loads(text, parse_constant=_refused))
    except (ValueError, RecursionError):
        return ""


def _refused(constant: str) -> None:
    raise ValueError(constant)
