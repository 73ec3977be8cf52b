"""Gemma 4: thoughts in a channel; a call's arguments in a notation of their own, with a token for quotes::

    <|channel>thought
    ...<channel|>Let me look.<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3,units:[<|"|>C<|"|>]}<tool_call|>

Empty channels and single closing tags mean nothing.
"""

from server.formats.call_form import Braces, CallForm
from server.formats.calls.brace_calls import BraceCalls
from server.formats.form import ToolFormat
from server.formats.parsing.frame import Frame

_THOUGHT, _END_THOUGHT = "<|channel>thought", "<channel|>"
_CALL, _CALL_END = "<|tool_call>call:", "<tool_call|>"
_QUOTE = '<|"|>'
_CALLS = BraceCalls(_CALL_END, _QUOTE)


_FORM = CallForm(_CALL, ("",), _CALL_END, arguments=Braces(_QUOTE), trigger=_CALL)
FORMAT = ToolFormat(
    name="gemma4",
    parse=Frame((_THOUGHT, _END_THOUGHT), ("<|channel>", "<|turn>model\n", "<turn|>"), {_CALL: _CALLS.call}).parse,
    recognised_by=((_CALL,),),
    tags=("<|channel>", _END_THOUGHT, "<|tool_call>", _CALL_END, _QUOTE, "<|turn>"),
    framed=True,
    thinks=True,
    turn_start="<|turn>model\n",
    forced=_FORM,
)
