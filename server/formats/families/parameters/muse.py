"""Muse: messages with a recipient; the prompt ends in front of the first one::

 to=self<|message|>I need the weather.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>
<atem:invoke name="get_weather">
<atem:parameter name="city">Paris</atem:parameter>
</atem:invoke>
</atem:function_calls><|eot|>

 to=user<|message|>It is sunny.<|eot|>
"""

from server.formats.calls.invokes import Invokes
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import Parameters, ToolCallSyntax
from server.formats.tool_format import ToolFormat

_START, _TO, _MESSAGE = "<|start|>assistant", " to=", "<|message|>"
_ENDS = ("<|eom|>", "<|eot|>")
_CALLS = Invokes(("function_calls",), prefix="atem:")


def parse(turn: StreamParser) -> Steps[None]:
    """Parse message by message; text without a header is content."""
    while True:
        yield from turn.attempt("", _message(turn))
        while (yield from turn.content_until(_START, *_ENDS)) in _ENDS:
            pass


def _message(turn: StreamParser) -> Steps[None]:
    header = yield from turn.expect(_TO, _MESSAGE)
    recipient, _ = (yield from turn.word(_MESSAGE)) if header == _TO else ("user", "")
    if recipient == "self":
        turn.settle()
        turn.reasoning_tag(f"{_TO}self{_MESSAGE}")
        end = yield from turn.reasoning_until(*_ENDS, _START)
        if end == _START:
            turn.back(end)
        else:
            turn.reasoning_tag(end)
    elif recipient != "user":
        if not turn.how.callable:
            raise NotMarkup
        yield from turn.spaces()
        yield from turn.expect(*_CALLS.openings)
        yield from _CALLS.calls(turn)


_FORM = ToolCallSyntax(
    '<atem:invoke name="',
    ('">\n',),
    lead=(_TO, _MESSAGE),
    open="<atem:function_calls>\n",
    close="\n</atem:function_calls>",
    joint="\n",
    arguments=Parameters('<atem:parameter name="', '">', "</atem:parameter>", joint="\n", end="</atem:invoke>"),
    trigger="<atem:function_calls>",
    rest_of_list=True,
)
FORMAT = ToolFormat(
    name="muse",
    parse=parse,
    recognised_by=(("<atem:function_calls>", "<|eom|>"),),
    tags=(
        "<|start|>",
        _MESSAGE,
        *_ENDS,
        *_CALLS.openings,
        "</atem:function_calls>",
        "<atem:invoke",
        "</atem:invoke>",
        "<atem:parameter",
        "</atem:parameter>",
    ),
    framed=True,
    reads_reasoning=True,
    breaks=(*_ENDS, _START),
    turn_start=_START,
    leads=(f"{_TO}user{_MESSAGE}",),
    again=_START,
    forced=_FORM,
)
