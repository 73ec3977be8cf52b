"""``tools`` and ``tool_choice`` of OpenAI chat."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from server.conversation.form import NO_PARAMETERS, Tool, Tools
from server.errors import InvalidRequest
from server.wire.custom_tools import custom_tool
from server.wire.fields import wrong_type
from server.wire.tools import callable_tools, is_strict, name_and_description, tool_list
from server.wire.warnings import NO_TOOL_LEFT, left_out, shown

_SHOWN_CHARS = 64
_ALLOWED = "tool_choice.allowed_tools.tools"


@dataclass(frozen=True, slots=True)
class ChatTools:
    """``custom``: the names of those whose calls have one text (`custom_tools`)."""

    tools: Tools
    custom: frozenset[str] = frozenset()


def read_tools(tools: object, choice: object, parallel: bool | None, warnings: list[str]) -> ChatTools:
    """Check both fields together; adds to `warnings` what no model can use. Raises `InvalidRequest`."""
    mode, name, allowed = _choice(choice)
    reader = _Reader(warnings)
    found = tool_list(tools, reader.read, "function.name")
    if allowed is not None:
        found = tuple(_allowed(allowed, found))
    if mode == "required" and not (name or found) and reader.skips:
        warnings.append(NO_TOOL_LEFT)
        mode = "auto"
    return ChatTools(callable_tools(Tools(found, mode, name, parallel), "function.name"), frozenset(reader.custom))


@dataclass(slots=True)
class _Reader:
    """Reads tools one by one."""

    warnings: list[str]
    custom: set[str] = field(default_factory=set)
    skips: bool = False

    def read(self, given: object, path: str) -> Tool | None:
        if not isinstance(given, dict):
            raise wrong_type(path, "an object", given)
        kind = given.get("type")
        if not isinstance(kind, str):
            raise wrong_type(f"{path}.type", "a type such as function", kind)
        if kind == "custom":
            return self._custom(given, path)
        if kind == "function":
            return _function(given, path)
        self.skips = True
        self.warnings.append(left_out("tools", kind, 1))
        return None

    def _custom(self, given: Mapping[str, Any], path: str) -> Tool:
        tool, where = given.get("custom"), f"{path}.custom"
        if tool is None:  # flat, as in Responses
            tool, where = given, path
        if not isinstance(tool, dict):
            raise wrong_type(where, "an object", tool)
        name, description = name_and_description(tool, where)
        self.custom.add(name)
        return custom_tool(name, description, tool.get("format"), f"{where}.format")


def _function(given: Mapping[str, Any], path: str) -> Tool:
    function = given.get("function")
    if not isinstance(function, dict):
        raise wrong_type(f"{path}.function", "an object", function)
    name, description = name_and_description(function, f"{path}.function")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong_type(f"{path}.function.parameters", "a JSON Schema object", parameters)
    strict = is_strict(function, f"{path}.function")
    return Tool(name, description, parameters or NO_PARAMETERS, strict, f"{path}.function.parameters")


def _choice(given: object) -> tuple[Literal["none", "auto", "required"], str, list[object] | None]:
    """Mode, the one tool, and those that may be called, as they are given; None for all."""
    match given:
        case None | "auto":
            return "auto", "", None
        case "none":
            return "none", "", None
        case "required" | "any":  # the latter is Mistral's word, and Anthropic's
            return "required", "", None
        case {"type": "allowed_tools"}:
            inner = given.get("allowed_tools", given) if isinstance(given, dict) else given
            return _allowed_mode(inner), "", _allowed_tools(inner)
        case dict() if name := _named(given):
            return "required", name, None
        case {"type": str(kind)} if kind not in ("function", "custom"):
            reason = f"no model here can use tools of type {shown(kind)}"
            raise InvalidRequest(f"tool_choice.type: {reason}", "tool_choice.type")
    raise InvalidRequest(
        'tool_choice: Invalid tool_choice, must be "none", "auto", "required" or '
        '{"type": "function", "function": {"name": ...}}',
        "tool_choice",
    )


def _named(given: Mapping[str, Any]) -> str:
    """The name in ``{"type": "function", "function": {"name": ...}}``, or a flat one; "" for none."""
    kind = given.get("type")
    inner = given.get(kind, given) if kind in ("function", "custom") else None
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else ""


def _allowed_mode(given: object) -> Literal["auto", "required"]:
    match given:
        case {"mode": "required"}:
            return "required"
        case {"mode": "auto"}:
            return "auto"
        case dict() if "mode" not in given:
            return "auto"
    path = "tool_choice.allowed_tools.mode"
    raise InvalidRequest(f'{path}: must be "auto" or "required"', path)


def _allowed_tools(given: object) -> list[object]:
    tools = given.get("tools") if isinstance(given, dict) else None
    if not isinstance(tools, list):
        raise wrong_type(_ALLOWED, "an array", tools)
    return tools


def _allowed(given: list[object], tools: tuple[Tool, ...]) -> Iterator[Tool]:
    """The tools that are named, in their own order; those of other types can't be called anyway."""
    names = set()
    for index, entry in enumerate(given):
        path = f"{_ALLOWED}.{index}"
        if not isinstance(entry, dict):
            raise wrong_type(path, "an object", entry)
        if entry.get("type") in ("function", "custom"):
            names.add(name := _named(entry))
            if name not in {tool.name for tool in tools}:
                raise InvalidRequest(f"{path}: no tool is called {name[:_SHOWN_CHARS]!r}", path)
    yield from (tool for tool in tools if tool.name in names)
