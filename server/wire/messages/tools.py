"""``tools`` and ``tool_choice`` of Anthropic's Messages API, as the `Tools` that all wire formats share.

Tools that Anthropic's servers run or define (any ``type`` but ``custom``) are nothing that a model here knows: they are
skipped, and an error only where `tool_choice` names one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from server.conversation.conversation import NO_PARAMETERS, Tool, Tools
from server.errors import InvalidRequest
from server.wire.deferred_tools import DeferredTools
from server.wire.fields import as_object, wrong_type
from server.wire.tools import ToolChoice, choose, is_strict, name_and_description, read_choice, tool_list
from server.wire.warnings import left_out, shown

_SEARCH = "tool_search_tool"


class LaterTools:
    """Tools that the messages introduce: references to tools with ``defer_loading``, and definitions."""

    def __init__(self, deferred: DeferredTools, warnings: list[str]) -> None:
        self._deferred = deferred
        self._reader = _Reader(warnings)

    def tell(self, name: str) -> str:
        """Return the text that stands for a reference to a tool."""
        return self._deferred.refer(name)

    def define(self, given: object, path: str) -> str | None:
        """Return the text of a definition, None if no model could use the tool. Raises `InvalidRequest`."""
        tool = self._reader.read(as_object(given, path), path)
        return None if tool is None else self._deferred.introduce(tool)


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """Both fields, read. ``deferred`` collects what the messages introduce. ``skipped``: whether a tool may be missing,
    since it is left out or not introduced yet."""

    offered: tuple[Tool, ...]
    deferred: DeferredTools
    choice: ToolChoice
    warnings: list[str]
    skipped: bool

    def later(self) -> LaterTools:
        """Return what reads the tools of the messages."""
        return LaterTools(self.deferred, self.warnings)

    def tools(self) -> Tools:
        """Return the tools, with those that the messages introduced. Raises `InvalidRequest`."""
        required = self.choice.one.name if self.choice.one is not None else ""
        every = self.deferred.with_offered(self.offered, required)
        return choose(every, self.choice, None, self.warnings, skipped=self.skipped)


def read_tools(tools: object, choice: object, warnings: list[str]) -> DeclaredTools:
    """Check both fields together; adds to `warnings` what the model is not told of.

    Tools with ``defer_loading`` wait until the messages tell of them, unless it were Anthropic's servers that search
    them. Raises `InvalidRequest` that names the place.
    """
    wanted = read_choice(choice)
    reader = _Reader(warnings)
    found = tool_list(tools, reader.read, "name")
    one = wanted.one
    if one is not None and one.name in reader.kinds and all(tool.name != one.name for tool in found):
        raise InvalidRequest(
            f"{one.at}: {shown(one.name)} is a tool of type {shown(reader.kinds[one.name])}, which only "
            "Anthropic's servers have; tools with an input_schema of their own are supported",
            one.at,
        )
    waits = set() if any(kind.startswith(_SEARCH) for kind in reader.kinds.values()) else reader.deferred
    waiting = {tool.name: tool for tool in found if tool.name in waits}
    offered = tuple(tool for tool in found if tool.name not in waits)
    return DeclaredTools(offered, DeferredTools(waiting), wanted, warnings, reader.skips or bool(waiting))


@dataclass(slots=True)
class _Reader:
    """Reads tools one by one. ``kinds``: types of those that are skipped, by their names, where they have some.
    ``deferred``: names of those that are not to be told of at once."""

    warnings: list[str]
    kinds: dict[str, str] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)
    skips: bool = False

    def read(self, given: Mapping[str, Any], path: str) -> Tool | None:
        kind = given.get("type")
        if not isinstance(kind, str | None):
            raise wrong_type(f"{path}.type", "a string", kind)
        if kind not in (None, "custom"):
            self._skip(given.get("name"), kind)
            return None
        name, description = name_and_description(given, path)
        schema: Any = given.get("input_schema")
        if not isinstance(schema, dict):
            raise wrong_type(f"{path}.input_schema", "a JSON Schema object", schema)
        if given.get("defer_loading") is True:
            self.deferred.add(name)
        return Tool(name, description, schema or NO_PARAMETERS, is_strict(given, path), f"{path}.input_schema")

    def _skip(self, name: object, kind: str) -> None:
        self.skips = True
        self.warnings.append(left_out("tools", kind, 1))
        if isinstance(name, str):
            self.kinds[name] = kind
