"""Solar Open 2: names and values between tokens; the schema gives the types::

<|tool_call:start|>get_weather
<|tool_arg:start|>city<|tool_arg:value|>Paris<|tool_arg:end|>
<|tool_arg:start|>days<|tool_arg:value|>3<|tool_arg:end|>
<|tool_call:end|>
"""

from server.formats.calls.typed import Argument, typed_call
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere
from server.formats.tool_call_syntax import Parameters, ToolCallSyntax
from server.formats.tool_format import ToolFormat

_CALL, _CALL_END = "<|tool_call:start|>", "<|tool_call:end|>"
_KEY, _VALUE, _VALUE_END = "<|tool_arg:start|>", "<|tool_arg:value|>", "<|tool_arg:end|>"


def _call(turn: StreamParser) -> Steps[None]:
    name, _ = yield from turn.word("\n")
    if not name.strip():
        raise NotMarkup
    yield from typed_call(turn, name.strip(), lambda: _argument(turn))


def _argument(turn: StreamParser) -> Steps[Argument | None]:
    yield from turn.spaces()
    if (yield from turn.expect(_KEY, _CALL_END)) == _CALL_END:
        return None
    key, _ = yield from turn.word(_VALUE)
    return Argument(key.strip(), (_VALUE_END,))


_FORM = ToolCallSyntax(
    _CALL,
    ("\n",),
    joint="\n",
    arguments=Parameters(_KEY, _VALUE, _VALUE_END, joint="\n", end=_CALL_END),
    trigger=_CALL,
)
FORMAT = ToolFormat(
    name="solar2",
    parse=anywhere(_call, _CALL),
    recognised_by=((_KEY, _VALUE),),
    tags=(_CALL, _CALL_END, _KEY, _VALUE, _VALUE_END),
    forced=_FORM,
)
