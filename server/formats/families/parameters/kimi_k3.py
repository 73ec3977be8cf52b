"""Kimi K3: everything is a tag of three tokens, whose names are plain text; arguments say their type::

    <|open|>think<|sep|>...<|close|>think<|sep|><|open|>response<|sep|>Let me look.<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>

(all on one line).
"""

import re

from server.formats.calls.typed import Argument, typed_call
from server.formats.parameter_schema import NOT_STRING, STRING
from server.formats.parsing.frame import Frame
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import Parameters, ToolCallSyntax
from server.formats.tool_format import ToolFormat

_SEP = "<|sep|>"
_THINK, _END_THINK = "<|open|>think<|sep|>", "<|close|>think<|sep|>"
_RESPONSE, _MESSAGE = "<|open|>response<|sep|>", '<|open|>message role="assistant"<|sep|>'
_TOOLS, _END_TOOLS = "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"
_SILENT = (
    _RESPONSE,
    "<|close|>response<|sep|>",
    _TOOLS,
    _END_TOOLS,
    _MESSAGE,
    "<|close|>message<|sep|>",
    "<|end_of_msg|>",
)
_CALL, _CALL_END = '<|open|>call tool="', "<|close|>call<|sep|>"
_ARGUMENT, _ARGUMENT_END = '<|open|>argument key="', "<|close|>argument<|sep|>"
_TYPE = re.compile(r'\s*type="(\w+)"')


def _call(turn: StreamParser) -> Steps[None]:
    name, _ = yield from turn.word('"')
    yield from turn.word(_SEP)
    if not name:
        raise NotMarkup
    yield from typed_call(turn, name, lambda: _argument(turn))


def _argument(turn: StreamParser) -> Steps[Argument | None]:
    yield from turn.spaces()
    if (yield from turn.expect(_ARGUMENT, _CALL_END)) == _CALL_END:
        return None
    key, _ = yield from turn.word('"')
    rest, _ = yield from turn.word(_SEP)
    said = _TYPE.match(rest)
    types = None if said is None else STRING if said[1] == "string" else NOT_STRING
    return Argument(key, (_ARGUMENT_END,), types)


_JSON_TYPES = re.compile("number|integer|boolean|object|array|null")
_FORM = ToolCallSyntax(
    _CALL,
    (('" index="', re.compile("[0-9]{1,3}"), f'"{_SEP}'),),
    open=_TOOLS,
    close=_END_TOOLS,
    arguments=Parameters(
        _ARGUMENT,
        f'" type="string"{_SEP}',
        _ARGUMENT_END,
        end=_CALL_END,
        before_json_value=('" type="', _JSON_TYPES, f'"{_SEP}'),
    ),
    trigger=_TOOLS,
    rest_of_list=True,
)
FORMAT = ToolFormat(
    name="kimi-k3",
    parse=Frame((_THINK, _END_THINK), _SILENT, {_CALL: _call}, breaks=(_RESPONSE,), sections=(_TOOLS,)).parse,
    breaks=(_RESPONSE,),
    recognised_by=(("<|open|>", "<|close|>", "<|end_of_msg|>"),),
    tags=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    framed=True,
    reads_reasoning=True,
    turn_start=_MESSAGE,
    leads=(_RESPONSE,),
    forced=_FORM,
)
