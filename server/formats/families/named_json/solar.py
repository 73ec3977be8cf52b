"""Solar Open: each part of a turn begins anew; ids are the model's::

<|think|>...<|end|><|begin|>assistant<|content|>It is sunny.<|end|>
<|think|>...<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather
<|tool_call:args|>{"city": "Paris"}<|tool_call:end|><|calls|>
"""

import re

from server.formats.calls.json_calls import json_arguments
from server.formats.parsing.frame import Frame
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

_REASONING = ("<|think|>", "<|end|>")
_TURN = "<|begin|>assistant"
_CALL, _NAME, _ARGUMENTS = "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>"
_CALL_END = "<|tool_call:end|>"
_SECTION = "<|tool_calls|>"
_BREAKS = ("<|content|>",)
_SILENT = (_TURN, "<|content|>", _SECTION, "<|calls|>")


def _call(turn: StreamParser) -> Steps[None]:
    call_id, _ = yield from turn.word(_NAME)
    name, _ = yield from turn.word(_ARGUMENTS)
    yield from json_arguments(turn, name, call_id)
    yield from turn.spaces()
    if (yield from turn.take(_CALL_END)):
        turn.mark()


_FORM = ToolCallSyntax(
    (_CALL, re.compile("[A-Za-z0-9]{1,32}"), _NAME),
    (_ARGUMENTS,),
    _CALL_END,
    open=_SECTION,
    trigger=_SECTION,
    rest_of_list=True,
)
FORMAT = ToolFormat(
    name="solar",
    parse=Frame(_REASONING, _SILENT, {_CALL: _call}, breaks=_BREAKS, sections=(_SECTION,)).parse,
    breaks=_BREAKS,
    recognised_by=((_CALL, _NAME),),
    tags=(*_REASONING, "<|begin|>", *_SILENT[1:], _CALL, _NAME, _ARGUMENTS, _CALL_END),
    framed=True,
    reads_reasoning=True,
    turn_start=_TURN,
    leads=("<|content|>",),
    again=_TURN,
    forced=_FORM,
)
