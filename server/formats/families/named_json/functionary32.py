"""Functionary 3.2: recipients, each on a line of its own; the prompt ends with the first ``>>>``::

    all
    Let me look.>>>get_weather
    {"city": "Paris"}>>>get_time
    {"zone": "Europe/Paris"}

Text for ``python`` is code.
"""

from server.formats.calls.json_calls import json_arguments
from server.formats.families.named_json.functionary31 import code
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

_OPEN = ">>>"


def _recipient(turn: StreamParser) -> Steps[None]:
    """The recipient ``all`` is the reader; a line that is no recipient is content."""
    name, _ = yield from turn.word("\n")
    if name == "all":
        turn.mark()
        return
    if not turn.how.callable or not turn.knows(name):
        raise NotMarkup
    if name == "python" and (yield from turn.peek()) != "{":
        yield from code(turn)
    yield from json_arguments(turn, name)


_FORM = ToolCallSyntax("", ("\n",), joint=_OPEN, by_name=True, at_start=True, elsewhere=(_OPEN,))
FORMAT = ToolFormat(
    name="functionary-v3.2",
    parse=anywhere(_recipient, _OPEN),
    recognised_by=((">>>all", ">>>${recipient}"),),
    tags=(">>>",),
    framed=True,
    turn_start="assistant<|end_header_id|>\n\n",
    leads=("all\n",),
    forced=_FORM,
)
