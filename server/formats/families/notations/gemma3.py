"""Gemma 3, whose template has no tools: Python in a fence, as Google's guide asks for it, or a list of calls::

```tool_code
get_weather(city="Paris")
```

[get_weather(city="Paris"), get_time(zone="Europe/Paris")]
"""

from server.formats.calls import python_calls
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere
from server.formats.tool_call_syntax import python_list
from server.formats.tool_format import ToolFormat

_OPEN, _CLOSE = "```tool_code", "```"


def parse(turn: StreamParser) -> Steps[None]:
    """Parse a list at the start, or fences anywhere."""
    if (yield from turn.begins_with("[")):
        yield from turn.attempt("", python_calls.calls(turn), doubtful=True)
    yield from anywhere(_fence, _OPEN)(turn)


def _fence(turn: StreamParser) -> Steps[None]:
    """Calls line by line, in brackets, or as the argument of print."""
    n_calls = turn.n_calls
    while True:
        yield from turn.spaces()
        if turn.n_calls > n_calls and (yield from turn.take(_CLOSE)):
            return
        printed = yield from turn.take("print(")
        listed = yield from turn.peek()
        yield from python_calls.calls(turn) if listed == "[" else python_calls.call(turn)
        turn.end_call()
        if printed:
            yield from turn.spaces()
            if not (yield from turn.take(")")):
                raise NotMarkup


FORMAT = ToolFormat(
    name="gemma3",
    parse=parse,
    recognised_by=(("<start_of_turn>", "tool_code"), ("<start_of_turn>", "[func_name1(")),
    forced=python_list(f"{_OPEN}\n", f"\n{_CLOSE}", joint="\n", trigger=_OPEN),
)
