"""Parses ``messages`` and ``tools`` of Ollama's chat.

Older clients send calls without ids, and results with a tool's name only. Both get ids here, because some templates
need them.
"""

import re

from server.chat.conversation import Call, Content, Media, Message, Part, TextPart, Tools, text_content
from server.dialects.chat.tools import read_tools
from server.dialects.fields import MAX_MESSAGES, as_array, as_object, json_text, text_of, wrong_type
from server.dialects.media import link
from server.errors import InvalidRequest

_SEVERAL_TYPES = re.compile(r"\w+(?:, ?\w+)+", re.ASCII)


def read_messages(value: object) -> list[Message]:
    """Return the messages, which may be empty. Raises `InvalidRequest` with a path such as ``messages.0.role``."""
    if value is None:
        return []
    value = as_array(value, "messages")
    if len(value) > MAX_MESSAGES:
        raise InvalidRequest(f"messages: must have at most {MAX_MESSAGES} messages", "messages")
    waiting: list[Call] = []  # calls without a result so far
    return [_message(message, f"messages.{index}", waiting) for index, message in enumerate(value)]


def content_of(text: str, images: object, path: str) -> Content:
    """Return a text with its images, each in base64. Raises `InvalidRequest`."""
    if images is None:
        return text
    if not isinstance(images, list):
        raise wrong_type(path, "an array of images in base64", images)
    for index, image in enumerate(images):
        if not isinstance(image, str):
            raise wrong_type(f"{path}.{index}", "an image in base64", image)
    parts: list[Part] = [Media("image", at=f"{path}.{index}", source=link(image)) for index, image in enumerate(images)]
    return text_content([*parts, TextPart(text)] if text else parts)


def read_functions(value: object, warnings: list[str]) -> Tools:
    """``tools``; adds to `warnings` what no model can use. The official client writes several types of a parameter as
    ``integer, string``; others leave out that a tool is a function."""
    if isinstance(value, list):
        value = [_typed({"type": "function", **tool} if isinstance(tool, dict) else tool) for tool in value]
    return read_tools(value, None, None, warnings).tools


def _message(given: object, path: str, waiting: list[Call]) -> Message:
    given = as_object(given, path)
    role = text_of(given, "role", path).lower()
    if not role:
        raise InvalidRequest(f"{path}.role: is required", f"{path}.role")
    content = content_of(text_of(given, "content", path), given.get("images"), f"{path}.images")
    thoughts = text_of(given, "thinking", path)
    if role != "tool":
        calls = _calls(given.get("tool_calls"), f"{path}.tool_calls", len(waiting))
        waiting += calls
        return Message(role, content, thoughts, tuple(calls))
    name = text_of(given, "tool_name", path) or text_of(given, "name", path)
    answered = _answered(waiting, text_of(given, "tool_call_id", path), name)
    if answered is not None:
        waiting.remove(answered)
        return Message(role, content, thoughts, call_id=answered.id, name=answered.name)
    return Message(role, content, thoughts, call_id=text_of(given, "tool_call_id", path), name=name)


def _answered(waiting: list[Call], call_id: str, name: str) -> Call | None:
    """The call that a result is of: by its id, else the first of that name, else the first.

    An id that no call has is as none: litellm leaves ids out of calls, not out of results.
    """
    same = [call for call in waiting if call.id == call_id]
    named = [call for call in waiting if call.name == name]
    return next(iter(same or (named if name else waiting)), None)


def _calls(given: object, path: str, n_before: int) -> list[Call]:
    if given is None:
        return []
    given = as_array(given, path)
    return [_call(call, f"{path}.{index}", f"call_{n_before + index}") for index, call in enumerate(given)]


def _call(given: object, path: str, own_id: str) -> Call:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(function, dict):
        raise wrong_type(f"{path}.function", "an object", function)
    arguments = function.get("arguments")
    if isinstance(arguments, str):  # OpenAI's way, which clients mix in
        text = arguments
    elif isinstance(arguments, dict | None):
        text = json_text(arguments or {})
    else:
        raise wrong_type(f"{path}.function.arguments", "an object", arguments)
    name = text_of(function, "name", f"{path}.function")
    return Call(name, text, text_of(given, "id", path) or own_id)


def _typed(tool: object) -> object:
    """A tool whose parameters' types are JSON Schema's."""
    function = tool.get("function") if isinstance(tool, dict) else None
    parameters = function.get("parameters") if isinstance(function, dict) else None
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not (isinstance(tool, dict) and isinstance(function, dict) and isinstance(parameters, dict)):
        return tool
    if not isinstance(properties, dict):
        return tool
    typed = {name: _several(schema) for name, schema in properties.items()}
    return {**tool, "function": {**function, "parameters": {**parameters, "properties": typed}}}


def _several(schema: object) -> object:
    if isinstance(schema, dict) and isinstance(schema.get("type"), str) and _SEVERAL_TYPES.fullmatch(schema["type"]):
        return {**schema, "type": re.split(", ?", schema["type"])}
    return schema
