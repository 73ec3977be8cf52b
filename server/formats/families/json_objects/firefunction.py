"""Firefunction 2: a JSON list behind a word::

functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]
"""

from server.formats.call_form import json_list
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

_OPEN = "functools"
_FORM = json_list(_OPEN, trigger=f"{_OPEN}[")
FORMAT = ToolFormat(
    name="firefunction",
    parse=JsonCalls((_OPEN,)).parse,
    recognised_by=(("functools[",),),
    forced=_FORM,
)
