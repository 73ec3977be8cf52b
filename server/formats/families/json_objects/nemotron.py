"""Nemotron Nano 2 and Llama Nemotron: a JSON list in a tag::

    <think>
    ...
    </think>
    <TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>

Nemotron 3 writes as `qwen3_coder` does.
"""

from server.formats.call_form import json_list
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

_TAGS = ("<TOOLCALL>", "</TOOLCALL>")
_FORM = json_list(*_TAGS)
FORMAT = ToolFormat(
    name="nemotron",
    parse=JsonCalls(_TAGS[:1], _TAGS[1]).parse,
    recognised_by=((_TAGS[0],),),
    tags=_TAGS,
    forced=_FORM,
)
