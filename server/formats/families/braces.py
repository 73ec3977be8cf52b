"""Formats with unquoted keys in braces and a token instead of quotes.

Each constant is followed by its models and an example of their output.
"""

import json
import re
from dataclasses import dataclass

from server.formats.calls.json_text import SCALARS, escaped
from server.formats.parsing.frame import Frame
from server.formats.parsing.reader import EndOfText, NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere
from server.formats.tool_call_syntax import TOOL_NAME, Braces, ToolCallSyntax
from server.formats.tool_format import ToolFormat

_SCALAR = re.compile(r"[^,\]}]*")
_KEY = re.compile(r"[^:,\]}]*")
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class BraceCalls:
    """``close`` follows a call. ``quote`` surrounds strings."""

    close: str
    quote: str

    def call(self, turn: StreamParser) -> Steps[None]:
        """Parse a call after the opening: the name, the arguments, and the end. Raises `NotMarkup`."""
        name = yield from turn.match(TOOL_NAME)
        if not name or (yield from turn.peek()) != "{":
            raise NotMarkup
        turn.begin(name)
        yield from self._value(turn, 0)
        turn.end_call()
        yield from turn.spaces()
        if not (yield from turn.take(self.close)):
            raise NotMarkup

    def _value(self, turn: StreamParser, depth: int) -> Steps[None]:
        """Emit the next value as JSON."""
        yield from turn.spaces()
        first = yield from turn.peek()
        if first and first in "{[" and depth < _MAX_DEPTH:
            yield from self._items(turn, turn.consume(1), depth + 1)
        elif (yield from turn.take(self.quote)):
            turn.arguments('"')
            yield from turn.until((self.quote,), lambda text: turn.arguments(escaped(text)))
            turn.arguments('"')
        else:
            text = (yield from turn.match(_SCALAR, limit=None)).strip()
            turn.arguments(text if SCALARS.fullmatch(text) else json.dumps(text, ensure_ascii=False))

    def _items(self, turn: StreamParser, opening: str, depth: int) -> Steps[None]:
        """Parse the rest of an object or a list after its opening bracket."""
        closing, joint = ("}" if opening == "{" else "]"), opening
        while True:
            yield from turn.spaces()
            if (yield from turn.take(closing)):
                break
            turn.arguments(joint)
            joint = ", "
            if opening == "{":
                quoted = yield from turn.take(self.quote)
                key = (yield from turn.match(_KEY, limit=None)).strip()
                turn.arguments(json.dumps(key.removesuffix(self.quote) if quoted else key, ensure_ascii=False) + ": ")
                yield from turn.take(":")
            yield from self._value(turn, depth)
            yield from turn.spaces()
            if not (yield from turn.take(",")) and (yield from turn.peek()) != closing:
                if not turn.text:
                    raise EndOfText
                turn.content(turn.consume(1))
        turn.arguments(opening + closing if joint == opening else closing)


_FUNCTION_CALL, _FUNCTION_END, _ESCAPE = "<start_function_call>call:", "<end_function_call>", "<escape>"
_STOP = "<start_function_response>"
FUNCTION_GEMMA = ToolFormat(
    name="function-gemma",
    parse=anywhere(BraceCalls(_FUNCTION_END, _ESCAPE).call, _FUNCTION_CALL, silent=(_STOP,)),
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
_CALLS = BraceCalls(_CALL_END, _QUOTE)
GEMMA_4 = ToolFormat(
    name="gemma4",
    parse=Frame((_REASONING, _END_REASONING), ("<|channel>", "<|turn>model\n", "<turn|>"), {_CALL: _CALLS.call}).parse,
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
