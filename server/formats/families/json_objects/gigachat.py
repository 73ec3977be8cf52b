"""GigaChat 3 and 3.1: one JSON object behind a tag, or as a message of its own::

<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}

Let me look.<|message_sep|>

function call<|role_sep|>
{"name": "get_weather", "arguments": {"city": "Paris"}}
"""

from server.formats.call_form import json_calls
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

_OPENINGS = ("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n")


_FORM = json_calls(_OPENINGS[0], triggers=_OPENINGS[1:], several=False)
FORMAT = ToolFormat(
    name="gigachat",
    parse=JsonCalls(_OPENINGS).parse,
    recognised_by=(("<|message_sep|>", "<|role_sep|>"),),
    tags=("<|function_call|>", "<|message_sep|>", "<|role_sep|>"),
    forced=_FORM,
)
