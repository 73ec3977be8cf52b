"""Llama 3.1 to 3.3 and Llama 4: the whole message is the call, at times with a tag in front::

    {"name": "get_weather", "parameters": {"city": "Paris"}}
    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": ...}

Built-in tools (``<|python_tag|>brave_search.call(query="...")``) stay content.
"""

from server.chat.formats.form import ToolFormat
from server.chat.json_calls import JsonCalls
from server.chat.tool_choice import CallFormat

_TAGS = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
FORMAT = ToolFormat(
    name="llama3",
    parse=JsonCalls(_TAGS[:2], _TAGS[2], separator=";", bare=True).parse,
    recognised_by=(
        ("<|python_tag|>", '"parameters": '),
        ('in the format {"name": function name', '"parameters": '),
    ),
    tags=_TAGS,
    forced=CallFormat(bare=True, arguments="parameters"),
)
