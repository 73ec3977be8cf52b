"""Hunyuan 3: GLM's keys and values, with a suffix in every tag and a section around all calls::

<tool_calls:opensource>
<tool_call:opensource>get_weather<tool_sep:opensource>
<arg_key:opensource>city</arg_key:opensource>
<arg_value:opensource>Paris</arg_value:opensource>
</tool_call:opensource>
</tool_calls:opensource>
"""

from server.formats.families.parameters.glm import GlmCalls
from server.formats.form import ToolFormat

_CALLS = GlmCalls(":opensource", sections=True)
_NAMES = ("tool_calls", "/tool_calls", "tool_call", "/tool_call", "tool_sep")
_ARGUMENT_NAMES = ("arg_key", "/arg_key", "arg_value", "/arg_value")
_FORM = _CALLS.form(section=True)
FORMAT = ToolFormat(
    name="hunyuan",
    parse=_CALLS.parse,
    recognised_by=((":opensource", "<arg_key"),),
    tags=tuple(_CALLS.tag(name) for name in (*_NAMES, *_ARGUMENT_NAMES)),
    forced=_FORM,
)
