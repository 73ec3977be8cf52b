"""``tools`` of OpenAI's Responses, including MCP servers.

A function of a ``namespace`` is named ``namespace__name`` for the model; its calls have the function's own name and
``namespace`` (Codex 0.169 rejects a name without it as "unsupported call"). In OpenAI's API the namespace
``functions`` means none, so it adds no prefix. A ``custom`` tool is a function with one string, ``input``; a type such
as ``shell`` is a function of `tool_types`. Other types are dropped with a warning, and are only an error if
``tool_choice`` names one.

An entry of type ``mcp`` names a server, whose tools are functions for the model. In the reply their calls are
``mcp_call`` items, or ``mcp_approval_request`` if the client must approve a call first. ``web_search`` is such a server
if the operator configured one for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from server.chat.conversation import NO_PARAMETERS, Tool
from server.dialects.common import Json, random_id
from server.dialects.fields import Body, as_object, json_text, parse, text_in, wrong_type
from server.dialects.mcp import (
    ALL_TOOLS,
    Approval,
    Filter,
    Headers,
    Label,
    McpRequest,
    Token,
    Url,
    check_labels,
    function_name,
    shown_tool,
    tools_of,
    with_token,
)
from server.dialects.tool_types import RESPONSES, ToolType
from server.dialects.tools import (
    ClientName,
    ReadTool,
    ServerFunctions,
    ToolReader,
    entries,
    function_tool,
    name_and_description,
)
from server.errors import invalid
from server.mcp.config import is_web_url, origin_of
from server.mcp.servers import McpResult

_CALLABLE = ("function", "custom")


class ResponseTools(ToolReader):
    """Parses ``tools`` of a body, and tools in its items. ``shown``: the tools as the response repeats them."""

    def __init__(self, given: object = None, servers: ServerFunctions | None = None) -> None:
        super().__init__(given, servers)
        self.shown = [_repeated(entry) for entry, _ in entries(given, "tools")]

    @property
    def client_searches(self) -> bool:
        """Return whether the client searches deferred tools, which nothing else would load."""
        return any(name.type is RESPONSES["tool_search"] for name in self.names.values())

    def read(self, entry: dict[str, Any], path: str) -> Iterator[ReadTool]:
        kind = entry.get("type")
        if kind in _CALLABLE:
            yield self._function(entry, path)
        elif kind == "namespace":
            yield from self._namespace(entry, path)
        elif not isinstance(kind, str) or not kind:
            raise wrong_type(f"{path}.type", "a type such as function", kind)
        elif kind in RESPONSES and _client_executes(entry, kind, path):
            yield self._of_type(entry, RESPONSES[kind], path), f"{path}.type", False
        else:
            self.omit(kind)

    def _function(self, entry: Mapping[str, Any], path: str, namespace: str = "", description: str = "") -> ReadTool:
        tool = self.function(
            entry,
            path,
            namespace=namespace,
            namespace_description=description,
            custom=entry["type"] == "custom",
        )
        return tool, f"{path}.name", entry.get("defer_loading") is True

    def _namespace(self, namespace: Mapping[str, Any], path: str) -> Iterator[ReadTool]:
        name, description = name_and_description(namespace, path)
        for entry, at in entries(namespace.get("tools"), f"{path}.tools"):
            if entry.get("type") not in _CALLABLE:
                self.omit(str(entry.get("type")))
                continue
            yield self._function(entry, at, name, description)
            description = ""  # only for the first function

    def _of_type(self, entry: Mapping[str, Any], row: ToolType, path: str) -> Tool:
        """Return the function for a type of `tool_types`, with the entry's description and parameters if allowed."""
        tool = Tool(row.name, row.description, row.parameters, at=path)
        if row.open:
            own = function_tool(entry, path, *name_and_description({**entry, "name": row.name}, path))
            parameters = row.parameters if entry.get("parameters") is None else own.parameters
            tool = replace(own, description=own.description or row.description, parameters=parameters)
        environment = entry.get("environment")
        if isinstance(environment, dict) and environment.get("skills"):
            skills = json_text(environment["skills"])
            tool = replace(tool, description=f"{tool.description}\nSkills of the machine: {skills}")
        self.names[row.name] = ClientName(row.name, type=row)
        return tool


def _client_executes(entry: Mapping[str, Any], kind: str, path: str) -> bool:
    """Return whether the client executes the tool. A search, or a shell in a container, may run on the server."""
    if kind == "tool_search":
        return entry.get("execution") == "client"
    if kind != "shell" or entry.get("environment") is None:
        return True
    return as_object(entry["environment"], f"{path}.environment").get("type") == "local"


def _repeated(entry: Json) -> Json:
    """Return an entry of ``tools`` as it is repeated and stored: with defaults, and without secrets."""
    if entry.get("type") == "function":
        parameters = entry.get("parameters") or NO_PARAMETERS
        fields = {"description": entry.get("description") or "", "parameters": parameters}
        return {**entry, **fields, "strict": entry.get("strict") is not False}
    return without_secrets(entry)


def without_secrets(entry: Json) -> Json:
    """Return a tool without secrets of an MCP server, also inside a namespace.

    Secrets may be in headers, in unknown fields, and in the path or query of a URL. As in OpenAI's API, only the origin
    of the URL stays.
    """
    if entry.get("type") == "namespace" and isinstance(entry.get("tools"), list):
        inner = [without_secrets(each) if isinstance(each, dict) else each for each in entry["tools"]]
        return {**entry, "tools": inner}
    if entry.get("type") != "mcp":
        return entry
    own = {name: value for name, value in entry.items() if name in _WITHOUT_SECRETS}
    if url := own.get("server_url"):  # not validated if the server was dropped
        own["server_url"] = origin_of(url) if isinstance(url, str) and is_web_url(url) else None
    return {**own, "headers": None}


_SEARCH = "web_search"
_WITHOUT_SECRETS = ("type", "server_label", "server_url", "server_description", "allowed_tools", "require_approval")


@dataclass(frozen=True, slots=True)
class ApprovedCall:
    """An approved call that has not been made: the call of an ``mcp_approval_request`` item."""

    id: str
    label: str
    name: str
    arguments: str
    at: str


def is_mcp(entry: object, web_search: str) -> bool:
    """Return whether an entry of ``tools`` is an MCP server. `web_search`: the label of the web search server."""
    if not isinstance(entry, dict):
        return False
    kind = entry.get("type")
    return kind == "mcp" or bool(web_search and isinstance(kind, str) and kind.startswith(_SEARCH))


def read_mcp(tools: Sequence[Json], web_search: str, items: Iterable[object]) -> list[McpRequest]:
    """Return the MCP servers in ``tools``. Raises `InvalidRequest`.

    `items`: those of the conversation. ``mcp_list_tools`` items have the tools of a server.
    """
    known = {}
    for item in items:
        match item:
            case {"type": "mcp_list_tools", "server_label": str(label), **more} if not more.get("error"):
                known[label] = tools_of(more.get("tools"))
    found: list[McpRequest] = []
    for index, entry in enumerate(tools):
        at = f"tools.{index}"
        if not is_mcp(entry, web_search):
            continue
        if entry["type"] != "mcp":
            own, is_listed = known.get(web_search), web_search not in known
            found.append(McpRequest(web_search, at, f"{at}.server_label", known=own, is_listed=is_listed))
            continue
        for name in ("connector_id", "tunnel_id"):
            if entry.get(name) is not None:
                raise invalid(f"{at}.{name}", "only OpenAI has it; send server_url")
        given = parse(McpToolParam, entry, at)
        found.append(
            McpRequest(
                *(given.server_label, at, f"{at}.server_label", given.server_url, f"{at}.server_url"),
                with_token(given.headers, given.authorization),
                given.server_description,
                given.allowed_tools.matches,
                given.require_approval,
                known.get(given.server_label),
                is_listed=given.server_label not in known,
            )
        )
    check_labels(found, "tools")
    return found


_APPROVALS: Mapping[str, object] = {"always": {}, "never": {"never": {}}}


class McpToolParam(Body):
    """A tool of type ``mcp``."""

    server_label: Label
    server_url: Url = ""
    headers: Headers = Field(default_factory=dict)
    authorization: Token | None = None
    server_description: str = ""
    allowed_tools: Filter = ALL_TOOLS
    require_approval: Annotated[
        Approval, BeforeValidator(lambda given: _APPROVALS.get(given, given) if isinstance(given, str) else given)
    ] = Field(default_factory=Approval)


def list_item(server: McpRequest) -> Json:
    """Return the ``mcp_list_tools`` item of an MCP server."""
    return {
        "id": f"mcpl_{random_id()}",
        "type": "mcp_list_tools",
        "server_label": server.label,
        "tools": [shown_tool(tool) | {"annotations": tool.annotations} for tool in server.tools],
        "error": None if server.fault is None else f"the tools could not be listed: {server.fault.message}",
    }


def result_fields(result: McpResult) -> Json:
    """Return ``output``, ``error`` and ``status`` of an ``mcp_call`` item."""
    if not result.failed:
        return {"output": result.shown, "error": None, "status": "completed"}
    if (fault := result.fault) is not None:
        kind = "http_error" if fault.kind == "http" else "mcp_protocol_error"
        error: Json = {"type": kind, "code": fault.code, "message": fault.message}
    else:
        error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": result.shown}]}
    return {"output": None, "error": error, "status": "failed"}


def reader_name(item: Mapping[str, Any]) -> str:
    """Return the model's name of the tool of an ``mcp_call`` or ``mcp_approval_request`` item."""
    label = text_in(item, "server_label")
    return function_name(label, item["name"]) if label else str(item["name"])
