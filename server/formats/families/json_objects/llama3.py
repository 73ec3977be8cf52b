"""Llama 3.1 to 3.3 and Llama 4: the whole message is the call, at times with a tag in front::

    {"name": "get_weather", "parameters": {"city": "Paris"}}
    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": ...}

Built-in tools (``<|python_tag|>brave_search.call(query="...")``) stay content.
"""

from server.formats.call_form import CallForm, WholeJson
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

_TAGS = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
_BEGINNINGS = ('{"name": "', '{"name":"', '{"type": "function", "name": "', '{"type":"function","name":"')
FORMAT = ToolFormat(
    name="llama3",
    parse=JsonCalls(_TAGS[:2], _TAGS[2], separator=";", bare=True).parse,
    recognised_by=(
        ("<|python_tag|>", '"parameters": '),
        ('in the format {"name": function name', '"parameters": '),
    ),
    tags=_TAGS,
    forced=CallForm(
        _BEGINNINGS[0],
        ('", "parameters": ',),
        "}",
        joint="; ",
        whole=WholeJson("parameters"),
        triggers=_BEGINNINGS[1:],
        elsewhere=tuple(tag + beginning for tag in _TAGS[:2] for beginning in _BEGINNINGS),
        by_name=True,
        at_start=True,
        rest_of_list=True,
    ),
)
