"""OpenAI's functions of 2023, which preceded tools: ``functions``, ``function_call``, and ``function`` messages.

They are converted to tools and tool calls, and the reply is converted back. A message has at most one call.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from server.chat.conversation import Tools
from server.dialects.chat.tools import read_tools
from server.dialects.fields import as_object, as_string, wrong_type
from server.errors import InvalidRequest

GivenMessage = dict[str, Any]
_OLD = (("tool_choice.function", "function_call"), ("tool_choice", "function_call"), ("tools", "functions"))


def read_functions(functions: object, choice: object) -> Tools:
    """``functions`` and ``function_call`` as tools. Raises `InvalidRequest` that names them."""
    if choice not in (None, "none", "auto") and not _names_one(choice):
        raise InvalidRequest('function_call: must be "none", "auto" or {"name": ...}', "function_call")
    if functions is not None and not isinstance(functions, list):
        raise wrong_type("functions", "an array", functions)
    if not functions and isinstance(choice, dict):
        raise InvalidRequest("function_call: asks for a function, but functions is empty", "function_call")
    tools = None if functions is None else [{"type": "function", "function": function} for function in functions]
    wanted = {"type": "function", "function": choice} if isinstance(choice, dict) else choice
    with old_words():
        found = read_tools(tools, wanted, parallel=False, warnings=[]).tools
    return replace(found, tools=tuple(replace(tool, at=_old(tool.at)) for tool in found.tools))


@contextmanager
def old_words() -> Iterator[None]:
    """Name fields as the client knows them in whatever is wrong."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(_old(error.message), _old(error.param or "") or None) from error


def _old(text: str) -> str:
    first, dot, rest = text.partition(".")
    if first == "tools" and dot:
        number, _, path = rest.partition(".")
        return f"functions.{number}{path.removeprefix('function')}"
    for new, old in _OLD:
        if text.startswith(new):
            return old + text.removeprefix(new)
    return text


def _names_one(choice: object) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("name"), str) and bool(choice["name"])


def _is_old(message: object) -> bool:
    """Whether a message calls a function or has the result of one in the words of 2023."""
    return isinstance(message, dict) and (message.get("role") == "function" or message.get("function_call") is not None)


def with_tools(messages: object) -> object:
    """Convert function calls and results to tool calls and results with ids of our own; other messages stay unchanged.

    Raises `InvalidRequest` with a path such as ``messages.1.function_call.name``.
    """
    if not isinstance(messages, list) or not any(map(_is_old, messages)):
        return messages
    ids: dict[str, str] = {}
    return [
        _modern(message, f"messages.{index}", f"call{index:05d}", ids)
        if isinstance(message, dict) and _is_old(message)
        else message
        for index, message in enumerate(messages)
    ]


def _modern(message: GivenMessage, path: str, call_id: str, ids: dict[str, str]) -> GivenMessage:
    if message.get("role") == "function":
        name = message.get("name")
        if not isinstance(name, str) or not name:
            raise wrong_type(f"{path}.name", "the name of a function", name)
        answered = {"tool_call_id": ids[name]} if name in ids else {}
        return {**message, "role": "tool", **answered}
    call = as_object(message["function_call"], f"{path}.function_call")
    if message.get("tool_calls"):
        raise InvalidRequest(f"{path}.function_call: can't be used beside tool_calls", f"{path}.function_call")
    name, arguments = call.get("name"), call.get("arguments")
    name = as_string(name, f"{path}.function_call.name")
    if not isinstance(arguments, str | dict):
        raise wrong_type(f"{path}.function_call.arguments", "JSON text or an object", arguments)
    ids[name] = call_id
    rest = {key: value for key, value in message.items() if key != "function_call"}
    return {**rest, "tool_calls": [{"id": call_id, "type": "function", "function": call}]}
