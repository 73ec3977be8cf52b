"""Formats with Python calls."""

from server.formats.calls import python_calls
from server.formats.calls.json_calls import several
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import python_list
from server.formats.tool_format import FirstCall, ToolFormat

LFM2 = ToolFormat(
    "lfm2",
    python_list("<|tool_call_start|>[", "]<|tool_call_end|>"),
    recognised_by=(
        ("<|tool_list_start|>", "<|tool_list_end|>"),
        ("List of tools: [",),
        ("<|tool_call_start|>",),
    ),
    dropped=("<|tool_call_end|>",),
)
"""LFM2 and LFM2.5: Python calls in tags; true, false and null may be JSON's."""

OLMO3 = ToolFormat(
    "olmo3",
    python_list("<function_calls>", "</function_calls>", separator="\n"),
    recognised_by=(("<function_calls>", "</function_calls>", "<functions>"),),
    dropped=("</function_calls>",),
)
"""OLMo 3: Python calls in tags, one on each line."""

_FENCE, _FENCE_END = "```tool_code", "```"


def _line(turn: StreamParser) -> Steps[None]:
    """Parse a call or a list of calls, which may be the argument of print."""
    printed = yield from turn.take("print(")
    yield from python_calls.calls(turn) if (yield from turn.peek()) == "[" else python_calls.call(turn)
    if printed:
        yield from turn.spaces()
        yield from turn.expect(")")


GEMMA_3 = ToolFormat(
    "gemma3",
    python_list(f"{_FENCE}\n", f"\n{_FENCE_END}", separator="\n"),
    recognised_by=(("<start_of_turn>", "tool_code"), ("<start_of_turn>", "[func_name1(")),
    calls={_FENCE: several(_line, close=_FENCE_END)},
    first_call=FirstCall("[", python_calls.calls),
)
"""Gemma 3, whose template has no tools: Python in a fence, as Google's guide asks for it, or a list of calls::

```tool_code
get_weather(city="Paris")
```

[get_weather(city="Paris"), get_time(zone="Europe/Paris")]
"""

_TAGS = ("<|python_start|>", "<|python_tag|>")
PYTHONIC = ToolFormat(
    "pythonic",
    python_list("[", "]", openings=("<|python_start|>[",), starts=("[",), by_name=True),
    recognised_by=(("[func_name1(",), ("[func1(params_name1=",)),
    calls=dict.fromkeys(_TAGS, python_calls.calls),
    first_call=FirstCall("[", python_calls.calls),
    dropped=("<|python_end|>",),
)
"""Llama 3.2 and 4 with a pythonic template, ToolACE: Python calls in a list, as the whole message::

[get_weather(city='Paris'), get_time(zone="Europe/Paris", exact=True)]
<|python_start|>[get_weather(city='Paris')]<|python_end|>
"""
