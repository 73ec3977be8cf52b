"""Families with ``invoke`` elements in a block, which differ only in their markup. Each constant has an example of its
models' output.
"""

from server.formats.calls.invokes import Invokes
from server.formats.calls.json_calls import JsonCalls
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere
from server.formats.tool_call_syntax import Parameters, ToolCallSyntax
from server.formats.tool_format import ToolFormat


def _form(block: str, mark: str = "", *, typed: bool = False) -> ToolCallSyntax:
    """Return the syntax for grammars: calls in a block of that name, with `mark` in every tag. ``typed``: parameters
    have the attribute ``string``.
    """
    string, other = ('" string="true">', '" string="false">') if typed else ('">', None)
    parameters = Parameters(
        *(f'<{mark}parameter name="', string, f"</{mark}parameter>"),
        joint="\n",
        end=f"</{mark}invoke>",
        before_json_value=other,
    )
    return ToolCallSyntax(
        f'<{mark}invoke name="',
        ('">\n',),
        open=f"<{mark}{block}>\n",
        close=f"\n</{mark}{block}>",
        joint="\n",
        trigger=f"<{mark}{block}>",
        arguments=parameters,
        rest_of_list=True,
    )


_DSML = "｜DSML｜"
_SPACED = f"{_DSML} "
_CALLS, _SPACED_CALLS = Invokes(("function_calls", "tool_calls"), prefix=_DSML), Invokes(("calls",), prefix=_SPACED)


def _deepseek(turn: StreamParser) -> Steps[None]:
    """Blocks of either kind."""
    while True:
        opening = yield from turn.content_until(*_CALLS.openings, *_SPACED_CALLS.openings)
        calls = _CALLS if opening in _CALLS.openings else _SPACED_CALLS
        yield from turn.attempt(opening, calls.calls(turn))


DEEPSEEK_DSML = ToolFormat(
    name="deepseek-dsml",
    parse=_deepseek,
    recognised_by=((_DSML, "invoke"),),
    tags=(_DSML,),
    forced=_form("function_calls", _DSML, typed=True),
    variants=(
        (f"{_DSML}tool_calls", _form("tool_calls", _DSML, typed=True)),
        (f"{_SPACED}calls", _form("calls", _SPACED, typed=True)),
    ),
)
"""DeepSeek V3.2 (function_calls) and V4 (tool_calls): invocations whose parameters say whether they are strings::

<｜DSML｜function_calls>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>

V4.1 has a space in front of each name (``<｜DSML｜ calls>``).
"""

_GCML = "｜GCML｜"
GIGACHAT_35 = ToolFormat(
    name="gigachat-3.5",
    parse=Invokes(("tool_calls",), prefix=_GCML).parse,
    recognised_by=((_GCML,),),
    tags=(_GCML,),
    forced=_form("tool_calls", _GCML, typed=True),
)
"""GigaChat 3.5: DeepSeek's invocations with another mark::

<｜GCML｜tool_calls>
<｜GCML｜invoke name="get_weather">
<｜GCML｜parameter name="city" string="true">Paris</｜GCML｜parameter>
</｜GCML｜invoke>
</｜GCML｜tool_calls>
"""

MINIMAX_M2 = ToolFormat(
    name="minimax-m2",
    parse=Invokes(("minimax:tool_call",)).parse,
    recognised_by=(("<minimax:tool_call>",),),
    tags=("<minimax:tool_call>", "</minimax:tool_call>"),
    forced=_form("minimax:tool_call"),
)
"""MiniMax M2: invocations in a block; the schema gives the types::

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Paris</parameter>
    <parameter name="days">3</parameter>
    </invoke>
    </minimax:tool_call>

MiniMax M1 writes as `TOOL_CALLS_TAG` does.
"""

_DOTS, _DOTS_END = "<dots_function_call>", "</dots_function_call>"
_DOTS_INVOKES, _DOTS_JSON = Invokes(("dots_function_call",)), JsonCalls((_DOTS,), _DOTS_END)


def _dots_calls(turn: StreamParser) -> Steps[None]:
    """Parse either variant; the first character decides."""
    yield from turn.spaces()
    yield from _DOTS_JSON.calls(turn) if (yield from turn.peek()) in ("{", "[") else _DOTS_INVOKES.calls(turn)


DOTS = ToolFormat(
    name="dots",
    parse=anywhere(_dots_calls, _DOTS),
    recognised_by=((_DOTS,),),
    tags=(_DOTS, _DOTS_END),
    forced=_form("dots_function_call"),
)
"""dots: invocations in a block, as MiniMax M2's; JSON in the same block is read, too::

<dots_function_call>
<invoke name="get_weather">
<parameter name="city">Paris</parameter>
</invoke>
</dots_function_call>
"""
