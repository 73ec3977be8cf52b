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

from server.chat.formats.form import ToolFormat
from server.chat.json_calls import JsonCalls

FORMAT = ToolFormat(
    name="command-r-plus",
    parse=JsonCalls(("Action:\n```json", "Action: ```json", "Action:```json"), "```").parse,
    recognised_by=(("'Action:' followed by",), ("\\'Action:\\' followed by",)),
)
