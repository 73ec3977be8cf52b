"""OLMo 3: Python calls in tags, one on each line::

<function_calls>get_weather(city="Paris")
get_time(zone="Europe/Paris", exact=true)</function_calls>
"""

from server.formats.call_form import python_list
from server.formats.calls import python_calls
from server.formats.form import ToolFormat
from server.formats.parsing.reader import Steps
from server.formats.parsing.turn import Turn, anywhere

_OPEN, _CLOSE = "<function_calls>", "</function_calls>"


def _calls(turn: Turn) -> Steps[None]:
    yield from turn.spaces()
    yield from python_calls.calls(turn)


FORMAT = ToolFormat(
    name="olmo3",
    parse=anywhere(_calls, _OPEN, silent=(_CLOSE,)),
    recognised_by=((_OPEN, _CLOSE, "<functions>"),),
    tags=(_OPEN, _CLOSE),
    forced=python_list(_OPEN, _CLOSE, joint="\n"),
)
