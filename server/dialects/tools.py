"""Tools in all dialects: the functions that the model sees, the client's names of them, and ``tool_choice``.

Each dialect has a subclass of `ToolReader` that parses an entry of ``tools``. In ``tool_choice`` every dialect accepts
the formats of all dialects (Chat Completions, Responses, Anthropic's, Mistral's ``any``), because proxies and libraries
mix them.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from server.chat.conversation import NO_PARAMETERS, Tool, Tools
from server.dialects.custom_tools import MAX_GRAMMAR_CHARS, custom_tool
from server.dialects.fields import as_object, json_text, objects_in, text_in, wrong_type
from server.dialects.tool_types import RESPONSES, ToolType, omission_reason
from server.dialects.warnings import NO_TOOL_LEFT, Omitted, omission_warning, quoted
from server.errors import InvalidRequest, invalid

MAX_TOOLS = 1024  # of a list
MAX_FUNCTIONS = 8192  # of a request, because ``tool_choice`` may search each of its tools among all
MAX_DEFINED_CHARS = 16 << 20  # of definitions in messages, which each reference repeats
NO_NAMESPACE = "functions"


def name_and_description(given: Mapping[str, Any], path: str) -> tuple[str, str]:
    """Return the name and the description, "" for none, of the tool at `path`. Raises `InvalidRequest`."""
    name, description = given.get("name"), given.get("description")
    if not isinstance(name, str) or not name:
        raise wrong_type(f"{path}.name", "a name", name)
    if description is not None and not isinstance(description, str):
        raise wrong_type(f"{path}.description", "a string", description)
    return name, description or ""


@dataclass(frozen=True, slots=True)
class ClientName:
    """The client's name of a function."""

    name: str
    namespace: str = ""  # also a toolset, or the label of an MCP server
    custom: bool = False
    type: ToolType | None = None


def model_name(name: str, namespace: object) -> str:
    """Return the name that the model uses."""
    if not isinstance(namespace, str) or namespace in ("", NO_NAMESPACE):
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def is_strict(given: Mapping[str, Any], path: str) -> bool:
    """Return ``strict`` of the tool or function at `path`. Raises `InvalidRequest`."""
    if not isinstance(given.get("strict"), bool | None):
        raise wrong_type(f"{path}.strict", "a boolean", given["strict"])
    return given.get("strict") is True


def function_tool(given: Mapping[str, Any], path: str, name: str, description: str) -> Tool:
    """Return the function at `path` with the given name and description. Raises `InvalidRequest`."""
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
    """A reference to a tool by the client's name, or to a whole ``namespace`` if ``name`` is ""."""

    name: str
    at: str  # path of the name
    namespace: str = ""
    is_mcp_server: bool = False  # the namespace is the label of an MCP server


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools may or must be called, by the client's names."""

    mode: CallMode = "auto"
    one: Named | None = None  # the tool that must be called
    allowed: Sequence[Named] | None = None  # None for all
    parallel: bool | None = None  # whether several calls are allowed; None if unspecified


def check_number(given: object, path: str) -> None:
    """Raise `InvalidRequest` if a list has too many tools."""
    if isinstance(given, list) and len(given) > MAX_TOOLS:
        raise invalid(path, f"must have at most {MAX_TOOLS} tools")


def entries(given: object, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the entries of a list of tools, and their paths. Raises `InvalidRequest`."""
    check_number(given, path)
    return objects_in([] if given is None else given, path)


ReadTool = tuple[Tool, str, bool]
"""A tool, the path of its name, and whether it is deferred (``defer_loading``)."""
ServerFunctions = Mapping[str, Sequence[tuple[Tool, ClientName]]]
"""The functions of MCP servers, by the paths of the servers in the body."""


class ToolReader(ABC):
    """Parses the tools of a request, then tools that its messages introduce, and finally ``tool_choice``."""

    def __init__(self, given: object = None, servers: ServerFunctions | None = None) -> None:
        """Parse ``tools`` (`given`), and add the functions of MCP `servers`. Raises `InvalidRequest`."""
        self.names: dict[str, ClientName] = {}  # the client's names of functions, by the model's
        self.offered: dict[str, Tool] = {}
        self.deferred: dict[str, Tool] = {}  # tools that a message or the client must introduce
        self.omitted = Omitted()  # unsupported tools, by type
        self._introduced: dict[str, Tool] = {}
        self._omitted_names: dict[str, str] = {}  # the types of omitted tools, by name
        self._n_grammar_chars = self._n_defined_chars = 0
        self._servers = {} if servers is None else {**servers}
        self._server_tools = {tool.name for functions in self._servers.values() for tool, _ in functions}
        not_in_tools = [at for at in self._servers if not at.startswith("tools.")]
        deferred: set[str] = set()
        for tool, at, is_deferred in chain(self._listed(given, "tools"), *map(self._functions_of, not_in_tools)):
            if self.offered.setdefault(tool.name, tool) is not tool:
                raise invalid(at, "two tools have the same name")
            if is_deferred:
                deferred.add(tool.name)
        if deferred and self.client_searches:
            self.deferred = {name: self.offered.pop(name) for name in deferred}

    @abstractmethod
    def read(self, entry: dict[str, Any], path: str) -> Iterator[ReadTool]:
        """Yield the functions of an entry, none if its type is unsupported. Raises `InvalidRequest`."""

    @property
    def client_searches(self) -> bool:
        """Return whether messages or the client load deferred tools. Otherwise they are offered immediately."""
        return False

    def offer(self, listed: object, path: str) -> None:
        """Add tools that a message before the first turn has to the request's tools. Raises `InvalidRequest`."""
        self.offered |= {tool.name: tool for tool, _, _ in self._listed(listed, path)}

    def introduce(self, listed: object, path: str) -> str:
        """Return the definitions of tools that may be called from now on, "" for none. Raises `InvalidRequest`."""
        return "".join(self._define(tool) for tool, _, _ in self._listed(listed, path))

    def refer(self, name: str) -> str:
        """Return the definition of a tool that a message references, or `name` if there is no such tool."""
        tool = self._introduced.get(name) or self.deferred.get(name)
        return name if tool is None else self._define(tool)

    def finish(self, given: object, parallel: bool | None, warnings: list[str]) -> Tools:
        """Return the tools, and which of them may or must be called.

        `given`: ``tool_choice``. `warnings`: gets a warning for each type of unsupported tools. A required call is
        ignored if all tools are unsupported, or if no MCP server could list its tools. Raises `InvalidRequest` for an
        unknown tool.
        """
        if self._servers and not (self.names or self.omitted):  # the reply has the error of each MCP server
            given = None
        if given is None and not self.names and not self.omitted:
            return Tools(parallel=parallel)  # most requests have no tools
        if len(self.names) > MAX_FUNCTIONS:
            raise invalid("tools", f"a request must have at most {MAX_FUNCTIONS} functions, also in its messages")
        warnings += self.omitted.warnings()
        choice = self._choice(given, warnings)
        has_other_tools, omitted = bool(self.omitted or self.deferred), self.omitted.types
        mode, name = choice.mode, ""
        if choice.one is not None:
            if not (has_other_tools or self.offered or self._introduced):
                raise _no_tools()
            name, *_ = self._resolved(choice.one)
        tools = self._with_introduced(name)
        if choice.allowed is not None:
            supported = [each for each in choice.allowed if each.name in self.names or each.name not in omitted]
            allowed = {name for each in supported for name in self._resolved(each)}
            tools = [tool for tool in tools if tool.name in allowed]
        if mode == "required" and not tools:
            if not has_other_tools:
                raise _no_tools()
            warnings.append(NO_TOOL_LEFT)
            mode = "auto"
        return Tools(tuple(tools), mode, name, False if choice.parallel is False else parallel)

    def function(
        self,
        given: Mapping[str, Any],
        path: str,
        *,
        namespace: str = "",
        namespace_description: str = "",
        custom: bool = False,
    ) -> Tool:
        """Return the function or custom tool at `path`. Raises `InvalidRequest`."""
        own, description = name_and_description(given, path)
        name = model_name(own, namespace)
        description = "\n\n".join(filter(None, [namespace_description, description]))
        self.names[name] = ClientName(own, namespace, custom)
        if not custom:
            return function_tool(given, path, name, description)
        tool = custom_tool(name, description, given.get("format"), f"{path}.format")
        self._n_grammar_chars += 0 if tool.text is None else len(tool.text.definition)
        if self._n_grammar_chars > MAX_GRAMMAR_CHARS:
            reason = f"the grammars of a request's custom tools may have {MAX_GRAMMAR_CHARS} characters together"
            raise invalid(tool.at, reason)
        return tool

    def omit(self, kind: str, name: object = None) -> None:
        """Count an entry of an unsupported type."""
        self.omitted.add("tools", kind)
        if isinstance(name, str):
            self._omitted_names[name] = kind

    def _listed(self, given: object, path: str) -> Iterator[ReadTool]:
        for entry, at in entries(given, path):
            yield from self._functions_of(at) if at in self._servers else self.read(entry, at)

    def _functions_of(self, at: str) -> Iterator[ReadTool]:
        for tool, client_name in self._servers[at]:
            self.names[tool.name] = client_name
            yield tool, at, False

    def _define(self, tool: Tool) -> str:
        """Return the text that defines `tool`, and allow calls of it."""
        self._introduced[tool.name] = tool
        definition = {"description": tool.description, "name": tool.name, "parameters": tool.parameters}
        text = f"<function>{json_text(definition)}</function>\n"
        self._n_defined_chars += len(text)
        if self._n_defined_chars > MAX_DEFINED_CHARS:
            raise invalid("tools", f"messages must define at most {MAX_DEFINED_CHARS} characters of tools")
        return text

    def _with_introduced(self, required: str) -> list[Tool]:
        """Return the offered tools, and the introduced ones as deferred tools.

        Only templates explain how to call tools. So no tool is deferred if none is offered, or if the client requires a
        call of a tool that was not introduced (`required`). An introduced definition replaces an offered one of the
        same name.
        """
        forced = {required: self.deferred[required]} if required in self.deferred else {}
        added = {**forced, **self._introduced}
        offered = []
        for tool in self.offered.values():
            other = added.pop(tool.name, tool)
            is_same = other is tool or (other.function, other.text) == (tool.function, tool.text)
            offered.append(tool if is_same else other)
        deferred = bool(offered) and not forced
        return [*offered, *(replace(tool, deferred=deferred) for tool in added.values())]

    def _choice(self, given: object, warnings: list[str]) -> ToolChoice:
        """Parse ``tool_choice`` without resolving names of tools. Raises `InvalidRequest`."""
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
            return self._allowed_tools(given, warnings)
        single = given.get("disable_parallel_tool_use")
        if not isinstance(single, bool | None):
            raise wrong_type("tool_choice.disable_parallel_tool_use", "a boolean", single)
        parallel = False if single else None
        if kind in _MODES:
            return ToolChoice(_MODES[kind], parallel=parallel)
        named = self._named(given, "tool_choice")
        if named is None:
            raise invalid("tool_choice.type", f"no model here can use tools of type {quoted(kind)}")
        one, allowed = (named, None) if named.name else (None, [named])  # a tool, or any tool of an MCP server
        return ToolChoice("required", one, allowed, parallel)

    def _named(self, given: Mapping[str, Any], path: str) -> Named | None:
        """Return the tool, or the MCP server, that an object names; None for unsupported types.

        The formats are ``{"type": "function", "function": {"name": ...}}``, or flat. Raises `InvalidRequest`.
        """
        kind, inner = given.get("type"), given
        if kind == "mcp" and self._servers:
            return Named(str(given.get("name") or ""), path, str(given.get("server_label")), is_mcp_server=True)
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

    def _allowed_tools(self, given: Mapping[str, Any], warnings: list[str]) -> ToolChoice:
        """Parse ``allowed_tools``, which are one level deeper in Chat Completions. Raises `InvalidRequest`."""
        path, inner = "tool_choice", given
        if "allowed_tools" in given:
            path = f"{path}.allowed_tools"
            inner = as_object(given["allowed_tools"], path)
        mode = inner.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise invalid(f"{path}.mode", 'must be "auto" or "required"')
        check_number(inner.get("tools"), f"{path}.tools")
        allowed: list[Named] = []
        for entry, at in objects_in(inner.get("tools"), f"{path}.tools"):
            if entry.get("type") == "namespace" and isinstance(entry.get("name"), str):
                allowed.append(Named("", f"{at}.name", entry["name"]))
            elif (named := self._named(entry, at)) is not None:
                allowed.append(named)
            else:
                warnings.append(omission_warning("allowed tools", str(entry.get("type"))))
        return ToolChoice(_MODES[mode], allowed=allowed)

    def _resolved(self, named: "Named") -> Collection[str]:
        """Return the model's names of the tools that `named` references.

        The namespace is optional if the name is unique. The client's own tools precede those of MCP servers. Raises
        `InvalidRequest` if there is no such tool.
        """
        name, namespace = model_name(named.name, named.namespace), named.namespace
        if named.name and name in self.names and not named.is_mcp_server:
            return (name,)
        any_namespace = not (namespace or named.is_mcp_server)
        same_name = [(own, client) for own, client in self.names.items() if named.name in ("", client.name)]
        found = [own for own, client in same_name if any_namespace or client.namespace == namespace]
        of_servers = [own for own in found if own in self._server_tools]
        if named.is_mcp_server and not of_servers:
            raise invalid(named.at, "no MCP server of the request has such a tool")
        found = of_servers if named.is_mcp_server else [own for own in found if own not in of_servers] or of_servers
        if len(found) != 1 and named.name and not named.is_mcp_server:
            reason = f"no tool is called {quoted(named.name)}"
            if (kind := self._omitted_names.get(named.name)) is not None:
                reason = f"{quoted(named.name)} is a tool of type {quoted(kind)}: {omission_reason(kind)}"
            raise invalid(named.at, reason)
        return found


def _no_tools() -> InvalidRequest:
    return invalid("tool_choice", "asks for a tool, but tools is empty")
