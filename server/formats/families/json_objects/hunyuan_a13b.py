"""Hunyuan A13B and dense ones: a JSON list in a tag; the answer behind the thoughts stands in tags of its own::

<think>
...
</think>
<answer>
It is sunny.
</answer>

<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_calls>
"""

from server.formats.call_form import json_list
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat
from server.formats.parsing.answer_tags import AnswerTags

_TAGS = ("<tool_calls>", "</tool_calls>")
_ANSWER = ("<answer>", "</answer>")
FORMAT = ToolFormat(
    name="hunyuan-a13b",
    parse=AnswerTags(*_ANSWER, JsonCalls(_TAGS[:1], _TAGS[1])).parse,
    recognised_by=(("<answer>", "</answer>", "<think>"),),
    tags=(*_TAGS, *_ANSWER),
    framed=True,
    leads=(f"{_ANSWER[0]}\n",),
    again="\n",
    forced=json_list(*_TAGS),
)
