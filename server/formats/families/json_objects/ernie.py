"""ERNIE 4.5 Thinking: Hermes' JSON; the answer behind the thoughts stands in tags of its own::

<think>
...
</think>

<response>
It is sunny.
</response>

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from server.formats.call_form import json_calls
from server.formats.calls.json_calls import JsonCalls
from server.formats.families.json_objects.hermes import CLOSE, OPEN
from server.formats.form import ToolFormat
from server.formats.parsing.answer_tags import AnswerTags

_ANSWER = ("<response>", "</response>")
FORMAT = ToolFormat(
    name="ernie",
    parse=AnswerTags(*_ANSWER, JsonCalls((OPEN,), CLOSE)).parse,
    recognised_by=((*_ANSWER, OPEN),),
    tags=(OPEN, CLOSE, *_ANSWER),
    framed=True,
    leads=(f"{_ANSWER[0]}\n",),
    again="\n\n",
    forced=json_calls(f"{OPEN}\n", f"\n{CLOSE}", joint="\n"),
)
