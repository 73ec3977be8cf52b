"""What the tools of all wire formats have in common: the list and the names."""

from collections.abc import Callable, Mapping
from typing import Any

from server.conversation.form import Tool
from server.errors import InvalidRequest
from server.wire.fields import wrong_type

MAX_TOOLS = 1024


def tool_list(given: object, read: Callable[[object, str], Tool | None], name_key: str) -> tuple[Tool, ...]:
    """Each entry as `read` takes it, with its path (None: not at all); `name_key` is where an entry has its name.

    Raises `InvalidRequest` for what is no list, is too long, or names two tools alike.
    """
    if given is None:
        return ()
    if not isinstance(given, list):
        raise wrong_type("tools", "an array", given)
    if len(given) > MAX_TOOLS:
        raise InvalidRequest(f"tools: must have at most {MAX_TOOLS} tools", "tools")
    tools: dict[str, Tool] = {}
    for index, entry in enumerate(given):
        tool = read(entry, f"tools.{index}")
        if tool is not None and tools.setdefault(tool.name, tool) is not tool:
            path = f"tools.{index}.{name_key}"
            raise InvalidRequest(f"{path}: two tools have the same name", path)
    return tuple(tools.values())


def name_and_description(given: Mapping[str, Any], path: str) -> tuple[str, str]:
    """Of a tool or its function at `path`; "" for no description. Raises `InvalidRequest`."""
    name, description = given.get("name"), given.get("description")
    if not isinstance(name, str) or not name:
        raise wrong_type(f"{path}.name", "a name", name)
    if description is not None and not isinstance(description, str):
        raise wrong_type(f"{path}.description", "a string", description)
    return name, description or ""


def is_strict(given: Mapping[str, Any], path: str) -> bool:
    """``strict`` of a tool or its function at `path`. Raises `InvalidRequest`."""
    if not isinstance(given.get("strict"), bool | None):
        raise wrong_type(f"{path}.strict", "a boolean", given["strict"])
    return given.get("strict") is True
