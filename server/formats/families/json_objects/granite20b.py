"""Granite 20B function calling: each call behind a tag that nothing closes::

<function_call> {"name": "get_weather", "arguments": {"city": "Paris"}}
<function_call> {"name": "get_time", "arguments": {}}
"""

from server.formats.call_form import json_calls
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

_OPEN = "<function_call>"
FORMAT = ToolFormat(
    name="granite-20b",
    parse=JsonCalls((_OPEN,)).parse,
    recognised_by=((_OPEN, "<function_response>"),),
    tags=(_OPEN,),
    forced=json_calls(f"{_OPEN} ", joint="\n"),
)
