"""Families that write bare keys in braces. Below each stands what its models write."""

from server.formats.call_form import Braces, CallForm
from server.formats.calls.brace_calls import BraceCalls
from server.formats.form import ToolFormat
from server.formats.parsing.frame import Frame
from server.formats.parsing.turn import anywhere

_FUNCTION_CALL, _FUNCTION_END, _ESCAPE = "<start_function_call>call:", "<end_function_call>", "<escape>"
_STOP = "<start_function_response>"
FUNCTION_GEMMA = ToolFormat(
    name="function-gemma",
    parse=anywhere(BraceCalls(_FUNCTION_END, _ESCAPE).call, _FUNCTION_CALL, silent=(_STOP,)),
    recognised_by=(("<start_function_call>", _ESCAPE),),
    tags=("<start_function_call>", _FUNCTION_END, _ESCAPE, _STOP),
    forced=CallForm(_FUNCTION_CALL, ("",), _FUNCTION_END, arguments=Braces(_ESCAPE), trigger=_FUNCTION_CALL),
)
"""FunctionGemma: Gemma 4's notation with tags of its own, and ``<escape>`` for quotes::

    <start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>

The model stops with <start_function_response>, which means nothing.
"""

_THOUGHT, _END_THOUGHT = "<|channel>thought", "<channel|>"
_CALL, _CALL_END, _QUOTE = "<|tool_call>call:", "<tool_call|>", '<|"|>'
_CALLS = BraceCalls(_CALL_END, _QUOTE)
GEMMA_4 = ToolFormat(
    name="gemma4",
    parse=Frame((_THOUGHT, _END_THOUGHT), ("<|channel>", "<|turn>model\n", "<turn|>"), {_CALL: _CALLS.call}).parse,
    recognised_by=((_CALL,),),
    tags=("<|channel>", _END_THOUGHT, "<|tool_call>", _CALL_END, _QUOTE, "<|turn>"),
    framed=True,
    thinks=True,
    turn_start="<|turn>model\n",
    forced=CallForm(_CALL, ("",), _CALL_END, arguments=Braces(_QUOTE), trigger=_CALL),
)
"""Gemma 4: thoughts in a channel; a call's arguments in a notation of their own, with a token for quotes::

    <|channel>thought
    ...<channel|>Let me look.<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3,units:[<|"|>C<|"|>]}<tool_call|>

Empty channels and single closing tags mean nothing.
"""
