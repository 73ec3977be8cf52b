"""Kimi K2: a section of calls, whose ids hold the function's name and a counter::

    <think>...</think><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>
    {"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>

K2 leaves out the section's tags or the end of its thoughts at times. Its ids reach the client: the model is used to
them in the results.
"""

import re

from server.formats.calls.json_calls import json_arguments
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere
from server.formats.tool_call_syntax import TOOL_NAME, ToolCallSyntax
from server.formats.tool_format import ToolFormat

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(rf"\s*((?:functions\.)?({TOOL_NAME.pattern}?)(?::\d+)?)\s*")


def _call(turn: StreamParser) -> Steps[None]:
    header, _ = yield from turn.word(_ARGUMENTS)
    found = _ID.fullmatch(header)
    if found is None:
        raise NotMarkup
    yield from json_arguments(turn, found[2], found[1] if ":" in found[1] else "")
    yield from turn.spaces()
    if (yield from turn.take(_CALL_END)):
        turn.mark()


_FORM = ToolCallSyntax(
    f"{_CALL}functions.",
    ((":", re.compile("[0-9]{1,3}"), _ARGUMENTS),),
    _CALL_END,
    open=_SECTION,
    close=_SECTION_END,
    trigger=_SECTION,
    rest_of_list=True,
)
FORMAT = ToolFormat(
    name="kimi-k2",
    parse=anywhere(_call, _CALL, silent=(_SECTION, _SECTION_END)),
    recognised_by=((_SECTION, _CALL),),
    tags=(_SECTION, _SECTION_END, _CALL, _ARGUMENTS, _CALL_END),
    also_opened_by=(_CALL,),
    forced=_FORM,
)
