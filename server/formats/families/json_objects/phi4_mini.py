"""Phi-4-mini: a JSON list behind one of two openings::

<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>
functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]
"""

from server.formats.call_form import json_list
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

_TAGS = ("<|tool_call|>", "<|/tool_call|>")
_FORM = json_list(*_TAGS)
FORMAT = ToolFormat(
    name="phi4-mini",
    parse=JsonCalls((_TAGS[0], "functools"), _TAGS[1]).parse,
    recognised_by=(("<|tool|>", "<|/tool|>"),),
    tags=_TAGS,
    forced=_FORM,
)
