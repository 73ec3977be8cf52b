"""Apertus: a JSON list in which each call's name is its key; thoughts stand between prefixes of their own::

<|inner_prefix|>...<|inner_suffix|><|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>
"""

from server.formats.calls import json_text
from server.formats.calls.json_calls import json_arguments
from server.formats.parsing.frame import Frame
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

_REASONING = ("<|inner_prefix|>", "<|inner_suffix|>")
_OPEN, _CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"


def _calls(turn: StreamParser) -> Steps[None]:
    yield from turn.spaces()
    yield from turn.expect("[")
    more = ","
    while more:
        turn.certain()
        yield from turn.spaces()
        yield from turn.expect("{")
        yield from turn.spaces()
        name = yield from json_text.string(turn)
        yield from turn.spaces()
        yield from turn.expect(":")
        yield from json_arguments(turn, name)
        yield from turn.spaces()
        yield from turn.take("}")
        turn.mark()
        yield from turn.spaces()
        more = yield from turn.take(",")
    yield from turn.take("]")
    yield from turn.spaces()
    yield from turn.take(_CLOSE)


_FORM = ToolCallSyntax(
    '{"',
    ('": ',),
    "}",
    open=f"{_OPEN}[",
    close=f"]{_CLOSE}",
    joint=", ",
    trigger=_OPEN,
    rest_of_list=True,
)
FORMAT = ToolFormat(
    name="apertus",
    parse=Frame(_REASONING, ("<|assistant_end|>",), {_OPEN: _calls}).parse,
    recognised_by=((_OPEN,),),
    tags=(*_REASONING, _OPEN, _CLOSE),
    framed=True,
    reads_reasoning=True,
    turn_start="<|assistant_start|>",
    reasoning_tags=_REASONING,
    forced=_FORM,
)
