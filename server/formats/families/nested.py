"""Formats with nested arguments in their own notation: keys without quotes in braces, or elements."""

from collections.abc import Mapping
from typing import Any

from server.formats.calls import python_calls
from server.formats.calls.parameters import Argument, block_calls, members, typed_value
from server.formats.parameter_schema import member, referred, types_of
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import Parse, StreamParser
from server.formats.tool_call_syntax import Braces, Elements, ToolCallSyntax
from server.formats.tool_format import ToolFormat


def _call(close: str, quote: str) -> Parse:
    """Create a parser of a call after the opening. ``close`` follows a call, ``quote`` surrounds strings."""

    def call(turn: StreamParser) -> Steps[None]:
        name = yield from turn.name()
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
FUNCTION_GEMMA = ToolFormat(
    "function-gemma",
    ToolCallSyntax(_FUNCTION_CALL, ("",), _FUNCTION_END, arguments=Braces(_ESCAPE)),
    recognised_by=(("<start_function_call>", _ESCAPE),),
    calls={_FUNCTION_CALL: _call(_FUNCTION_END, _ESCAPE)},
    dropped=("<start_function_response>",),
)
"""FunctionGemma: Gemma 4's notation with its own tags, and ``<escape>`` for quotes.

The model stops with <start_function_response>, which is dropped.
"""

_GEMMA_CALL, _GEMMA_CALL_END, _QUOTE = "<|tool_call>call:", "<tool_call|>", '<|"|>'
GEMMA_4 = ToolFormat(
    "gemma4",
    ToolCallSyntax(_GEMMA_CALL, ("",), _GEMMA_CALL_END, arguments=Braces(_QUOTE)),
    calls={_GEMMA_CALL: _call(_GEMMA_CALL_END, _QUOTE)},
    dropped=("<|channel>", "<|turn>model\n", "<turn|>"),
    inline_reasoning=("<|channel>thought", "<channel|>"),
    turn_start="<|turn>model\n",
)
"""Gemma 4: reasoning in a channel; arguments with bare keys, and a token for quotes::

    <|channel>thought
    ...<channel|>Let me look.<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3,units:[<|"|>C<|"|>]}<tool_call|>

Empty channels and single closing tags are dropped.
"""

_NS = "]<]minimax[>["
_CALLS_OPEN, _CALLS_CLOSE = f"{_NS}<tool_call>", f"{_NS}</tool_call>"
_INVOKE, _INVOKE_END = f'{_NS}<invoke name="', f"{_NS}</invoke>"
_MAX_DEPTH = 32


def _invoke(turn: StreamParser) -> Steps[None]:
    turn.certain()
    name, _ = yield from turn.word('">')
    turn.begin(name)
    schema = turn.options.functions.get(name, {})
    yield from _members(turn, schema, schema, _INVOKE_END, 0)


def _members(turn: StreamParser, schema: Any, root: Mapping[str, Any], closing: str, depth: int) -> Steps[None]:
    """Parse elements as the members of an object, up to `closing`."""

    def element() -> Steps[Argument | None]:
        yield from turn.spaces()
        if (yield from turn.expect(closing, f"{_NS}<")) == closing:
            return None
        name, _ = yield from turn.word(">")
        return Argument(name, (f"{_NS}</{name}>",))

    yield from members(
        turn, element, lambda found: _value(turn, member(schema, found.name), root, found.ends[0], depth)
    )


def _value(turn: StreamParser, schema: Any, root: Mapping[str, Any], closing: str, depth: int) -> Steps[None]:
    """Parse one element's value: elements if the schema or the text requires it, otherwise text."""
    schema = referred(schema, root)
    types = types_of(schema, root)
    item, nested = f"{_NS}<item>", f"{_NS}<"
    if depth < _MAX_DEPTH and types != {"string"}:
        yield from turn.spaces()
        found = yield from turn.take(closing, item, nested)
        turn.back(found)
        empty = found == closing and types in ({"array"}, {"object"})
        if found == item or (empty and "array" in types):
            yield from _items(turn, schema, root, closing, depth + 1)
            return
        if found == nested or empty:
            yield from _members(turn, schema, root, closing, depth + 1)
            return
        turn.back(turn.settle())
    yield from typed_value(turn, types, (closing,))


def _items(turn: StreamParser, schema: Any, root: Mapping[str, Any], closing: str, depth: int) -> Steps[None]:
    """Parse <item> elements as a list, up to `closing`."""
    items = schema.get("items") if isinstance(schema, Mapping) else None
    separator = "["
    while True:
        yield from turn.spaces()
        if (yield from turn.expect(closing, f"{_NS}<item>")) == closing:
            break
        turn.arguments(separator)
        separator = ", "
        yield from _value(turn, items, root, f"{_NS}</item>", depth)
    turn.arguments("[]" if separator == "[" else "]")


MINIMAX_M3 = ToolFormat(
    "minimax-m3",
    ToolCallSyntax(
        _INVOKE,
        ('">',),
        open=f"{_CALLS_OPEN}\n",
        close=f"\n{_CALLS_CLOSE}",
        separator="\n",
        arguments=Elements(_NS, _INVOKE_END),
        closing=_CALLS_CLOSE,
    ),
    recognised_by=((_NS, "<invoke"),),
    calls={_CALLS_OPEN: block_calls(_INVOKE, (_CALLS_CLOSE,), _invoke)},
    tags=(_NS,),
)
"""MiniMax M3: a namespace token before every tag, parameters and the parts of their values as elements::

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>
    ]<]minimax[>[<hours>]<]minimax[>[<item>8]<]minimax[>[</item>]<]minimax[>[</hours>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

The schema distinguishes objects from lists, and text from numbers.
"""
