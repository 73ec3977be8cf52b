"""xLAM 2: a JSON list as the whole message, at times in a fence or behind a tag::

[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {}}]

Only for functions that are known: any other list is an answer.
"""

from server.formats.calls.json_calls import JsonCalls
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import json_list
from server.formats.tool_format import ToolFormat

_OPENINGS = ("```json", "```", "[TOOL_CALLS]", "<tool_call>")
_CLOSINGS = ("```", "</tool_call>")
_LIST = JsonCalls(())


def parse(turn: StreamParser) -> Steps[None]:
    """Parse a list at the start; the rest is content."""
    turn.mark()
    yield from turn.spaces()
    yield from turn.take(*_OPENINGS)
    yield from turn.spaces()
    if (yield from turn.peek()) in ("[", "{"):
        yield from turn.attempt(turn.settle(), _calls(turn), doubtful=True)
    turn.give_back()


def _calls(turn: StreamParser) -> Steps[None]:
    yield from _LIST.calls(turn, strict=True)
    turn.mark()
    yield from turn.spaces()
    if (yield from turn.take(*_CLOSINGS)):
        turn.mark()


FORMAT = ToolFormat(
    name="xlam",
    parse=parse,
    recognised_by=(('[{"name": "tool_call_name"',),),
    forced=json_list("", trigger='[{"name": "', by_name=True, at_start=True),
)
