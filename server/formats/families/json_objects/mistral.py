"""Mistral Nemo, Mistral Small 2409 and their relatives: a JSON list behind a tag::

    [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "a1b2c3d4e"}]

Ids have nine letters and digits: the template refuses others.
"""

from server.formats.call_form import json_list
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

OPEN = "[TOOL_CALLS]"
LIST = JsonCalls((OPEN,))
FORMAT = ToolFormat(
    name="mistral",
    parse=LIST.parse,
    recognised_by=((OPEN,),),
    tags=(OPEN,),
    id_length=9,
    forced=json_list(OPEN),
)
