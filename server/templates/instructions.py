"""Describes tools in the system message for templates without tools, with the syntax of the format's calls.

Calls and results of earlier turns become text of the assistant and the user if the template can't show them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from server.formats.arguments import object_text
from server.formats.recognition import TemplateMessage
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.written import calls_text
from server.templates.adaptation import joined, result_as_text

_TEXT = """You can call functions. Their signatures, as JSON Schema:
{tools}

To call one or several of them, answer with nothing but the calls in this form:
{example}
You get the results then. When no function is needed, answer as usual."""

_CHOICES = ("anyOf", "oneOf", "allOf")
_MAX_DEPTH = 50  # of a schema; few templates follow it at all


def with_tools(
    messages: Sequence[TemplateMessage], tools: Sequence[Mapping[str, Any]], syntax: ToolCallSyntax
) -> list[TemplateMessage]:
    """Return the messages with a description of the tools, in the system message or as a new one."""
    example = calls_text(syntax, [("function_name", '{"parameter": "value"}')])
    signatures = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _TEXT.format(tools=signatures, example=example)
    if not messages or messages[0].get("role") not in ("system", "developer"):
        return [{"role": "system", "content": text}, *messages]
    return [_with_text(messages[0], text), *messages[1:]]


def calls_as_text(
    messages: Sequence[TemplateMessage], syntax: ToolCallSyntax, *, results: bool = True
) -> list[TemplateMessage]:
    """Return the messages with calls and results as text; results are joined with the next user message.

    ``results=False``: results are unchanged.
    """
    names: dict[str, str] = {}
    result: list[TemplateMessage] = []
    from_user: list[TemplateMessage] = []  # results and the following user messages
    for message in messages:
        role = message.get("role")
        is_result = results and role == "tool"
        if is_result or (from_user and role == "user"):
            name = message.get("name") or names.get(message.get("tool_call_id", ""), "the function")
            from_user.append(result_as_text(message, name) if is_result else message)
            continue
        result += _as_one(from_user)
        from_user = []
        if message.get("tool_calls"):
            functions = [call["function"] for call in message["tool_calls"]]
            calls = [(function["name"], object_text(function["arguments"])) for function in functions]
            names |= {call.get("id", ""): call["function"]["name"] for call in message["tool_calls"]}
            plain = {key: value for key, value in message.items() if key != "tool_calls"}
            result.append(_with_text(plain, calls_text(syntax, calls)))
        else:
            result.append(message)
    return [*result, *_as_one(from_user)]


def _as_one(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Return the messages merged into one user message; [] if there are none."""
    return [{**messages[0], "content": joined(each.get("content") for each in messages)}] if messages else []


def completed(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool with all members that templates assume: descriptions, parameters, and one type per value."""
    function = tool["function"]
    parameters = {"type": "object", "properties": {}, **_mapping(function.get("parameters"))}
    return {**tool, "function": {"description": "", **function, "parameters": _completed_schema(parameters)}}


def _completed_schema(given: Any, depth: int = 0) -> dict[str, Any]:
    schema = {"description": "", **_mapping(given)}
    if depth == _MAX_DEPTH:
        return schema
    choices: list[Any] = next((schema[key] for key in _CHOICES if isinstance(schema.get(key), list)), [])
    kinds = schema.get("type") or [_mapping(each).get("type") for each in choices]
    if not isinstance(kinds, str):
        kinds = kinds if isinstance(kinds, list) else []
        schema["type"] = next((kind for kind in kinds if isinstance(kind, str) and kind != "null"), "string")
    if schema["type"] == "object":
        properties = _mapping(schema.get("properties"))
        schema["properties"] = {name: _completed_schema(value, depth + 1) for name, value in properties.items()}
        schema["additionalProperties"] = _completed_schema(schema.get("additionalProperties"), depth + 1)
    if schema["type"] == "array":
        schema["items"] = _completed_schema(schema.get("items"), depth + 1)
    return schema


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _with_text(message: TemplateMessage, text: str) -> TemplateMessage:
    return {**message, "content": joined((message.get("content"), text))}
