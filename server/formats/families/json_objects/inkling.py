"""Inkling: blocks that say what they hold; the prompt ends in front of the first one::

<|content_thinking|>I need the weather.<|end_message|><|message_model|>get_weather<|content_invoke_tool_json|>
{"name":"get_weather","args":{"city":"Paris"}}<|end_message|><|content_model_end_sampling|>

<|content_thinking|>...<|end_message|><|message_model|><|content_text|>It is sunny.<|end_message|>

(each on one line).
"""

from server.formats.calls.json_calls import call_object
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import TOOL_NAME, ToolCallSyntax
from server.formats.tool_format import ToolFormat

_START = "<|message_model|>"
_THINKING, _TEXT, _CALL = "<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"
_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")


def parse(turn: StreamParser) -> Steps[None]:
    """Parse block by block; text without markup is content."""
    while True:
        yield from turn.attempt("", _block(turn))
        found = _ENDS[0]
        while found in _ENDS:
            found = yield from turn.content_until(_START, _THINKING, _TEXT, _CALL, *_ENDS)
        if found != _START:
            turn.back(found)


def _block(turn: StreamParser) -> Steps[None]:
    name = yield from turn.match(TOOL_NAME)
    kind = yield from turn.expect(_CALL) if name else turn.expect(_THINKING, _TEXT, _CALL)
    if kind == _TEXT:
        turn.settle()
    elif kind == _THINKING:
        turn.settle()
        turn.reasoning_tag(kind)
        end = yield from turn.reasoning_until(*_ENDS, _START, _TEXT)
        if end in _ENDS:
            turn.reasoning_tag(end)
        else:
            turn.back(end)
    else:
        if not turn.how.callable:
            raise NotMarkup
        yield from turn.spaces()
        yield from call_object(turn)


_FORM = ToolCallSyntax(
    f'{_CALL}{{"name": "',
    ('", "args": ', '","args":'),
    "}",
    lead=("", ""),
    trigger=_CALL,
    several=False,
)
FORMAT = ToolFormat(
    name="inkling",
    parse=parse,
    recognised_by=((_START, _CALL),),
    tags=(_START, _THINKING, _TEXT, _CALL, *_ENDS),
    framed=True,
    reads_reasoning=True,
    breaks=(*_ENDS, _START, _TEXT),
    turn_start=_START,
    reasoning_tags=(_THINKING, _ENDS[0]),
    leads=(_TEXT,),
    again=_START,
    forced=_FORM,
)
