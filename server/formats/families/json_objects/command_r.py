"""Command R7B, Command A and Cohere's MoE: thoughts, then an answer or a list of actions::

    <|START_THINKING|>I need the weather.<|END_THINKING|><|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}
    ]<|END_ACTION|>

    <|START_THINKING|>...<|END_THINKING|><|START_RESPONSE|>It is sunny.<|END_RESPONSE|>

The MoE says TEXT for RESPONSE. The template numbers calls itself, so the model's ids are not passed on.
"""

import re

from server.formats.calls.json_calls import JsonCalls
from server.formats.parsing.frame import Frame
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

_THINKING = ("<|START_THINKING|>", "<|END_THINKING|>")
_ANSWER = ("<|START_RESPONSE|>", "<|START_TEXT|>")
_SILENT = (*_ANSWER, "<|END_RESPONSE|>", "<|END_TEXT|>", "<|END_OF_TURN_TOKEN|>")
_ACTION, _ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
_ACTIONS = JsonCalls((_ACTION,), _ACTION_END)
_FORM = ToolCallSyntax(
    ('{"tool_call_id": "', re.compile("[0-9]{1,4}"), '", "tool_name": "'),
    ('", "parameters": ',),
    "}",
    open=f"{_ACTION}[\n    ",
    close=f"\n]{_ACTION_END}",
    joint=",\n    ",
    trigger=_ACTION,
    rest_of_list=True,
)
FORMAT = ToolFormat(
    name="command-r",
    parse=Frame(_THINKING, _SILENT, {_ACTION: _ACTIONS.calls}, breaks=_ANSWER).parse,
    breaks=_ANSWER,
    recognised_by=((_ACTION, _ACTION_END),),
    tags=(*_THINKING, *_SILENT, _ACTION, _ACTION_END),
    framed=True,
    reads_reasoning=True,
    turn_start="<|CHATBOT_TOKEN|>",
    leads=_ANSWER,
    forced=_FORM,
)
