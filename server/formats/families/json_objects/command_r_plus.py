"""Command R and R+ (2024): a list of actions in a fence::

Action:
```json
[
    {
        "tool_name": "get_weather",
        "parameters": {"city": "Paris"}
    }
]```
"""

from server.formats.call_form import CallForm
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

_OPENINGS = ("Action:\n```json", "Action: ```json", "Action:```json")
_FORM = CallForm(
    '{\n        "tool_name": "',
    ('",\n        "parameters": ',),
    "\n    }",
    open=f"{_OPENINGS[0]}\n[\n    ",
    close="\n]```",
    joint=",\n    ",
    trigger=_OPENINGS[0],
    triggers=_OPENINGS[1:],
    rest_of_list=True,
)
FORMAT = ToolFormat(
    name="command-r-plus",
    parse=JsonCalls(_OPENINGS, "```").parse,
    recognised_by=(("'Action:' followed by",), ("\\'Action:\\' followed by",)),
    forced=_FORM,
)
