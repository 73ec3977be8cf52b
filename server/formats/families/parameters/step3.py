"""Step 3: invocations in a section like DeepSeek's, with plain underscores; the schema gives the types::

<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">
<steptml:parameter name="city">Paris</steptml:parameter>
</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>
"""

from server.formats.calls.invokes import Invokes
from server.formats.calls.typed import typed_call
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere
from server.formats.tool_call_syntax import Parameters, ToolCallSyntax
from server.formats.tool_format import ToolFormat

_BEGIN, _END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_CALL, _SEP, _CALL_END = "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"
_INVOKE = '<steptml:invoke name="'
_INVOKES = Invokes((), prefix="steptml:")


def _call(turn: StreamParser) -> Steps[None]:
    yield from turn.word(_INVOKE)  # "function", and the separator, which models leave out at times
    name, _ = yield from turn.word('">')
    yield from typed_call(turn, name, lambda: _INVOKES.argument(turn))
    turn.end_call()
    yield from turn.spaces()
    yield from turn.take(_CALL_END)
    turn.mark()
    yield from turn.spaces()
    yield from turn.take(_SEP)


_FORM = ToolCallSyntax(
    f"{_CALL}function{_SEP}{_INVOKE}",
    ('">\n',),
    _CALL_END,
    open=_BEGIN,
    close=_END,
    joint="\n",
    arguments=Parameters(
        '<steptml:parameter name="', '">', "</steptml:parameter>", joint="\n", end="</steptml:invoke>"
    ),
    trigger=_BEGIN,
    rest_of_list=True,
)
FORMAT = ToolFormat(
    name="step3",
    parse=anywhere(_call, _CALL, silent=(_BEGIN, _END)),
    recognised_by=(("steptml:invoke",),),
    tags=(_BEGIN, _END, _CALL, _SEP, _CALL_END),
    also_opened_by=(_CALL,),
    forced=_FORM,
)
