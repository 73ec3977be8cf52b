"""LongCat Flash: JSON in tags of its own, or, newer ones, GLM's keys and values with a prefix::

<longcat_tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</longcat_tool_call>

<longcat_tool_call>get_weather
<longcat_arg_key>city</longcat_arg_key>
<longcat_arg_value>Paris</longcat_arg_value>
</longcat_tool_call>
"""

from server.formats.call_form import json_calls
from server.formats.calls.json_calls import JsonCalls
from server.formats.families.parameters.glm import GlmCalls
from server.formats.form import ToolFormat
from server.formats.parsing.reader import Steps
from server.formats.parsing.turn import Turn, anywhere

_OPEN, _CLOSE = "<longcat_tool_call>", "</longcat_tool_call>"
_JSON = JsonCalls((_OPEN,), _CLOSE)
_KEYS = GlmCalls(prefix="longcat_")


def _call(turn: Turn) -> Steps[None]:
    """Their first character tells them apart."""
    yield from turn.spaces()
    yield from _JSON.calls(turn) if (yield from turn.peek()) in ("{", "[") else _KEYS.call(turn)


FORMAT = ToolFormat(
    name="longcat",
    parse=anywhere(_call, _OPEN),
    recognised_by=((_OPEN,),),
    tags=(_OPEN, _CLOSE, *map(_KEYS.tag, ("arg_key", "/arg_key", "arg_value", "/arg_value"))),
    forced=json_calls(f"{_OPEN}\n", f"\n{_CLOSE}", joint="\n"),
    variants=(("<longcat_arg_key>", _KEYS.form(section=False)),),
)
