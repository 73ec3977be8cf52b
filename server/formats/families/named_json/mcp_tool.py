"""MiroThinker: a tool of a server, by their names, and JSON::

<use_mcp_tool>
<server_name>generic-extras</server_name>
<tool_name>get_weather</tool_name>
<arguments>
{"city": "Paris"}
</arguments>
</use_mcp_tool>
"""

import re

from server.formats.calls.json_calls import json_arguments
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

_OPEN, _CLOSE = "<use_mcp_tool>", "</use_mcp_tool>"
_SERVER, _SERVER_END = "<server_name>", "</server_name>"
_NAME, _NAME_END = "<tool_name>", "</tool_name>"
_ARGUMENTS, _ARGUMENTS_END = "<arguments>", "</arguments>"


def _calls(turn: StreamParser) -> Steps[None]:
    """Servers mean nothing here."""
    yield from turn.spaces()
    found = yield from turn.expect(_SERVER, _NAME)
    while found != _CLOSE:
        turn.certain()
        if found == _SERVER:
            yield from turn.word(_SERVER_END)
            yield from turn.spaces()
            yield from turn.expect(_NAME)
        name, _ = yield from turn.word(_NAME_END)
        yield from turn.spaces()
        yield from turn.expect(_ARGUMENTS)
        yield from json_arguments(turn, name)
        yield from turn.spaces()
        yield from turn.take(_ARGUMENTS_END)
        turn.mark()
        yield from turn.spaces()
        found = yield from turn.expect(_SERVER, _NAME, _CLOSE)


FORMAT = ToolFormat(
    name="mcp-tool",
    parse=anywhere(_calls, _OPEN),
    recognised_by=((_OPEN, _NAME),),
    tags=(_OPEN, _CLOSE),
    forced=ToolCallSyntax(
        (_SERVER, re.compile("[A-Za-z0-9_-]{1,64}"), f"{_SERVER_END}\n{_NAME}"),
        (f"{_NAME_END}\n{_ARGUMENTS}\n",),
        f"\n{_ARGUMENTS_END}",
        open=f"{_OPEN}\n",
        close=f"\n{_CLOSE}",
        joint="\n",
        trigger=_OPEN,
        rest_of_list=True,
    ),
)
