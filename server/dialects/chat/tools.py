"""``tools`` and ``tool_choice`` of OpenAI chat."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from server.chat.conversation import Tool, Tools
from server.dialects.custom_tools import GrammarBudget, custom_tool
from server.dialects.fields import as_object, wrong_type
from server.dialects.tool_types import left_out_reason
from server.dialects.tools import choose, function_tool, name_and_description, read_choice, tool_list
from server.dialects.warnings import left_out


@dataclass(frozen=True, slots=True)
class ChatTools:
    """``custom``: the names of those whose calls have one text (`custom_tools`)."""

    tools: Tools
    custom: frozenset[str] = frozenset()


def read_tools(tools: object, choice: object, parallel: bool | None, warnings: list[str]) -> ChatTools:
    """Validate both fields together; adds unsupported tools to `warnings`. Raises `InvalidRequest`."""
    reader = _Reader(warnings)
    found = tool_list(tools, reader.read, "function.name")
    return ChatTools(
        choose(found, read_choice(choice), parallel, warnings, skipped=reader.skips), frozenset(reader.custom)
    )


@dataclass(slots=True)
class _Reader:
    """Reads tools one by one."""

    warnings: list[str]
    custom: set[str] = field(default_factory=set)
    skips: bool = False
    grammars: GrammarBudget = field(default_factory=GrammarBudget)

    def read(self, given: Mapping[str, Any], path: str) -> tuple[Tool, ...]:
        kind = given.get("type")
        if not isinstance(kind, str):
            raise wrong_type(f"{path}.type", "a type such as function", kind)
        if kind == "custom":
            return (self._custom(given, path),)
        if kind == "function":
            where = f"{path}.function"
            function = as_object(given.get("function"), where)
            return (function_tool(function, where, *name_and_description(function, where)),)
        self.skips = True
        self.warnings.append(f"{left_out('tools', kind, 1)}: {left_out_reason(kind)}")
        return ()

    def _custom(self, given: Mapping[str, Any], path: str) -> Tool:
        tool, where = given.get("custom"), f"{path}.custom"
        if tool is None:  # flat, as in Responses
            tool, where = given, path
        tool = as_object(tool, where)
        name, description = name_and_description(tool, where)
        self.custom.add(name)
        return custom_tool(name, description, tool.get("format"), f"{where}.format", self.grammars)
