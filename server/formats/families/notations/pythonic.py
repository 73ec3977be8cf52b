"""Llama 3.2 and 4 with a pythonic template, ToolACE: Python calls in a list, as the whole message::

[get_weather(city='Paris'), get_time(zone="Europe/Paris", exact=True)]
<|python_start|>[get_weather(city='Paris')]<|python_end|>
"""

from server.formats.call_form import python_list
from server.formats.calls import python_calls
from server.formats.form import ToolFormat
from server.formats.parsing.reader import Steps
from server.formats.parsing.turn import Turn, anywhere

_TAGS = ("<|python_start|>", "<|python_tag|>", "<|python_end|>")


def parse(turn: Turn) -> Steps[None]:
    """A list at the beginning, or behind a tag."""
    if (yield from turn.begins_with("[")):
        yield from turn.attempt("", python_calls.calls(turn), doubtful=True)
    yield from anywhere(python_calls.calls, *_TAGS[:2], silent=_TAGS[2:])(turn)


FORMAT = ToolFormat(
    name="pythonic",
    parse=parse,
    recognised_by=(("[func_name1(",), ("[func1(params_name1=",)),
    tags=_TAGS,
    forced=python_list("[", "]", elsewhere=("<|python_start|>[",), by_name=True, at_start=True),
)
