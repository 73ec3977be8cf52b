"""``tools`` of OpenAI's Responses, those of MCP servers among them.

A function of a ``namespace`` is named ``namespace__name`` for the model; its calls have the function's own name and
``namespace`` (Codex 0.169 answers a name alone with "unsupported call"). The namespace ``functions`` is OpenAI's word
for none, so it has no prefix. A ``custom`` tool is a function with one string, ``input``; a type such as ``shell`` is a
function of `tool_types`. Other types are omitted with a warning, and are only an error if ``tool_choice`` names one.

An entry of type ``mcp`` names a server, whose tools are functions for the model. In the reply their calls are
``mcp_call`` items, or ``mcp_approval_request`` if the client wants to approve a call first. ``web_search`` is such a
server if the operator configured one for it.
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
    """Reads ``tools`` of a response, and those among its items. ``shown``: the tools as the response repeats them."""

    def __init__(self, given: object = None, servers: ServerFunctions | None = None) -> None:
        super().__init__(given, servers)
        self.shown = [_shown(entry) for entry, _ in entries(given, "tools")]

    @property
    def client_searches(self) -> bool:
        """Whether the client searches deferred tools: nothing else would ever load them."""
        return any(known.type is RESPONSES["tool_search"] for known in self.names.values())

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

    def _function(self, entry: Mapping[str, Any], path: str, namespace: str = "", about: str = "") -> ReadTool:
        tool = self.function(entry, path, namespace=namespace, about=about, custom=entry["type"] == "custom")
        return tool, f"{path}.name", entry.get("defer_loading") is True

    def _namespace(self, namespace: Mapping[str, Any], path: str) -> Iterator[ReadTool]:
        name, about = name_and_description(namespace, path)
        for entry, at in entries(namespace.get("tools"), f"{path}.tools"):
            if entry.get("type") not in _CALLABLE:
                self.omit(str(entry.get("type")))
                continue
            yield self._function(entry, at, name, about)
            about = ""  # reported once, with the first of them

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
        self.names[row.name] = ClientName(row.name, type=row)
        return tool


def _client_executes(entry: Mapping[str, Any], kind: str, path: str) -> bool:
    """Return whether the client executes the tool. A search, and a shell in a container, may be the server's."""
    if kind == "tool_search":
        return entry.get("execution") == "client"
    if kind != "shell" or entry.get("environment") is None:
        return True
    return as_object(entry["environment"], f"{path}.environment").get("type") == "local"


def _shown(entry: Json) -> Json:
    """Return an entry of ``tools`` as a reply repeats it and as it is stored: without secrets.

    Secrets may be in headers, in an unknown field, and in a URL's path or query: as at OpenAI, only its origin is left.
    """
    if entry.get("type") == "function":
        said = {"description": entry.get("description") or "", "parameters": entry.get("parameters") or NO_PARAMETERS}
        return {**entry, **said, "strict": entry.get("strict") is not False}
    return without_secrets(entry)


def without_secrets(entry: Json) -> Json:
    """Return a tool without the secrets of an MCP server, also if it is in a namespace."""
    if entry.get("type") == "namespace" and isinstance(entry.get("tools"), list):
        inner = [without_secrets(each) if isinstance(each, dict) else each for each in entry["tools"]]
        return {**entry, "tools": inner}
    if entry.get("type") != "mcp":
        return entry
    own = {name: value for name, value in entry.items() if name in _SHOWN}
    if url := own.get("server_url"):  # of a server that is left out, nothing was checked
        own["server_url"] = origin_of(url) if isinstance(url, str) and is_web_url(url) else None
    return {**own, "headers": None}


_SEARCH = "web_search"
_SHOWN = ("type", "server_label", "server_url", "server_description", "allowed_tools", "require_approval")


@dataclass(frozen=True, slots=True)
class ApprovedCall:
    """A call that the client has approved and that is yet to be made: an ``mcp_approval_request`` item."""

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
    """Return the servers that ``tools`` name. Raises `InvalidRequest`.

    `items`: the conversation's, of which those of the type ``mcp_list_tools`` list tools.
    """
    known = {}
    for item in items:
        match item:
            case {"type": "mcp_list_tools", "server_label": str(label), **more} if not more.get("error"):
                known[label] = tools_of(more.get("tools"))
    found: list[McpRequest] = []
    for place, entry in enumerate(tools):
        at = f"tools.{place}"
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
                given.allowed_tools.fits,
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


def list_item(given: McpRequest) -> Json:
    """Return the ``mcp_list_tools`` item of a server."""
    return {
        "id": f"mcpl_{random_id()}",
        "type": "mcp_list_tools",
        "server_label": given.label,
        "tools": [shown_tool(tool) | {"annotations": tool.annotations} for tool in given.tools],
        "error": None if given.fault is None else f"the tools could not be listed: {given.fault.message}",
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
