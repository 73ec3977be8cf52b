"""DeepSeek R1, V3 and their distillations, and DeepSeek V3.1::

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>

R1 misspells the first tag; the known ways are read, too.
"""

from dataclasses import replace

from server.formats.calls.json_calls import json_arguments
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_MISSPELT = ("<｜tool_calls_begin｜>", "<｜tool calls begin｜>", "<｜tool\\_calls\\_begin｜>", "<｜tool▁calls｜>")
_CALL, _SEP, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCES = ("```json", "```")


def parse(turn: StreamParser) -> Steps[None]:
    """Calls in their section, or without it."""
    while True:
        opening = yield from turn.content_until(_BEGIN, *_MISSPELT, _CALL)
        if opening == _CALL:
            turn.back(opening)
            opening = ""
        yield from turn.attempt(opening, _calls(turn))


def _calls(turn: StreamParser) -> Steps[None]:
    yield from turn.spaces()
    yield from turn.expect(_CALL)
    while True:
        turn.certain()
        name, _ = yield from turn.word(_SEP)
        yield from turn.spaces()
        fenced = yield from turn.take(*_FENCES)
        if not fenced and (yield from turn.peek()) != "{":
            name, _ = yield from turn.word("\n")
            yield from turn.spaces()
            yield from turn.take(*_FENCES)
        yield from json_arguments(turn, name)
        yield from turn.spaces()
        yield from turn.take("```")
        yield from turn.spaces()
        yield from turn.take(_CALL_END)
        turn.mark()
        yield from turn.spaces()
        if (yield from turn.expect(_CALL, _END)) == _END:
            return


_LIST = ToolCallSyntax(
    _CALL,
    (_SEP,),
    _CALL_END,
    open=_BEGIN,
    close=_END,
    trigger=_BEGIN,
    triggers=_MISSPELT,
    rest_of_list=True,
)
_FENCED = replace(
    _LIST, before=f"{_CALL}function{_SEP}", after_name=("\n```json\n",), after=f"\n```{_CALL_END}", joint="\n"
)
_FORM = _LIST
FORMAT = ToolFormat(
    name="deepseek",
    parse=parse,
    recognised_by=((_BEGIN,),),
    tags=(_BEGIN, _END, _CALL, _SEP, _CALL_END),
    also_opened_by=(_CALL,),
    forced=_FORM,
    variants=(("```json", _FENCED),),
)
