"""Formats with Python calls.

Each constant is followed by its models and an example of their output.
"""

from server.formats.calls import python_calls
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import Parse, StreamParser, anywhere
from server.formats.tool_call_syntax import python_list
from server.formats.tool_format import ToolFormat

_LFM2 = ("<|tool_call_start|>", "<|tool_call_end|>")
LFM2 = ToolFormat(
    name="lfm2",
    parse=anywhere({_LFM2[0]: python_calls.calls}, _LFM2[1]),
    recognised_by=(("<|tool_list_start|>", "<|tool_list_end|>"), ("List of tools: [",), _LFM2[:1]),
    tags=_LFM2,
    forced=python_list(f"{_LFM2[0]}[", f"]{_LFM2[1]}", trigger=_LFM2[0]),
)
"""LFM2 and LFM2.5: Python calls in tags; true, false and null may be JSON's::

<|tool_call_start|>[get_weather(city="Paris"), get_time(zone='Europe/Paris')]<|tool_call_end|>
"""

_OLMO3 = ("<function_calls>", "</function_calls>")

OLMO3 = ToolFormat(
    name="olmo3",
    parse=anywhere({_OLMO3[0]: python_calls.calls}, _OLMO3[1]),
    recognised_by=((*_OLMO3, "<functions>"),),
    tags=_OLMO3,
    forced=python_list(*_OLMO3, joint="\n"),
)
"""OLMo 3: Python calls in tags, one on each line::

<function_calls>get_weather(city="Paris")
get_time(zone="Europe/Paris", exact=true)</function_calls>
"""

_TAGS = ("<|python_start|>", "<|python_tag|>", "<|python_end|>")


def _or_list(parse: Parse) -> Parse:
    """Create a parser of a list of calls at the start; `parse` parses the rest."""

    def either(turn: StreamParser) -> Steps[None]:
        if (yield from turn.begins_with("[")):
            yield from turn.attempt("", python_calls.calls(turn), doubtful=True)
        yield from parse(turn)

    return either


PYTHONIC = ToolFormat(
    name="pythonic",
    parse=_or_list(anywhere(dict.fromkeys(_TAGS[:2], python_calls.calls), _TAGS[2])),
    recognised_by=(("[func_name1(",), ("[func1(params_name1=",)),
    tags=_TAGS,
    forced=python_list("[", "]", elsewhere=("<|python_start|>[",), by_name=True, at_start=True),
)
"""Llama 3.2 and 4 with a pythonic template, ToolACE: Python calls in a list, as the whole message::

[get_weather(city='Paris'), get_time(zone="Europe/Paris", exact=True)]
<|python_start|>[get_weather(city='Paris')]<|python_end|>
"""

_FENCE, _FENCE_END = "```tool_code", "```"


def _fence(turn: StreamParser) -> Steps[None]:
    """Calls line by line, in brackets, or as the argument of print."""
    n_calls = turn.n_calls
    while True:
        yield from turn.spaces()
        if turn.n_calls > n_calls and (yield from turn.take(_FENCE_END)):
            return
        printed = yield from turn.take("print(")
        listed = yield from turn.peek()
        yield from python_calls.calls(turn) if listed == "[" else python_calls.call(turn)
        turn.end_call()
        if printed:
            yield from turn.spaces()
            if not (yield from turn.take(")")):
                raise NotMarkup


GEMMA_3 = ToolFormat(
    name="gemma3",
    parse=_or_list(anywhere({_FENCE: _fence})),
    recognised_by=(("<start_of_turn>", "tool_code"), ("<start_of_turn>", "[func_name1(")),
    forced=python_list(f"{_FENCE}\n", f"\n{_FENCE_END}", joint="\n"),
)
"""Gemma 3, whose template has no tools: Python in a fence, as Google's guide asks for it, or a list of calls::

```tool_code
get_weather(city="Paris")
```

[get_weather(city="Paris"), get_time(zone="Europe/Paris")]
"""
