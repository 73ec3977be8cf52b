"""Mistral Small 3.2, Magistral, Devstral, Ministral 3: the name stands in front of its JSON::

    [THINK]...[/THINK]Let me look.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}
    [TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Paris"}

The older list (`tagged.MISTRAL`) is read as well.
"""

import re

from server.formats.calls.json_calls import JsonCalls, json_arguments
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

_OPEN, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_LIST = JsonCalls((_OPEN,))


def _call(turn: StreamParser) -> Steps[None]:
    yield from turn.spaces()
    if (yield from turn.peek()) in ("[", "{"):
        yield from _LIST.calls(turn)
        return
    name, end = yield from turn.word(_CALL_ID, _ARGS, "{")
    call_id = ""
    if end == _CALL_ID:
        call_id, end = yield from turn.word(_ARGS)
    if end == "{":  # Mistral's own tokenizer leaves [ARGS] out of what it shows
        turn.back(end)
    yield from json_arguments(turn, name, call_id)


_FORM = ToolCallSyntax(_OPEN, (_ARGS, (_CALL_ID, re.compile("[A-Za-z0-9]{9}"), _ARGS)), trigger=_OPEN)
FORMAT = ToolFormat(
    name="mistral-args",
    parse=anywhere(_call, _OPEN),
    recognised_by=((_OPEN, _ARGS),),
    tags=(_OPEN, _CALL_ID, _ARGS),
    id_length=9,
    forced=_FORM,
)
