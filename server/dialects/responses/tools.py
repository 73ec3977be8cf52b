"""``tools`` and ``tool_choice`` of OpenAI's Responses, and the client's names of the called tools.

The model sees functions only. A function of a ``namespace`` is named ``namespace__name`` for the model; its calls
have the function's own name and ``namespace`` (Codex 0.169 answers a name alone with "unsupported call"). The
namespace ``functions`` is OpenAI's word for none, so it has no prefix. A ``custom`` tool is a function with one
string, ``input``; a type such as ``shell`` is a function of `tool_types`. Other types are omitted with a warning,
and are only an error if ``tool_choice`` names one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from server.chat.conversation import NO_PARAMETERS, Tool, Tools
from server.dialects.common import Json
from server.dialects.custom_tools import GrammarBudget, custom_tool
from server.dialects.fields import as_object, json_text, objects_in, wrong_type
from server.dialects.responses.mcp import shown_server
from server.dialects.tool_types import RESPONSES, ToolType, left_out_reason
from server.dialects.tools import (
    MAX_TOOLS,
    ClientName,
    DeferredTools,
    choose,
    function_tool,
    meant,
    model_name,
    name_and_description,
    read_choice,
)
from server.dialects.warnings import left_out
from server.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ClientTools:
    """The model's functions, and the client's names by the model's names.

    ``shown``: the tools as the response repeats them. ``warnings``: omitted tools.
    """

    tools: Tools = field(default_factory=Tools)
    names: Mapping[str, ClientName] = field(default_factory=dict)
    shown: Sequence[Json] = ()
    warnings: Sequence[str] = ()

    def named(self, name: str) -> ClientName:
        """Return the client's name of the model's tool `name`."""
        return self.names.get(name) or ClientName(name)


class ToolReader:
    """Reads the tools of a request, then those that its input introduces, then which of them may be called."""

    def __init__(self, given: object = None, mcp: Mapping[int, Sequence[Tool]] = MappingProxyType({})) -> None:
        """Read ``tools``. `mcp`: the functions of MCP servers, by the place of their entry. Raises `InvalidRequest`."""
        self._offered: dict[str, Tool] = {}
        self._names: dict[str, ClientName] = {}
        self._shown: list[Json] = []
        self._skipped: dict[str, int] = {}
        self._grammars = GrammarBudget()
        waiting: dict[str, Tool] = {}
        # Without a search by the client nothing would ever load the tools that wait.
        entries = list(_entries(given, "tools"))
        defers = any(entry.get("type") == "tool_search" and entry.get("execution") == "client" for entry, _ in entries)
        for place, (entry, path) in enumerate(entries):
            if place in mcp:
                self._shown.append(shown_server(entry))
                self._offered |= {tool.name: tool for tool in mcp[place]}
                self._names |= {tool.name: ClientName(tool.name) for tool in mcp[place]}
                continue
            self._shown.append(_shown(entry))
            for tool, where, later in self._read(entry, path):
                if tool.name in self._offered or tool.name in waiting:
                    raise InvalidRequest(f"{where}: two tools have the same name", where)
                (waiting if later and defers else self._offered)[tool.name] = tool
        self._deferred = DeferredTools(waiting)

    def offer(self, listed: object, path: str) -> None:
        """Add the tools before the first turn to the request's tools. Raises `InvalidRequest`."""
        self._offered |= {tool.name: tool for tool in self._listed(listed, path)}

    def introduce(self, listed: object, path: str) -> str:
        """Return the definitions of tools that the conversation has from here on, "" for none.

        Raises `InvalidRequest`.
        """
        return "".join(self._deferred.introduce(tool) for tool in self._listed(listed, path))

    def finish(self, choice: object, parallel: bool | None) -> ClientTools:
        """Return all tools, and which of them may be called. Raises `InvalidRequest`."""
        wanted, waiting = read_choice(choice), self._deferred.waiting
        if wanted.allowed is not None:
            kept = (named for named in wanted.allowed if named.name not in self._skipped or named.name in self._names)
            wanted = replace(wanted, allowed=tuple(kept))
        required = "" if wanted.one is None or not waiting else next(iter(meant(wanted.one, self._names)))
        warnings = [
            f"{left_out('tools', kind, number)}: {left_out_reason(kind)}" for kind, number in self._skipped.items()
        ]
        tools = choose(
            self._deferred.with_offered(tuple(self._offered.values()), required),
            wanted,
            parallel,
            warnings,
            skipped=bool(self._skipped or waiting),
            names=self._names,
        )
        return ClientTools(tools, self._names, self._shown, warnings)

    def _listed(self, listed: object, path: str) -> list[Tool]:
        return [tool for entry, at in _entries(listed, path) for tool, _, _ in self._read(entry, at)]

    def _read(self, entry: dict[str, Any], path: str) -> Iterator[tuple[Tool, str, bool]]:
        """Yield the functions of one entry, each with the path of its name and whether it is to be loaded later."""
        kind = entry.get("type")
        match kind:
            case "function" | "custom":
                yield self._function(entry, path), f"{path}.name", entry.get("defer_loading") is True
            case "namespace":
                yield from self._namespace(entry, path)
            case str() if kind in RESPONSES and _client_executes(entry, kind, path):
                yield self._of_type(entry, RESPONSES[kind], path), f"{path}.type", False
            case str() if kind:
                self._skipped[kind] = self._skipped.get(kind, 0) + 1
            case _:
                raise wrong_type(f"{path}.type", "a type such as function", kind)

    def _namespace(self, entry: Mapping[str, Any], path: str) -> Iterator[tuple[Tool, str, bool]]:
        name, about = name_and_description(entry, path)
        for tool, where in _entries(entry.get("tools"), f"{path}.tools"):
            if tool.get("type") not in ("function", "custom"):
                kind = str(tool.get("type"))
                self._skipped[kind] = self._skipped.get(kind, 0) + 1
                continue
            later = tool.get("defer_loading") is True
            yield self._function(tool, where, name, about), f"{where}.name", later
            about = ""  # reported once, with the first of them

    def _function(self, entry: Mapping[str, Any], path: str, namespace: str = "", about: str = "") -> Tool:
        custom = entry.get("type") == "custom"
        own, description = name_and_description(entry, path)
        name = model_name(own, namespace)
        if about:
            description = "\n\n".join(filter(None, [about, description]))
        self._names[name] = ClientName(own, namespace, custom)
        if custom:
            return custom_tool(name, description, entry.get("format"), f"{path}.format", self._grammars)
        return function_tool(entry, path, name, description)

    def _of_type(self, entry: Mapping[str, Any], row: ToolType, path: str) -> Tool:
        """Return the function for a type of `tool_types`, with the entry's description."""
        tool = Tool(row.name, row.description, row.parameters, at=path)
        if row.open:
            given = function_tool(entry, path, *name_and_description({**entry, "name": row.name}, path))
            described = given.description or row.description
            parameters = row.parameters if entry.get("parameters") is None else given.parameters
            tool = replace(given, description=described, parameters=parameters)
        environment = entry.get("environment")
        if isinstance(environment, dict) and environment.get("skills"):
            skills = json_text(environment["skills"])
            tool = replace(tool, description=f"{tool.description}\nSkills of the machine: {skills}")
        self._names[row.name] = ClientName(row.name, type=row)
        return tool


def _client_executes(entry: Mapping[str, Any], kind: str, path: str) -> bool:
    """Whether the client executes the tool. A search, and a shell in a container, may be the server's."""
    if kind == "tool_search":
        return entry.get("execution") == "client"
    if kind != "shell" or entry.get("environment") is None:
        return True
    return as_object(entry["environment"], f"{path}.environment").get("type") == "local"


def _shown(entry: Json) -> Json:
    if entry.get("type") != "function":
        return entry
    said = {"description": entry.get("description") or "", "parameters": entry.get("parameters") or NO_PARAMETERS}
    return {**entry, **said, "strict": entry.get("strict") is not False}


def _entries(given: object, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(given, list) and len(given) > MAX_TOOLS:
        raise InvalidRequest(f"{path}: must have at most {MAX_TOOLS} tools", path)
    return objects_in([] if given is None else given, path)
