"""``tools`` and ``tool_choice`` of Anthropic's Messages API, as the `Tools` that all wire formats share.

A tool with an ``input_schema`` is a function. The types whose calls the client executes (``bash_...``, a toolset) are
functions of `tool_types`. Tools of other types are left out, and are an error only where `tool_choice` names one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from server.chat.conversation import NO_PARAMETERS, Tool, Tools
from server.dialects.fields import Body, as_object, parse, wrong_type
from server.dialects.messages.mcp import ToolConfig
from server.dialects.tool_types import TOOLSETS, Toolset, ToolType, anthropic_type, left_out_reason
from server.dialects.tools import (
    ClientName,
    DeferredTools,
    ToolChoice,
    choose,
    is_strict,
    meant,
    model_name,
    name_and_description,
    read_choice,
    tool_list,
)
from server.dialects.warnings import left_out, shown
from server.errors import InvalidRequest, short

_SEARCH = "tool_search_tool"


class ToolsetParam(Body):
    """An entry of ``tools`` that represents a toolset."""

    configs: dict[str, ToolConfig | None] = Field(default_factory=dict)


def read_tools(tools: object, choice: object, warnings: list[str], mcp: Sequence[Tool] = ()) -> "ToolReader":
    """Validate both fields together; adds tools that the model doesn't get to `warnings`. `mcp`: further functions.

    Tools with ``defer_loading`` wait until a message introduces them, unless Anthropic's servers would search them.
    Raises `InvalidRequest` with the path.
    """
    wanted = read_choice(choice)
    reader = ToolReader(warnings)
    found = (*tool_list(tools, reader.read, "name"), *mcp)
    reader.names |= {tool.name: ClientName(tool.name) for tool in mcp}
    one = wanted.one
    if one is not None and one.name in reader.kinds and all(tool.name != one.name for tool in found):
        raise InvalidRequest(
            f"{one.at}: {shown(one.name)} is a tool of type {shown(reader.kinds[one.name])}, which only "
            "Anthropic's servers have; tools with an input_schema of their own are supported",
            one.at,
        )
    waits = set() if any(kind.startswith(_SEARCH) for kind in reader.kinds.values()) else reader.deferred
    reader.later = DeferredTools({tool.name: tool for tool in found if tool.name in waits})
    reader.offered = tuple(tool for tool in found if tool.name not in waits)
    reader.choice = wanted
    return reader


@dataclass(slots=True)
class ToolReader:
    """Reads the tools of a request, then those that its messages introduce, then which of them may be called.

    ``names``: the client's names of functions, by the model's. ``kinds``: the types of the tools that are left out, by
    their names. ``deferred``: the names of functions that are not to be shown at once.
    """

    warnings: list[str]
    names: dict[str, ClientName] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)
    skips: bool = False
    offered: tuple[Tool, ...] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)
    later: DeferredTools = field(default_factory=lambda: DeferredTools({}))

    def tools(self) -> Tools:
        """Return the tools, with those that the messages introduced. Raises `InvalidRequest`."""
        one = self.choice.one
        required = next(iter(meant(one, self.names))) if one is not None and self.later.waiting else ""
        every = self.later.with_offered(self.offered, required)
        skipped = self.skips or bool(self.later.waiting)
        return choose(every, self.choice, None, self.warnings, skipped=skipped, names=self.names)

    def define(self, given: object, path: str) -> str | None:
        """Return the text of a definition, None if no model could use the tool. Raises `InvalidRequest`."""
        return "".join(map(self.later.introduce, self.read(as_object(given, path), path))) or None

    def read(self, given: Mapping[str, Any], path: str) -> list[Tool]:
        """Return the functions of one entry, none for a tool that is left out. Raises `InvalidRequest`."""
        kind = given.get("type")
        if not isinstance(kind, str | None):
            raise wrong_type(f"{path}.type", "a string", kind)
        if kind is not None and kind in TOOLSETS:
            return list(self._toolset(given, TOOLSETS[kind], path))
        row = anthropic_type(given)
        if row is None and kind not in (None, "custom"):
            self._skip(given.get("name"), kind)
            return []
        tool = self._own(given, path) if row is None else self._of_type(given, row, path)
        self._add(tool.name, ClientName(tool.name), given.get("defer_loading"))
        return [tool]

    def _own(self, given: Mapping[str, Any], path: str) -> Tool:
        name, description = name_and_description(given, path)
        schema: Any = given.get("input_schema")
        if not isinstance(schema, dict):
            raise wrong_type(f"{path}.input_schema", "a JSON Schema object", schema)
        return Tool(name, description, schema or NO_PARAMETERS, is_strict(given, path), f"{path}.input_schema")

    def _of_type(self, given: Mapping[str, Any], row: ToolType, path: str) -> Tool:
        name, _ = name_and_description({"name": row.name, **given}, path)
        width, height = given.get("display_width_px"), given.get("display_height_px")
        size = f" It is {width} pixels wide and {height} pixels high." if isinstance(width, int) else ""
        return Tool(name, row.description + size, row.parameters, is_strict(given, path), f"{path}.type")

    def _toolset(self, given: Mapping[str, Any], toolset: Toolset, path: str) -> Iterator[Tool]:
        configs, at = parse(ToolsetParam, given, path).configs, f"{path}.configs"
        for name in configs:
            if name not in toolset.members:
                raise InvalidRequest(f"{at}.{short(name)}: the toolset has no such tool", f"{at}.{short(name)}")
        for name, (description, parameters) in toolset.members.items():
            config = configs.get(name) or ToolConfig()
            if config.enabled is False or (config.enabled is None and name in toolset.off):
                continue
            function = model_name(name, toolset.name)
            self._add(function, ClientName(name, toolset.name), config.defer_loading)
            yield Tool(function, description, parameters, at=f"{path}.type")

    def _add(self, function: str, name: ClientName, defers: object) -> None:
        self.names[function] = name
        if defers is True:
            self.deferred.add(function)

    def _skip(self, name: object, kind: str | None) -> None:
        self.skips = True
        self.warnings.append(f"{left_out('tools', str(kind), 1)}: {left_out_reason(str(kind))}")
        if isinstance(name, str):
            self.kinds[name] = str(kind)
