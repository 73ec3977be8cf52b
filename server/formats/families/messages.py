"""Formats whose turns are messages with headers, which specify a channel, a recipient or a type."""

import re

from server.formats.calls.json_calls import call_object, json_arguments
from server.formats.calls.parameters import invoke_syntax, parameter_calls
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import Parse, StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

_START, _CHANNEL, _MESSAGE = "<|start|>assistant", "<|channel|>", "<|message|>"
_STARTS = (_START, "<|start|> assistant")
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_CHANNEL_NAME = re.compile(r"<\|channel\|> ?(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def _by_message(
    parse_message: Parse, starts: tuple[str, ...], ends: tuple[str, ...], inside: tuple[str, ...] = ()
) -> Parse:
    """Create a parser of messages, which `parse_message` parses after one of `starts` or from one of `inside` on.

    Text without a header is content.
    """

    def parse(turn: StreamParser) -> Steps[None]:
        while True:
            yield from turn.attempt("", parse_message(turn))
            found = ends[0]
            while found in ends:
                found = yield from turn.content_until(*starts, *inside, *ends)
            if found in inside:
                turn.back(found)

    return parse


def _channel_message(turn: StreamParser) -> Steps[None]:
    yield from turn.spaces()
    first = yield from turn.expect(_CHANNEL, "to=", _MESSAGE)
    header = first if first == _MESSAGE else first + (yield from turn.word(_MESSAGE))[0] + _MESSAGE
    channel = _CHANNEL_NAME.findall(header)
    name = _function(turn, header)
    turn.settle()
    if f"{_CHANNEL} " in header:
        yield from turn.take(" ")
    if name:
        yield from turn.spaces()
    turn.settle()
    if name and (yield from turn.peek()) in ("{", "n"):
        yield from json_arguments(turn, name)
    elif channel[-1:] == ["analysis"]:
        yield from turn.tagged_reasoning(header, _ENDS, _STARTS)


def _function(turn: StreamParser, header: str) -> str:
    """Return the function that the message is sent to; "" for other recipients, or if none may be called."""
    recipient = _RECIPIENT.search(header)
    if recipient is None or not turn.options.callable:
        return ""
    name = recipient[1].removeprefix("functions.")
    return name if name != recipient[1] or name in turn.options.functions else ""


_TO = " to=functions."
HARMONY = ToolFormat(
    "harmony",
    ToolCallSyntax(
        f"{_CHANNEL}commentary{_TO}",
        tuple(
            f"{channel}{kind}{_MESSAGE}"
            for channel in ("", f"{_CHANNEL}commentary", f"{_CHANNEL}analysis")
            for kind in (" <|constrain|>json", " json", "")
        ),
        openings=(f"{_CHANNEL}commentary{_TO}", f"{_CHANNEL}analysis{_TO}", f"{_START}{_TO}"),
        starts=(_TO,),
        also_before=(_TO,),  # as the template writes calls of earlier turns
        several=False,
    ),
    recognised_by=((_CHANNEL, _MESSAGE, "analysis"),),
    parser=_by_message(_channel_message, _STARTS, _ENDS, inside=(_CHANNEL,)),
    inline_reasoning=(f"{_CHANNEL}analysis{_MESSAGE}", _ENDS[0]),
    breaks=(*_ENDS, _START),
    leads=(f"{_CHANNEL}final{_MESSAGE}",),
    again=_START,
    preamble=f"{_CHANNEL}commentary{_MESSAGE}",
    turn_start=_START,
)
"""gpt-oss (harmony): messages with a header for channel and recipient; the prompt ends inside the first header::

    <|channel|>analysis<|message|>I need the weather.<|end|><|start|>assistant<|channel|>commentary
     to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>

(each on one line). Analysis is reasoning; final, and commentary without a recipient, are content. The recipient may
precede the channel. LLM-jp 4.1 has a space after each control token. A message whose recipient is not a function
(``to=python``), or whose body is not a JSON object, is reasoning or content according to its channel.
"""

_MODEL = "<|message_model|>"
_THINKING, _TEXT, _CALL = "<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"
_BLOCK_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")


def _block(turn: StreamParser) -> Steps[None]:
    name = yield from turn.name()
    kind = yield from turn.expect(_CALL) if name else turn.expect(_THINKING, _TEXT, _CALL)
    if kind == _THINKING:
        yield from turn.tagged_reasoning(kind, _BLOCK_ENDS, (_MODEL, _TEXT))
    elif kind == _CALL:
        if not turn.options.callable:
            raise NotMarkup
        yield from turn.spaces()
        yield from call_object(turn)


INKLING = ToolFormat(
    "inkling",
    ToolCallSyntax(f'{_CALL}{{"name": "', ('", "args": ', '","args":'), "}", lead=("", ""), several=False),
    recognised_by=((_MODEL, _CALL),),
    parser=_by_message(_block, (_MODEL,), _BLOCK_ENDS, inside=(_THINKING, _TEXT, _CALL)),
    inline_reasoning=(_THINKING, _BLOCK_ENDS[0]),
    breaks=(*_BLOCK_ENDS, _MODEL, _TEXT),
    leads=(_TEXT,),
    again=_MODEL,
    turn_start=_MODEL,
)
"""Inkling: blocks with their type; the prompt ends before the first one::

<|content_thinking|>I need the weather.<|end_message|><|message_model|>get_weather<|content_invoke_tool_json|>
{"name":"get_weather","args":{"city":"Paris"}}<|end_message|><|content_model_end_sampling|>

<|content_thinking|>...<|end_message|><|message_model|><|content_text|>It is sunny.<|end_message|>

(each on one line).
"""

_RECIPIENT_IS = " to="
_MESSAGE_ENDS = ("<|eom|>", "<|eot|>")
_INVOKES = invoke_syntax("function_calls", "atem:", lead=(_RECIPIENT_IS, _MESSAGE))
_invokes = parameter_calls(_INVOKES)


def _message(turn: StreamParser) -> Steps[None]:
    header = yield from turn.expect(_RECIPIENT_IS, _MESSAGE)
    recipient, _ = (yield from turn.word(_MESSAGE)) if header == _RECIPIENT_IS else ("user", "")
    if recipient == "self":
        yield from turn.tagged_reasoning(f"{_RECIPIENT_IS}self{_MESSAGE}", _MESSAGE_ENDS, (_START,))
    elif recipient != "user":
        if not turn.options.callable:
            raise NotMarkup
        yield from turn.spaces()
        yield from turn.expect(*_INVOKES.openings)
        yield from _invokes(turn)


MUSE = ToolFormat(
    "muse",
    _INVOKES,
    recognised_by=(("<atem:function_calls>", "<|eom|>"),),
    parser=_by_message(_message, (_START,), _MESSAGE_ENDS),
    tags=("<atem:invoke", "<atem:parameter"),
    inline_reasoning=(f"{_RECIPIENT_IS}self{_MESSAGE}", _MESSAGE_ENDS[0]),
    breaks=(*_MESSAGE_ENDS, _START),
    leads=(f"{_RECIPIENT_IS}user{_MESSAGE}",),
    again=_START,
    turn_start=_START,
)
"""Muse: messages with a recipient; the prompt ends before the first one::

 to=self<|message|>I need the weather.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>
<atem:invoke name="get_weather">
<atem:parameter name="city">Paris</atem:parameter>
</atem:invoke>
</atem:function_calls><|eot|>

 to=user<|message|>It is sunny.<|eot|>
"""
