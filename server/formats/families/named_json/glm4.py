"""GLM-4 and GLM-4-0414: the function's name on a line of its own, then its JSON; further calls begin anew::

    get_weather
    {"city": "Paris"}<|observation|>

Only for functions that are known, since nothing else tells the first line from an answer's.
"""

from server.formats.calls.json_calls import json_arguments
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import TOOL_NAME, ToolCallSyntax
from server.formats.tool_format import ToolFormat

_START, _STOP = "<|assistant|>", "<|observation|>"


def parse(turn: StreamParser) -> Steps[None]:
    """Parse calls at the start of each message."""
    if not turn.how.callable:
        return
    while True:
        while (yield from turn.attempt("", _call(turn), doubtful=True)):
            pass
        while (yield from turn.content_until(_START, _STOP)) == _STOP:
            pass


def _call(turn: StreamParser) -> Steps[None]:
    yield from turn.spaces()
    name = yield from turn.match(TOOL_NAME)
    if name not in turn.how.functions:
        raise NotMarkup
    yield from turn.expect("\n", " \n")
    turn.certain()
    yield from json_arguments(turn, name)


_FORM = ToolCallSyntax("", ("\n",), joint="\n", by_name=True, at_start=True, elsewhere=(_START,), rest_of_list=True)
FORMAT = ToolFormat(
    name="glm4",
    parse=parse,
    recognised_by=((_STOP, "Json 格式表示调用的参数"),),
    tags=(_START, _STOP),
    forced=_FORM,
)
