"""InternLM 2.5 and 3, Intern-S1: JSON between tags of its own, with a space between two of them or without::

<|action_start|><|plugin|>
{"name": "get_weather", "parameters": {"city": "Paris"}}<|action_end|>

Code for the interpreter (``<|action_start|><|interpreter|>``) stays content.
"""

from server.formats.call_form import json_calls
from server.formats.calls.json_calls import JsonCalls
from server.formats.form import ToolFormat

_OPENINGS = ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>")
_CLOSE = "<|action_end|>"
FORMAT = ToolFormat(
    name="internlm",
    parse=JsonCalls(_OPENINGS, _CLOSE).parse,
    recognised_by=(("<|action_start|>", "<|plugin|>"),),
    tags=("<|action_start|>", "<|plugin|>", _CLOSE),
    forced=json_calls(f"{_OPENINGS[0]}\n", _CLOSE, key="parameters", triggers=_OPENINGS[1:], joint="\n"),
)
