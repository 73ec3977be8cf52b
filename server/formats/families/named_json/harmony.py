"""gpt-oss (harmony): messages with a header that says channel and recipient; the prompt ends inside the first header::

    <|channel|>analysis<|message|>I need the weather.<|end|><|start|>assistant<|channel|>commentary
     to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>

(each on one line). Analysis is thought, commentary without a recipient and final are content. The recipient may stand
in front of the channel. LLM-jp 4.1 has a space behind each control token. What is sent to what is no function
(``to=python``) is read without its header, as thought or content by its channel, and so is what is no JSON object.
"""

import re

from server.formats.calls.json_calls import json_arguments
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

_START, _CHANNEL, _MESSAGE = "<|start|>assistant", "<|channel|>", "<|message|>"
_STARTS = (_START, "<|start|> assistant")
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_CHANNEL_NAME = re.compile(r"<\|channel\|> ?(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def parse(turn: StreamParser) -> Steps[None]:
    """Parse message by message; text without a header is content."""
    while True:
        yield from turn.attempt("", _message(turn))
        found = yield from turn.content_until(*_STARTS, _CHANNEL, *_ENDS)
        while found in _ENDS:
            found = yield from turn.content_until(*_STARTS, _CHANNEL, *_ENDS)
        if found == _CHANNEL:
            turn.back(found)


def _message(turn: StreamParser) -> Steps[None]:
    yield from turn.spaces()
    first = yield from turn.expect(_CHANNEL, "to=", _MESSAGE)
    header = first if first == _MESSAGE else first + (yield from turn.word(_MESSAGE))[0] + _MESSAGE
    channel = _CHANNEL_NAME.findall(header)
    name = _function(turn, header)
    turn.mark()
    if f"{_CHANNEL} " in header:
        yield from turn.take(" ")
        turn.mark()
    if name:
        yield from turn.spaces()
    if name and (yield from turn.peek()) in ("{", "n"):
        turn.mark()
        yield from json_arguments(turn, name)
    elif channel[-1:] == ["analysis"]:
        turn.settle()
        turn.reasoning_tag(header)
        end = yield from turn.reasoning_until(*_ENDS, *_STARTS)
        if end in _STARTS:
            turn.back(end)
        else:
            turn.reasoning_tag(end)
    else:
        turn.settle()


def _function(turn: StreamParser, header: str) -> str:
    """The function that the message is sent to; "" for other recipients, and where none may be called."""
    recipient = _RECIPIENT.search(header)
    if recipient is None or not turn.how.callable:
        return ""
    name = recipient[1].removeprefix("functions.")
    return name if name != recipient[1] or name in turn.how.functions else ""


_TO = " to=functions."
_FORM = ToolCallSyntax(
    f"{_CHANNEL}commentary{_TO}",
    tuple(
        f"{channel}{kind}{_MESSAGE}"
        for channel in ("", f"{_CHANNEL}commentary", f"{_CHANNEL}analysis")
        for kind in (" <|constrain|>json", " json", "")
    ),
    trigger=f"{_CHANNEL}commentary{_TO}",
    triggers=(f"{_CHANNEL}analysis{_TO}", f"{_START}{_TO}"),
    elsewhere=(_TO,),
    also_before=(_TO,),  # as the template writes calls of earlier turns
    several=False,
)
FORMAT = ToolFormat(
    name="harmony",
    parse=parse,
    recognised_by=((_CHANNEL, _MESSAGE, "analysis"),),
    tags=("<|start|>", "<|end|>", _MESSAGE, _CHANNEL, "<|constrain|>", "<|call|>", "<|return|>"),
    framed=True,
    reads_reasoning=True,
    breaks=(*_ENDS, _START),
    turn_start=_START,
    leads=(f"{_CHANNEL}final{_MESSAGE}",),
    preamble=f"{_CHANNEL}commentary{_MESSAGE}",
    again=_START,
    forced=_FORM,
)
