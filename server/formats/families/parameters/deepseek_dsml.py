"""DeepSeek V3.2 (function_calls) and V4 (tool_calls): invocations whose parameters say whether they are strings::

<｜DSML｜function_calls>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>

V4.1 has a space in front of each name (``<｜DSML｜ calls>``). GigaChat 3.5 says GCML for DSML (`gigachat35`).
"""

from server.formats.call_form import CallForm, Parameters
from server.formats.calls.invokes import Invokes
from server.formats.form import ToolFormat
from server.formats.parsing.reader import Steps
from server.formats.parsing.turn import Turn

_DSML = "｜DSML｜"
_SPACED = f"{_DSML} "
_CALLS, _SPACED_CALLS = Invokes(("function_calls", "tool_calls"), prefix=_DSML), Invokes(("calls",), prefix=_SPACED)


def parse(turn: Turn) -> Steps[None]:
    """Blocks of either kind."""
    while True:
        opening = yield from turn.content_until(*_CALLS.openings, *_SPACED_CALLS.openings)
        calls = _CALLS if opening in _CALLS.openings else _SPACED_CALLS
        yield from turn.attempt(opening, calls.calls(turn))


def marked_form(mark: str, block: str) -> CallForm:
    """For grammars: calls in a block of that name, with `mark` in every tag."""
    parameters = Parameters(
        f'<{mark}parameter name="',
        '" string="true">',
        f"</{mark}parameter>",
        joint="\n",
        end=f"</{mark}invoke>",
        behind_json='" string="false">',
    )
    return CallForm(
        f'<{mark}invoke name="',
        ('">\n',),
        open=f"<{mark}{block}>\n",
        close=f"\n</{mark}{block}>",
        joint="\n",
        trigger=f"<{mark}{block}>",
        arguments=parameters,
        rest_of_list=True,
    )


_FORM = marked_form(_DSML, "function_calls")
FORMAT = ToolFormat(
    name="deepseek-dsml",
    parse=parse,
    recognised_by=((_DSML, "invoke"),),
    tags=(_DSML,),
    forced=_FORM,
    variants=(
        (f"{_DSML}tool_calls", marked_form(_DSML, "tool_calls")),
        (f"{_SPACED}calls", marked_form(_SPACED, "calls")),
    ),
)
