"""DeepSeek V3.2 (function_calls) and V4 (tool_calls): invocations whose parameters say whether they are strings::

<｜DSML｜function_calls>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
"""

from server.chat.formats.form import ToolFormat
from server.chat.invokes import Invokes

_DSML = "｜DSML｜"
_CALLS = Invokes(("function_calls", "tool_calls"), prefix=_DSML)
FORMAT = ToolFormat(
    name="deepseek-dsml",
    parse=_CALLS.parse,
    recognised_by=((_DSML, "invoke"),),
    tags=(_DSML,),
    breaks=_CALLS.openings,
)
