"""MiniMax M2: invocations in a block; the schema gives the types::

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Paris</parameter>
    <parameter name="days">3</parameter>
    </invoke>
    </minimax:tool_call>

MiniMax M1 writes as `tool_calls_tag` does.
"""

from server.formats.call_form import CallForm, Parameters
from server.formats.calls.invokes import Invokes
from server.formats.form import ToolFormat

_BLOCK = "minimax:tool_call"
_CALLS = Invokes((_BLOCK,))
_FORM = CallForm(
    '<invoke name="',
    ('">\n',),
    open=f"<{_BLOCK}>\n",
    close=f"\n</{_BLOCK}>",
    joint="\n",
    arguments=Parameters('<parameter name="', '">', "</parameter>", joint="\n", end="</invoke>"),
    trigger=f"<{_BLOCK}>",
    rest_of_list=True,
)
FORMAT = ToolFormat(
    name="minimax-m2",
    parse=_CALLS.parse,
    recognised_by=((f"<{_BLOCK}>",),),
    tags=(f"<{_BLOCK}>", f"</{_BLOCK}>"),
    forced=_FORM,
)
