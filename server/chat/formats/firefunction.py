"""Firefunction 2: a JSON list behind a word::

functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]
"""

from server.chat.formats.form import ToolFormat
from server.chat.json_calls import JsonCalls

FORMAT = ToolFormat(
    name="firefunction",
    parse=JsonCalls(("functools",)).parse,
    recognised_by=(("functools[",),),
)
