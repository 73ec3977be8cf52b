"""``tools`` and ``tool_choice`` of OpenAI chat."""

from dataclasses import dataclass
from typing import Any, Literal

from server.dialects.fields import wrong_type
from server.errors import InvalidRequest

Tool = dict[str, Any]
MAX_TOOLS = 1024
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request, and whether the model may, must or must not call one (or the one `name`)."""

    tools: tuple[Tool, ...] = ()
    choice: Literal["none", "auto", "required"] = "auto"
    name: str = ""
    parallel: bool | None = None  # None = what the template can do

    @property
    def callable(self) -> bool:
        """Whether a call may come."""
        return bool(self.tools) and self.choice != "none"


def read_tools(tools: object, choice: object, parallel: bool | None) -> Tools:
    """Check both fields together. Raises `InvalidRequest`."""
    found = tuple(_tools(tools))
    mode, name = _choice(choice)
    if mode == "required" and not found:
        raise InvalidRequest("tool_choice: asks for a tool, but tools is empty", "tool_choice")
    if name and name not in {tool["function"]["name"] for tool in found}:
        raise InvalidRequest(f"tool_choice.function.name: no tool is called {name[:64]!r}", "tool_choice")
    return Tools(found, mode, name, parallel)


def _tools(given: object) -> list[Tool]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise wrong_type("tools", "an array", given)
    if len(given) > MAX_TOOLS:
        raise InvalidRequest(f"tools: must have at most {MAX_TOOLS} tools", "tools")
    tools = [_tool(tool, f"tools.{index}") for index, tool in enumerate(given)]
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools: two tools have the same name", "tools")
    return tools


def _tool(given: object, path: str) -> Tool:
    if not isinstance(given, dict):
        raise wrong_type(path, "an object", given)
    if given.get("type") != "function":
        raise InvalidRequest(f'{path}.type: must be "function"', f"{path}.type")
    function = given.get("function")
    if not isinstance(function, dict):
        raise wrong_type(f"{path}.function", "an object", function)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise wrong_type(f"{path}.function.name", "a name", name)
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise wrong_type(f"{path}.function.description", "a string", description)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong_type(f"{path}.function.parameters", "a JSON Schema object", parameters)
    return {
        "type": "function",
        "function": {"name": name, "description": description or "", "parameters": parameters or NO_PARAMETERS},
    }


def _choice(given: object) -> tuple[Literal["none", "auto", "required"], str]:
    match given:
        case None | "auto":
            return "auto", ""
        case "none":
            return "none", ""
        case "required":
            return "required", ""
        case {"type": "function", "function": {"name": str(name)}} if name:
            return "required", name
    raise InvalidRequest(
        'tool_choice: Invalid tool_choice, must be "none", "auto", "required" or '
        '{"type": "function", "function": {"name": ...}}',
        "tool_choice",
    )
