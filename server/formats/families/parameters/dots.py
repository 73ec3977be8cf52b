"""dots: invocations in a block, as MiniMax M2's; JSON in the same block is read, too::

<dots_function_call>
<invoke name="get_weather">
<parameter name="city">Paris</parameter>
</invoke>
</dots_function_call>
"""

from server.formats.call_form import CallForm, Parameters
from server.formats.calls.invokes import Invokes
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat
from server.formats.parsing.reader import Steps
from server.formats.parsing.turn import Turn, anywhere

_OPEN, _CLOSE = "<dots_function_call>", "</dots_function_call>"
_INVOKES, _JSON = Invokes(("dots_function_call",)), JsonCalls((_OPEN,), _CLOSE)


def _calls(turn: Turn) -> Steps[None]:
    """Their first character tells them apart."""
    yield from turn.spaces()
    yield from _JSON.calls(turn) if (yield from turn.peek()) in ("{", "[") else _INVOKES.calls(turn)


_FORM = CallForm(
    '<invoke name="',
    ('">\n',),
    open=f"{_OPEN}\n",
    close=f"\n{_CLOSE}",
    joint="\n",
    arguments=Parameters('<parameter name="', '">', "</parameter>", joint="\n", end="</invoke>"),
    trigger=_OPEN,
    rest_of_list=True,
)
FORMAT = ToolFormat(
    name="dots", parse=anywhere(_calls, _OPEN), recognised_by=((_OPEN,),), tags=(_OPEN, _CLOSE), forced=_FORM
)
