"""MiniCPM 5: attributes instead of text, values in CDATA where they need it; the schema gives the types::

<function name="get_weather"><param name="city"><![CDATA[Paris]]></param><param name="days">3</param></function>
"""

from server.formats.calls.typed import Argument, typed_call
from server.formats.parameter_schema import STRING
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere
from server.formats.tool_call_syntax import Parameters, ToolCallSyntax
from server.formats.tool_format import ToolFormat

_FUNCTION, _FUNCTION_END = '<function name="', "</function>"
_PARAMETER, _PARAMETER_END, _CDATA = '<param name="', "</param>", "<![CDATA["


def _call(turn: StreamParser) -> Steps[None]:
    name, _ = yield from turn.word('">')
    yield from typed_call(turn, name, lambda: _argument(turn))


def _argument(turn: StreamParser) -> Steps[Argument | None]:
    yield from turn.spaces()
    if (yield from turn.expect(_PARAMETER, _FUNCTION_END)) == _FUNCTION_END:
        return None
    key, _ = yield from turn.word('">')
    if (yield from turn.take(_CDATA)):
        return Argument(key, (f"]]>{_PARAMETER_END}",), STRING)
    return Argument(key, (_PARAMETER_END,))


_FORM = ToolCallSyntax(
    _FUNCTION,
    ('">',),
    joint="\n",
    arguments=Parameters(_PARAMETER, '">', _PARAMETER_END, end=_FUNCTION_END),
    by_name=True,
)
FORMAT = ToolFormat(
    name="minicpm5",
    parse=anywhere(_call, _FUNCTION),
    recognised_by=((_FUNCTION, _PARAMETER),),
    tags=("<function", "<param", _FUNCTION_END, _PARAMETER_END),
    forced=_FORM,
)
