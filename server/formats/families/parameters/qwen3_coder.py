"""Qwen3-Coder, Qwen 3.5, Nemotron 3, StepFun 3.5; Seed-OSS with a prefix and without the new lines around values::

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    <parameter=days>
    3
    </parameter>
    </function>
    </tool_call>

    <seed:tool_call><function=get_weather><parameter=city>Paris</parameter></function></seed:tool_call>

Everything is text: only the schema tells "3" from 3. Qwen3-Coder leaves out <tool_call> at times, so that a function's
tag opens a call, too, if the function is known; some of the family answer in Hermes' JSON.
"""

from server.formats.calls.json_calls import JsonCalls
from server.formats.calls.typed import Argument, typed_call
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import Parameters, ToolCallSyntax
from server.formats.tool_format import ToolFormat

_OPENINGS = ("<tool_call>", "<seed:tool_call>")
_CLOSINGS = ("</tool_call>", "</seed:tool_call>")
_FUNCTION, _FUNCTION_END, _PARAMETER = "<function=", "</function>", "<parameter="
_OWN_LINE_ENDS = ("\n</parameter>", "</parameter>\n<")
_JSON = JsonCalls(_OPENINGS[:1], _CLOSINGS[0])


def parse(turn: StreamParser) -> Steps[None]:
    """Calls with their tag, or functions without it."""
    functions = tuple(f"{_FUNCTION}{name}>" for name in turn.how.functions)
    while True:
        opening = yield from turn.content_until(*_OPENINGS, *functions)
        if opening in functions:
            turn.back(opening)
            opening = ""
        yield from turn.attempt(opening, _calls(turn))


def _calls(turn: StreamParser) -> Steps[None]:
    yield from turn.spaces()
    if (yield from turn.peek()) == "{":
        yield from _JSON.calls(turn)
        return
    while True:
        yield from turn.expect(_FUNCTION)
        turn.certain()
        name, _ = yield from turn.word(">")
        if not name.strip():
            raise NotMarkup
        yield from typed_call(turn, name.strip(), lambda: _argument(turn))
        turn.end_call()
        yield from turn.spaces()
        if (yield from turn.take(*_CLOSINGS)):
            return


def _argument(turn: StreamParser) -> Steps[Argument | None]:
    yield from turn.spaces()
    found = yield from turn.expect(_PARAMETER, _FUNCTION_END, *_CLOSINGS)
    if found != _PARAMETER:
        turn.back("" if found == _FUNCTION_END else found)
        return None
    key, _ = yield from turn.word(">")
    own_line = yield from turn.take("\n")
    return Argument(key.strip(), _OWN_LINE_ENDS if own_line else ("</parameter>",))


_FORM = ToolCallSyntax(
    f"{_OPENINGS[0]}\n{_FUNCTION}",
    (">\n",),
    f"\n{_CLOSINGS[0]}",
    joint="\n",
    arguments=Parameters(_PARAMETER, ">\n", _OWN_LINE_ENDS[0], joint="\n", end=_FUNCTION_END, never=_OWN_LINE_ENDS[1:]),
    trigger=_OPENINGS[0],
)
_SEED = ToolCallSyntax(
    f"{_OPENINGS[1]}\n{_FUNCTION}",
    (">\n",),
    f"\n{_CLOSINGS[1]}",
    joint="\n",
    arguments=Parameters(_PARAMETER, ">", "</parameter>", joint="\n", end=_FUNCTION_END),
    trigger=_OPENINGS[1],
)
FORMAT = ToolFormat(
    name="qwen3-coder",
    parse=parse,
    recognised_by=((_FUNCTION, _PARAMETER),),
    tags=(*_OPENINGS, *_CLOSINGS),
    forced=_FORM,
    variants=((_OPENINGS[1], _SEED),),
)
