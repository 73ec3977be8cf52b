"""Hermes 2 and 3, Qwen 2.5, 3 and QwQ, Granite 4, Bielik, MiMo, Reka: JSON in tags, one call behind the other::

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from server.formats.call_form import json_calls
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORMAT = ToolFormat(
    name="hermes",
    parse=JsonCalls((OPEN,), CLOSE).parse,
    recognised_by=((OPEN, CLOSE),),
    tags=(OPEN, CLOSE),
    forced=json_calls(f"{OPEN}\n", f"\n{CLOSE}", joint="\n"),
)
