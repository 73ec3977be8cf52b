"""Formats with unquoted keys in braces and a token instead of quotes.

Each constant is followed by its models and an example of their output.
"""

from server.formats.calls import python_calls
from server.formats.parsing.frame import Frame
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import Parse, StreamParser, anywhere
from server.formats.tool_call_syntax import TOOL_NAME, Braces, ToolCallSyntax
from server.formats.tool_format import ToolFormat


def _call(close: str, quote: str) -> Parse:
    """Create a parser of a call after the opening. ``close`` follows a call, ``quote`` surrounds strings."""

    def call(turn: StreamParser) -> Steps[None]:
        name = yield from turn.match(TOOL_NAME)
        if not name or (yield from turn.peek()) != "{":
            raise NotMarkup
        turn.begin(name)
        yield from python_calls.value(turn, turn.arguments, quote=quote)
        turn.end_call()
        yield from turn.spaces()
        if not (yield from turn.take(close)):
            raise NotMarkup

    return call


_FUNCTION_CALL, _FUNCTION_END, _ESCAPE = "<start_function_call>call:", "<end_function_call>", "<escape>"
_STOP = "<start_function_response>"
FUNCTION_GEMMA = ToolFormat(
    name="function-gemma",
    parse=anywhere(_call(_FUNCTION_END, _ESCAPE), _FUNCTION_CALL, silent=(_STOP,)),
    recognised_by=(("<start_function_call>", _ESCAPE),),
    tags=("<start_function_call>", _FUNCTION_END, _ESCAPE, _STOP),
    forced=ToolCallSyntax(_FUNCTION_CALL, ("",), _FUNCTION_END, arguments=Braces(_ESCAPE), trigger=_FUNCTION_CALL),
)
"""FunctionGemma: Gemma 4's notation with its own tags, and ``<escape>`` for quotes::

    <start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>

The model stops with <start_function_response>, which is dropped.
"""

_REASONING, _END_REASONING = "<|channel>thought", "<channel|>"
_CALL, _CALL_END, _QUOTE = "<|tool_call>call:", "<tool_call|>", '<|"|>'
_SILENT = ("<|channel>", "<|turn>model\n", "<turn|>")
GEMMA_4 = ToolFormat(
    name="gemma4",
    parse=Frame((_REASONING, _END_REASONING), _SILENT, {_CALL: _call(_CALL_END, _QUOTE)}).parse,
    recognised_by=((_CALL,),),
    tags=("<|channel>", _END_REASONING, "<|tool_call>", _CALL_END, _QUOTE, "<|turn>"),
    framed=True,
    reads_reasoning=True,
    turn_start="<|turn>model\n",
    forced=ToolCallSyntax(_CALL, ("",), _CALL_END, arguments=Braces(_QUOTE), trigger=_CALL),
)
"""Gemma 4: reasoning in a channel; arguments with bare keys, and a token for quotes::

    <|channel>thought
    ...<channel|>Let me look.<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3,units:[<|"|>C<|"|>]}<tool_call|>

Empty channels and single closing tags are dropped.
"""
