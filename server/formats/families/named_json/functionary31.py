"""Functionary 3.1, and Llama models with custom functions: the name in the tag::

    <function=get_weather>{"city": "Paris"}</function>
    <|python_tag|>print(1 + 1)

The code behind <|python_tag|> is a call of the function ``python`` where there is one.
"""

from server.formats.calls.json_calls import json_arguments
from server.formats.calls.json_text import escaped
from server.formats.parsing.reader import EndOfText, Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

_OPEN, _CLOSE, _CODE = "<function=", "</function>", "<|python_tag|>"


def parse(turn: StreamParser) -> Steps[None]:
    """Functions and code, anywhere."""
    runs_code = "python" in turn.how.functions
    while True:
        opening = yield from turn.content_until(_OPEN, _CODE) if runs_code else turn.content_until(_OPEN)
        if opening == _CODE:
            yield from code(turn)
        yield from turn.attempt(opening, _call(turn))


def _call(turn: StreamParser) -> Steps[None]:
    name, _ = yield from turn.word(">")
    yield from json_arguments(turn, name)
    yield from turn.spaces()
    if (yield from turn.take(_CLOSE)):
        turn.mark()


def code(turn: StreamParser) -> Steps[None]:
    """A call of ``python``, whose argument is the rest of the text. Raises `EndOfText`."""
    turn.begin("python")
    turn.arguments('{"code": "')
    try:
        while True:
            end = yield from turn.until(("<|eom_id|>", "<|eot_id|>"), lambda text: turn.arguments(escaped(text)))
            turn.arguments(escaped(end))
    except EndOfText:
        turn.arguments('"}')
        raise


_FORM = ToolCallSyntax(_OPEN, (">",), _CLOSE, joint="\n", by_name=True)
FORMAT = ToolFormat(
    name="functionary-v3.1", parse=parse, recognised_by=((_OPEN, _CLOSE),), tags=(_OPEN, _CLOSE, _CODE), forced=_FORM
)
