"""K2 Horizon: GLM's keys and values with a prefix, at times with their types, in a section::

<ifm|tool_calls>
<ifm|tool_call>get_weather
<ifm|arg_key>city</ifm|arg_key>
<ifm|arg_type>string</ifm|arg_type>
<ifm|arg_value>Paris</ifm|arg_value>
</ifm|tool_call>
</ifm|tool_calls>
"""

from server.formats.families.parameters.glm import GlmCalls
from server.formats.form import ToolFormat

_CALLS = GlmCalls(prefix="ifm|", sections=True)
_NAMES = ("tool_calls", "/tool_calls", "tool_call", "/tool_call")
_ARGUMENT_NAMES = ("arg_key", "/arg_key", "arg_type", "/arg_type", "arg_value", "/arg_value")
FORMAT = ToolFormat(
    name="k2-horizon",
    parse=_CALLS.parse,
    recognised_by=(("<ifm|tool_call>",),),
    tags=tuple(map(_CALLS.tag, (*_NAMES, *_ARGUMENT_NAMES))),
    forced=_CALLS.form(section=False),
)
