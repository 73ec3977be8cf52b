"""FunctionGemma: Gemma 4's notation with tags of its own, and ``<escape>`` for quotes::

    <start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>

The model stops with <start_function_response>, which means nothing.
"""

from server.formats.call_form import Braces, CallForm
from server.formats.calls.brace_calls import BraceCalls
from server.formats.form import ToolFormat
from server.formats.parsing.turn import anywhere

_CALL, _CALL_END, _QUOTE = "<start_function_call>call:", "<end_function_call>", "<escape>"
_STOP = "<start_function_response>"
_CALLS = BraceCalls(_CALL_END, _QUOTE)


FORMAT = ToolFormat(
    name="function-gemma",
    parse=anywhere(_CALLS.call, _CALL, silent=(_STOP,)),
    recognised_by=(("<start_function_call>", _QUOTE),),
    tags=("<start_function_call>", _CALL_END, _QUOTE, _STOP),
    forced=CallForm(_CALL, ("",), _CALL_END, arguments=Braces(_QUOTE), trigger=_CALL),
)
