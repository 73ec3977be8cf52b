"""GigaChat 3.5: DeepSeek's invocations with another mark::

<｜GCML｜tool_calls>
<｜GCML｜invoke name="get_weather">
<｜GCML｜parameter name="city" string="true">Paris</｜GCML｜parameter>
</｜GCML｜invoke>
</｜GCML｜tool_calls>
"""

from server.formats.calls.invokes import Invokes
from server.formats.families.parameters.deepseek_dsml import marked_form
from server.formats.form import ToolFormat

_GCML = "｜GCML｜"
_CALLS = Invokes(("tool_calls",), prefix=_GCML)
FORMAT = ToolFormat(
    name="gigachat-3.5",
    parse=_CALLS.parse,
    recognised_by=((_GCML,),),
    tags=(_GCML,),
    forced=marked_form(_GCML, "tool_calls"),
)
