"""LFM2 and LFM2.5: Python calls in tags; true, false and null may be JSON's::

<|tool_call_start|>[get_weather(city="Paris"), get_time(zone='Europe/Paris')]<|tool_call_end|>
"""

from server.formats.call_form import python_list
from server.formats.calls import python_calls
from server.formats.form import ToolFormat
from server.formats.parsing.turn import anywhere

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"


FORMAT = ToolFormat(
    name="lfm2",
    parse=anywhere(python_calls.calls, _OPEN, silent=(_CLOSE,)),
    recognised_by=(("<|tool_list_start|>", "<|tool_list_end|>"), ("List of tools: [",), (_OPEN,)),
    tags=(_OPEN, _CLOSE),
    forced=python_list(f"{_OPEN}[", f"]{_CLOSE}", trigger=_OPEN),
)
