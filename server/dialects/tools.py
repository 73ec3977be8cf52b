"""Tools in all dialects: the functions that the model sees, the client's names of them, and ``tool_choice``.

A dialect's subclass of `ToolReader` reads an entry of ``tools``. In ``tool_choice`` every dialect accepts the other
dialects' forms (OpenAI's of chat and of Responses, Anthropic's, Mistral's ``any``), because proxies and libraries mix
them.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from server.chat.conversation import NO_PARAMETERS, Tool, Tools
from server.dialects.custom_tools import MAX_GRAMMAR_CHARS, custom_tool
from server.dialects.fields import as_object, json_text, objects_in, text_in, wrong_type
from server.dialects.tool_types import RESPONSES, ToolType, left_out_reason
from server.dialects.warnings import NO_TOOL_LEFT, Omitted, left_out, shown
from server.errors import InvalidRequest, invalid

MAX_TOOLS = 1024  # of a list
MAX_FUNCTIONS = 8192  # of a request: `tool_choice` may look for each tool of a list among all
MAX_DEFINED_CHARS = 16 << 20  # of the definitions in messages, where each reference repeats one
NO_NAMESPACE = "functions"


def name_and_description(given: Mapping[str, Any], path: str) -> tuple[str, str]:
    """Return name and description of a tool or function at `path`; "" = no description. Raises `InvalidRequest`."""
    name, description = given.get("name"), given.get("description")
    if not isinstance(name, str) or not name:
        raise wrong_type(f"{path}.name", "a name", name)
    if description is not None and not isinstance(description, str):
        raise wrong_type(f"{path}.description", "a string", description)
    return name, description or ""


@dataclass(frozen=True, slots=True)
class ClientName:
    """How the client knows a function."""

    name: str
    namespace: str = ""  # may be a toolset or the label of an MCP server
    custom: bool = False
    type: ToolType | None = None


def model_name(name: str, namespace: object) -> str:
    """Return the name that the model uses."""
    if not isinstance(namespace, str) or namespace in ("", NO_NAMESPACE):
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def is_strict(given: Mapping[str, Any], path: str) -> bool:
    """``strict`` of a tool or its function at `path`. Raises `InvalidRequest`."""
    if not isinstance(given.get("strict"), bool | None):
        raise wrong_type(f"{path}.strict", "a boolean", given["strict"])
    return given.get("strict") is True


def function_tool(given: Mapping[str, Any], path: str, name: str, description: str) -> Tool:
    """Return a function at `path` with its ``parameters``, under that name. Raises `InvalidRequest`."""
    parameters = given.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong_type(f"{path}.parameters", "a JSON Schema object", parameters)
    return Tool(name, description, parameters or NO_PARAMETERS, is_strict(given, path), f"{path}.parameters")


CallMode = Literal["none", "auto", "required"]
_MODES: dict[object, CallMode] = {"none": "none", "auto": "auto", "required": "required", "any": "required"}
_NAMING = ("function", "custom", "tool")
_FORMS = (
    'must be "none", "auto", "required", {"type": "function", "function": {"name": ...}}, '
    '{"type": "allowed_tools", ...}, or Anthropic\'s {"type": "auto" | "any" | "tool" | "none"}'
)


@dataclass(frozen=True, slots=True)
class Named:
    """A tool by the client's name, or a whole ``namespace`` if `name` is ""."""

    name: str
    at: str  # path of the name
    namespace: str = ""
    is_served: bool = False  # the namespace is an MCP server


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools may or must be called, by the client's names."""

    mode: CallMode = "auto"
    one: Named | None = None  # the tool that must be called
    allowed: Sequence[Named] | None = None  # None for all
    parallel: bool | None = None  # several calls are allowed; None if unspecified


def check_number(given: object, path: str) -> None:
    """Raise `InvalidRequest` for a list of too many tools."""
    if isinstance(given, list) and len(given) > MAX_TOOLS:
        raise invalid(path, f"must have at most {MAX_TOOLS} tools")


def entries(given: object, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the entries of a list of tools, and their paths. Raises `InvalidRequest`."""
    check_number(given, path)
    return objects_in([] if given is None else given, path)


ReadTool = tuple[Tool, str, bool]
"""A tool of an entry, the path of its name, and whether it is to be loaded later (``defer_loading``)."""
ServerFunctions = Mapping[str, Sequence[tuple[Tool, ClientName]]]
"""The functions of MCP servers, by the paths of the servers in the body."""


class ToolReader(ABC):
    """Reads the tools of a request, then those that its messages introduce, then which of them may be called."""

    def __init__(self, given: object = None, servers: ServerFunctions | None = None) -> None:
        """Read ``tools``, some of which may be `servers`; add the functions of others. Raises `InvalidRequest`."""
        self.names: dict[str, ClientName] = {}  # the client's names of functions, by the model's
        self.offered: dict[str, Tool] = {}
        self.waiting: dict[str, Tool] = {}  # tools that a message or the client has to introduce
        self.omitted = Omitted()  # tools that no model can use, by type
        self._introduced: dict[str, Tool] = {}
        self._omitted_names: dict[str, str] = {}  # the types of omitted tools, by name
        self._n_grammar_chars = self._n_defined_chars = 0
        self._servers = {} if servers is None else {**servers}
        self._served = {tool.name for functions in self._servers.values() for tool, _ in functions}
        elsewhere = [at for at in self._servers if not at.startswith("tools.")]
        later: set[str] = set()
        for tool, at, waits in chain(self._listed(given, "tools"), *map(self._functions_of, elsewhere)):
            if self.offered.setdefault(tool.name, tool) is not tool:
                raise invalid(at, "two tools have the same name")
            if waits:
                later.add(tool.name)
        if later and self.client_searches:
            self.waiting = {name: self.offered.pop(name) for name in later}

    @abstractmethod
    def read(self, entry: dict[str, Any], path: str) -> Iterator[ReadTool]:
        """Yield the functions of one entry, none for one that is omitted. Raises `InvalidRequest`."""

    @property
    def client_searches(self) -> bool:
        """Whether something loads deferred tools. Otherwise the model is shown them at once."""
        return False

    def offer(self, listed: object, path: str) -> None:
        """Add tools that precede the first turn to the request's tools. Raises `InvalidRequest`."""
        self.offered |= {tool.name: tool for tool, _, _ in self._listed(listed, path)}

    def introduce(self, listed: object, path: str) -> str:
        """Return the definitions of tools that may be called from here on, "" for none. Raises `InvalidRequest`."""
        return "".join(self._define(tool) for tool, _, _ in self._listed(listed, path))

    def refer(self, name: str) -> str:
        """Return the definition of the tool that a message refers to, or its name if there is no such tool."""
        tool = self._introduced.get(name) or self.waiting.get(name)
        return name if tool is None else self._define(tool)

    def finish(self, given: object, parallel: bool | None, warnings: list[str]) -> Tools:
        """Return all tools, and which of them may or must be called; adds omitted ones to `warnings`.

        `given`: ``tool_choice``. If all tools that could be called are omitted, or no server could list its tools, a
        required call is omitted, too. Raises `InvalidRequest` for a tool that is not there.
        """
        if self._servers and not (self.names or self.omitted):  # the reply says why
            given = None
        if given is None and not self.names and not self.omitted:
            return Tools(parallel=parallel)  # as of most requests
        if len(self.names) > MAX_FUNCTIONS:
            raise invalid("tools", f"a request must have at most {MAX_FUNCTIONS} functions, also in its messages")
        warnings += self.omitted.warnings()
        choice = self._choice(given, warnings)
        skipped, omitted = bool(self.omitted or self.waiting), self.omitted.types
        mode, name = choice.mode, ""
        if choice.one is not None:
            if not (skipped or self.offered or self._introduced):
                raise _none_given()
            name, *_ = self._meant(choice.one)
        tools = self._with_introduced(name)
        if choice.allowed is not None:
            kept = [each for each in choice.allowed if each.name in self.names or each.name not in omitted]
            allowed = {name for each in kept for name in self._meant(each)}
            tools = [tool for tool in tools if tool.name in allowed]
        if mode == "required" and not tools:
            if not skipped:
                raise _none_given()
            warnings.append(NO_TOOL_LEFT)
            mode = "auto"
        return Tools(tuple(tools), mode, name, False if choice.parallel is False else parallel)

    def function(
        self, given: Mapping[str, Any], path: str, *, namespace: str = "", about: str = "", custom: bool = False
    ) -> Tool:
        """Return the function at `path`, or the custom tool. `about`: the description of its `namespace`."""
        own, description = name_and_description(given, path)
        name, description = model_name(own, namespace), "\n\n".join(filter(None, [about, description]))
        self.names[name] = ClientName(own, namespace, custom)
        if not custom:
            return function_tool(given, path, name, description)
        tool = custom_tool(name, description, given.get("format"), f"{path}.format")
        self._n_grammar_chars += 0 if tool.text is None else len(tool.text.definition)
        if self._n_grammar_chars > MAX_GRAMMAR_CHARS:
            said = f"the grammars of a request's custom tools may have {MAX_GRAMMAR_CHARS} characters together"
            raise invalid(tool.at, said)
        return tool

    def omit(self, kind: str, name: object = None) -> None:
        """Count an entry of a type that no model can use."""
        self.omitted.add("tools", kind)
        if isinstance(name, str):
            self._omitted_names[name] = kind

    def _listed(self, given: object, path: str) -> Iterator[ReadTool]:
        for entry, at in entries(given, path):
            yield from self._functions_of(at) if at in self._servers else self.read(entry, at)

    def _functions_of(self, at: str) -> Iterator[ReadTool]:
        for tool, known in self._servers[at]:
            self.names[tool.name] = known
            yield tool, at, False

    def _define(self, tool: Tool) -> str:
        """Return the text that defines `tool`, which may be called from there on."""
        self._introduced[tool.name] = tool
        defined = {"description": tool.description, "name": tool.name, "parameters": tool.parameters}
        text = f"<function>{json_text(defined)}</function>\n"
        self._n_defined_chars += len(text)
        if self._n_defined_chars > MAX_DEFINED_CHARS:
            raise invalid("tools", f"messages must define at most {MAX_DEFINED_CHARS} characters of tools")
        return text

    def _with_introduced(self, required: str) -> list[Tool]:
        """Return the offered tools and the introduced ones, which are deferred.

        Templates explain how to call tools, so nothing is deferred if no tool is offered. The same holds if the client
        requires a call of a waiting tool, named by `required`. An introduced definition replaces an offered one of
        the same name.
        """
        forced = {required: self.waiting[required]} if required in self.waiting else {}
        added = {**forced, **self._introduced}
        kept = []
        for tool in self.offered.values():
            other = added.pop(tool.name, tool)
            is_same = other is tool or (other.function, other.text) == (tool.function, tool.text)
            kept.append(tool if is_same else other)
        deferred = bool(kept) and not forced
        return [*kept, *(replace(tool, deferred=deferred) for tool in added.values())]

    def _choice(self, given: object, warnings: list[str]) -> ToolChoice:
        """Check ``tool_choice`` as far as that needs no tools. Raises `InvalidRequest`."""
        if given is None:
            return ToolChoice()
        if isinstance(given, str) and given in _MODES:
            return ToolChoice(_MODES[given])
        if not isinstance(given, dict):
            raise invalid("tool_choice", _FORMS)
        kind = given.get("type")
        if not isinstance(kind, str):
            raise invalid("tool_choice.type", _FORMS)
        if kind == "allowed_tools":
            return self._among(given, warnings)
        single = given.get("disable_parallel_tool_use")
        if not isinstance(single, bool | None):
            raise wrong_type("tool_choice.disable_parallel_tool_use", "a boolean", single)
        parallel = False if single else None
        if kind in _MODES:
            return ToolChoice(_MODES[kind], parallel=parallel)
        named = self._named(given, "tool_choice")
        if named is None:
            raise invalid("tool_choice.type", f"no model here can use tools of type {shown(kind)}")
        one, allowed = (named, None) if named.name else (None, [named])  # a tool, or any of an MCP server
        return ToolChoice("required", one, allowed, parallel)

    def _named(self, given: Mapping[str, Any], path: str) -> Named | None:
        """Return the tool that ``{"type": "function", "function": {"name": ...}}`` names, flat or not; the tool of an
        MCP server, or the whole server. None: no model here can use tools of that type.
        """
        kind, inner = given.get("type"), given
        if kind == "mcp" and self._servers:
            return Named(str(given.get("name") or ""), path, str(given.get("server_label")), is_served=True)
        if isinstance(kind, str) and kind in RESPONSES:
            return Named(RESPONSES[kind].name, f"{path}.type")
        if kind not in _NAMING:
            return None
        if kind in given:
            path, inner = f"{path}.{kind}", given[kind]
            inner = as_object(inner, path)
        name = inner.get("name")
        if not isinstance(name, str) or not name:
            raise wrong_type(f"{path}.name", "the name of a tool", name)
        return Named(name, f"{path}.name", text_in(given, "namespace"))

    def _among(self, given: Mapping[str, Any], warnings: list[str]) -> ToolChoice:
        """Return the listed tools (one level deeper in a chat), without unsupported types."""
        path, inner = "tool_choice", given
        if "allowed_tools" in given:
            path = f"{path}.allowed_tools"
            inner = as_object(given["allowed_tools"], path)
        mode = inner.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise invalid(f"{path}.mode", 'must be "auto" or "required"')
        check_number(inner.get("tools"), f"{path}.tools")
        allowed: list[Named] = []
        for entry, where in objects_in(inner.get("tools"), f"{path}.tools"):
            if entry.get("type") == "namespace" and isinstance(entry.get("name"), str):
                allowed.append(Named("", f"{where}.name", entry["name"]))
            elif (named := self._named(entry, where)) is not None:
                allowed.append(named)
            else:
                warnings.append(left_out("allowed tools", str(entry.get("type"))))
        return ToolChoice(_MODES[mode], allowed=allowed)

    def _meant(self, named: "Named") -> Collection[str]:
        """Return the model's names for a client's name, whose namespace is optional if the name is unique. The client's
        own tools precede those of MCP servers.

        Raises `InvalidRequest` if there is no such tool.
        """
        name, space = model_name(named.name, named.namespace), named.namespace
        if named.name and name in self.names and not named.is_served:
            return (name,)
        any_space = not (space or named.is_served)
        known = [(here, own) for here, own in self.names.items() if named.name in ("", own.name)]
        found = [here for here, own in known if any_space or own.namespace == space]
        served = [here for here in found if here in self._served]
        if named.is_served and not served:
            raise invalid(named.at, "no MCP server of the request has such a tool")
        found = served if named.is_served else [here for here in found if here not in served] or served
        if len(found) != 1 and named.name and not named.is_served:
            reason = f"no tool is called {shown(named.name)}"
            if (kind := self._omitted_names.get(named.name)) is not None:
                reason = f"{shown(named.name)} is a tool of type {shown(kind)}: {left_out_reason(kind)}"
            raise invalid(named.at, reason)
        return found


def _none_given() -> InvalidRequest:
    return invalid("tool_choice", "asks for a tool, but tools is empty")
