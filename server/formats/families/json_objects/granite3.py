"""Granite 3.0 to 3.3: a JSON list behind a tag; an answer behind thoughts has tags of its own::

    <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]
    <think>...</think><response>It is sunny.</response>

Granite 4 writes as `hermes` does.
"""

from server.formats.call_form import json_list
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat
from server.formats.parsing.answer_tags import AnswerTags

_OPENINGS = ("<|tool_call|>", "<tool_call>")
_LIST = JsonCalls(_OPENINGS, "</tool_call>")


_FORM = json_list(_OPENINGS[0], triggers=_OPENINGS[1:])
FORMAT = ToolFormat(
    name="granite3",
    parse=AnswerTags("<response>", "</response>", _LIST).parse,
    recognised_by=(("<|tool_call|>", "<|start_of_role|>"),),
    tags=("<|tool_call|>", "</tool_call>", "<tool_call>"),
    framed=True,
    forced=_FORM,
)
