"""Models whose template knows no tools: JSON as the whole message, as the instructions ask for it::

    {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}

In a fence, as a single ``tool_call``, or without anything around the call it is read as well, but only for functions
that are known.
"""

from server.formats.calls import json_text
from server.formats.calls.json_calls import JsonCalls, call_object
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax, WholeJson
from server.formats.tool_format import ToolFormat

_FENCES = ("```json", "```")
_LIST = JsonCalls(())


def parse(turn: StreamParser) -> Steps[None]:
    """Parse a call at the start; the rest is content."""
    turn.mark()
    yield from turn.spaces()
    yield from turn.take(*_FENCES)
    yield from turn.spaces()
    if (yield from turn.peek()) == "{":
        yield from turn.attempt(turn.settle(), _calls(turn), doubtful=True)
    turn.give_back()


def _calls(turn: StreamParser) -> Steps[None]:
    raw = turn.raw or []
    n_before = len(raw)
    yield from turn.expect("{")
    yield from turn.spaces()
    key = yield from json_text.string(turn)
    if key in ("tool_calls", "tool_call"):
        turn.certain()
        yield from turn.spaces()
        yield from turn.expect(":")
        yield from turn.spaces()
        yield from _LIST.calls(turn, strict=True) if key == "tool_calls" else call_object(turn, strict=True)
        turn.mark()
        yield from turn.spaces()
        yield from turn.take("}")
    else:
        turn.back("".join(raw[n_before:]))
        yield from call_object(turn, strict=True)
    turn.mark()
    yield from turn.spaces()
    yield from turn.take("```")


_FORM = ToolCallSyntax(
    '{"name": "',
    ('", "arguments": ',),
    "}",
    open='{"tool_calls": [',
    close="]}",
    joint=", ",
    whole=WholeJson("arguments", "tool_calls"),
    trigger='{"tool_calls":',
    at_start=True,
    rest_of_list=True,
)
FORMAT = ToolFormat(name="generic", parse=parse, recognised_by=(), forced=_FORM)
