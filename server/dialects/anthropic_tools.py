"""``tools`` and ``tool_choice`` of Anthropic's Messages API, as the `Tools` that all chat dialects share."""

from typing import Any, Literal

from server.dialects.chat_tools import MAX_TOOLS, NO_PARAMETERS, Tool, Tools
from server.dialects.fields import wrong_type
from server.errors import InvalidRequest

_CHOICES: dict[str, Literal["none", "auto", "required"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}
_SHOWN_CHARS = 64


def read_tools(tools: object, choice: object) -> Tools:
    """Check both fields together. Raises `InvalidRequest` that names the place."""
    found = tuple(_tools(tools))
    mode, name, parallel = _choice(choice)
    if mode == "required" and not found:
        raise InvalidRequest("tool_choice: asks for a tool, but tools is empty", "tool_choice")
    if name and name not in {tool["function"]["name"] for tool in found}:
        raise InvalidRequest(f"tool_choice.name: no tool is called {name[:_SHOWN_CHARS]!r}", "tool_choice.name")
    return Tools(found, mode, name, parallel)


def _tools(given: object) -> list[Tool]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise wrong_type("tools", "an array", given)
    if len(given) > MAX_TOOLS:
        raise InvalidRequest(f"tools: must have at most {MAX_TOOLS} tools", "tools")
    tools: list[Tool] = []
    names: set[str] = set()
    for index, one in enumerate(given):
        tool = _tool(one, f"tools.{index}")
        name = tool["function"]["name"]
        if name in names:
            raise InvalidRequest(f"tools.{index}.name: two tools have the same name", f"tools.{index}.name")
        names.add(name)
        tools.append(tool)
    return tools


def _tool(given: object, path: str) -> Tool:
    if not isinstance(given, dict):
        raise wrong_type(path, "an object", given)
    kind = given.get("type")
    if kind not in (None, "custom"):
        raise InvalidRequest(
            f"{path}.type: {str(kind)[:_SHOWN_CHARS]!r} is a tool that Anthropic defines; "
            "only tools with an input_schema of their own are supported",
            f"{path}.type",
        )
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise wrong_type(f"{path}.name", "a name", name)
    description = given.get("description")
    if description is not None and not isinstance(description, str):
        raise wrong_type(f"{path}.description", "a string", description)
    schema: Any = given.get("input_schema")
    if not isinstance(schema, dict):
        raise wrong_type(f"{path}.input_schema", "a JSON Schema object", schema)
    function = {"name": name, "description": description or "", "parameters": schema or NO_PARAMETERS}
    return {"type": "function", "function": function}


def _choice(given: object) -> tuple[Literal["none", "auto", "required"], str, bool | None]:
    """What may be called, the one tool that must be, and whether several calls may come (None: as the template can)."""
    if given is None:
        return "auto", "", None
    if not isinstance(given, dict):
        raise wrong_type("tool_choice", 'an object such as {"type": "auto"}', given)
    kind, name = given.get("type"), given.get("name")
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise InvalidRequest('tool_choice.type: must be "auto", "any", "tool" or "none"', "tool_choice.type")
    if kind == "tool" and (not isinstance(name, str) or not name):
        raise wrong_type("tool_choice.name", "the name of a tool", name)
    single = given.get("disable_parallel_tool_use")
    if not isinstance(single, bool | None):
        raise wrong_type("tool_choice.disable_parallel_tool_use", "a boolean", single)
    return _CHOICES[kind], str(name) if kind == "tool" else "", False if single else None
