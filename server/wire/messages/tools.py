"""``tools`` and ``tool_choice`` of Anthropic's Messages API, as the `Tools` that all wire formats share.

Tools that Anthropic's servers run or define (any ``type`` but ``custom``) are nothing that a model here knows: they are
skipped, and an error only where `tool_choice` names one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from server.conversation.conversation import NO_PARAMETERS, Tool, Tools
from server.errors import InvalidRequest
from server.wire.fields import as_object, json_text, wrong_type
from server.wire.tools import ToolChoice, choose, is_strict, name_and_description, read_choice, tool_list
from server.wire.warnings import left_out, shown

_SEARCH = "tool_search_tool"


class LaterTools:
    """Tools that the messages tell of themselves, where they are found or added: what stands before stays as it is, and
    in the cache. ``waiting``: those that are declared, but of which nothing is told yet (``defer_loading``).
    """

    def __init__(self, waiting: Mapping[str, Tool], warnings: list[str]) -> None:
        self._waiting = waiting
        self._reader = _Reader(warnings)
        self.told: dict[str, Tool] = {}

    def tell(self, name: str) -> str:
        """The text that stands for a reference to the tool: its definition, the way Claude's models are shown it."""
        tool = self.told.get(name) or self._waiting.get(name)
        return name if tool is None else self._text(tool)

    def define(self, given: object, path: str) -> str | None:
        """The text of a definition; None where no model could use the tool. Raises `InvalidRequest`."""
        tool = self._reader.read(as_object(given, path), path)
        return None if tool is None else self._text(tool)

    def _text(self, tool: Tool) -> str:
        self.told[tool.name] = tool
        shown = {"description": tool.description, "name": tool.name, "parameters": tool.parameters}
        return f"<function>{json_text(shown)}</function>\n"


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """Both fields, read. ``later`` gets to know what the messages tell of."""

    offered: tuple[Tool, ...]
    waiting: Mapping[str, Tool]
    choice: ToolChoice
    warnings: list[str]
    given: bool  # whether there is a tool that could be told of later, or that was left out

    def later(self) -> LaterTools:
        """For reading the messages."""
        return LaterTools(self.waiting, self.warnings)

    def tools(self, told: Mapping[str, Tool]) -> Tools:
        """With those that the messages told of, which are not told again where templates tell of tools; unless nothing
        else is, since that is where templates say how to call them. Raises `InvalidRequest`."""
        one = self.choice.one.name if self.choice.one is not None else ""
        named = {one: self.waiting[one]} if one in self.waiting else {}
        known = {tool.name for tool in self.offered}
        added = {name: tool for name, tool in {**named, **told}.items() if name not in known}
        deferred = bool(self.offered) and not named
        tools = (*self.offered, *(replace(tool, deferred=deferred) for tool in added.values()))
        return choose(tools, self.choice, None, self.warnings, skipped=self.given)


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
    return DeclaredTools(offered, waiting, wanted, warnings, reader.skips or bool(waiting))


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
