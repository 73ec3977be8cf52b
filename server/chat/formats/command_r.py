"""Command R7B, Command A and Cohere's MoE: thoughts, then an answer or a list of actions::

    <|START_THINKING|>I need the weather.<|END_THINKING|><|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}
    ]<|END_ACTION|>

    <|START_THINKING|>...<|END_THINKING|><|START_RESPONSE|>It is sunny.<|END_RESPONSE|>

The MoE says TEXT for RESPONSE. The template numbers calls itself, so the model's ids are not passed on.
"""

from server.chat.formats.form import ToolFormat
from server.chat.frame import Frame
from server.chat.json_calls import JsonCalls

_THINKING = ("<|START_THINKING|>", "<|END_THINKING|>")
_ANSWER = ("<|START_RESPONSE|>", "<|START_TEXT|>")
_SILENT = (*_ANSWER, "<|END_RESPONSE|>", "<|END_TEXT|>", "<|END_OF_TURN_TOKEN|>")
_ACTION, _ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
_ACTIONS = JsonCalls((_ACTION,), _ACTION_END)
FORMAT = ToolFormat(
    name="command-r",
    parse=Frame(_THINKING, _SILENT, {_ACTION: _ACTIONS.calls}, breaks=_ANSWER).parse,
    recognised_by=((_ACTION, _ACTION_END),),
    tags=(*_THINKING, *_SILENT, _ACTION, _ACTION_END),
    framed=True,
    thinks=True,
    turn_start="<|CHATBOT_TOKEN|>",
)
