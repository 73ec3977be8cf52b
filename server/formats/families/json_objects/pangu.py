"""openPangu Embedded: a JSON list between tokens that have no other name; thoughts stand between two more::

[unused16]...[unused17]Let me look.[unused11][{"name": "get_weather", "arguments": {"city": "Paris"}}][unused12]
"""

from server.formats.call_form import json_list
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

_TAGS = ("[unused11]", "[unused12]")
FORMAT = ToolFormat(
    name="pangu",
    parse=JsonCalls(_TAGS[:1], _TAGS[1]).parse,
    recognised_by=(_TAGS,),
    tags=_TAGS,
    forced=json_list(*_TAGS),
)
