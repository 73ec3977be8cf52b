"""Apriel and MiniMax M1: JSON in a tag around all calls, as a list or line by line::

<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "call1"}]</tool_calls>

<tool_calls>
{"name": "get_weather", "arguments": {"city": "Paris"}}
{"name": "get_time", "arguments": {}}
</tool_calls>
"""

from server.formats.call_form import json_list
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

_TAGS = ("<tool_calls>", "</tool_calls>")
_FORM = json_list(*_TAGS)
FORMAT = ToolFormat(
    name="tool-calls-tag",
    parse=JsonCalls(_TAGS[:1], _TAGS[1]).parse,
    recognised_by=(_TAGS,),
    tags=_TAGS,
    forced=_FORM,
)
