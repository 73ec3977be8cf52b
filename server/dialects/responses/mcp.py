"""Tools of type ``mcp`` in OpenAI's Responses: which servers a body names, how the model sees their tools, and items.

The model sees the tools as functions of a namespace. In the reply their calls are ``mcp_call`` items, or
``mcp_approval_request`` where the client wants to approve a call first. ``web_search`` is such a server where the
operator configured one for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field

from server.chat.conversation import Call, Conversation, Message, Tool
from server.dialects.common import Json, random_id
from server.dialects.fields import Body, parse
from server.dialects.mcp import (
    ALL_TOOLS,
    Approval,
    CallableTool,
    Filter,
    Headers,
    Label,
    McpRequest,
    OfferedServer,
    Outcome,
    ServerCall,
    ServerTools,
    Token,
    Url,
    check_labels,
    function_name,
    named_tools,
    tool_of,
    with_token,
)
from server.errors import InvalidRequest
from server.mcp.config import origin_of
from server.mcp.results import McpTool

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


def read_mcp(tools: object, web_search: str) -> dict[int, McpRequest]:
    """Return the servers that ``tools`` name, by the entry's place. Raises `InvalidRequest`."""
    found = {
        place: _server(entry, f"tools.{place}", web_search)
        for place, entry in enumerate(tools if isinstance(tools, list) else ())
        if is_mcp(entry, web_search)
    }
    check_labels(list(found.values()), "tools", "server_label")
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


def _server(entry: Mapping[str, Any], at: str, web_search: str) -> McpRequest:
    if entry["type"] != "mcp":
        return McpRequest(web_search, at)
    for name in ("connector_id", "tunnel_id"):
        if entry.get(name) is not None:
            raise InvalidRequest(f"{at}.{name}: only OpenAI has it; send server_url", f"{at}.{name}")
    given = parse(McpToolParam, entry, at)
    return McpRequest(
        given.server_label,
        at,
        given.server_url,
        f"{at}.server_url",
        with_token(given.headers, given.authorization),
        given.server_description,
        given.allowed_tools.fits,
        given.require_approval,
    )


def known_lists(items: Iterable[object]) -> dict[str, tuple[McpTool, ...]]:
    """Return the tools that ``mcp_list_tools`` items list, by the label of their server."""
    found = {}
    for item in items:
        if isinstance(item, dict) and item.get("type") == "mcp_list_tools" and not item.get("error"):
            tools = item.get("tools")
            each = [tool_of(tool) for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
            if isinstance(label := item.get("server_label"), str):
                found[label] = tuple(tool for tool in each if tool is not None)
    return found


def offer_tools(offered: Sequence[OfferedServer], tools: Sequence[Any]) -> dict[str, CallableTool]:
    """Return the tools of all servers by the model's names. Names of functions in `tools` are taken."""
    taken = set()
    for entry in tools:
        if isinstance(entry, dict):
            taken.add(str(entry.get("name")))
            inner = entry.get("tools")
            for tool in inner if isinstance(inner, list) else ():
                if isinstance(tool, dict):
                    taken.add(f"{entry.get('name')}__{tool.get('name')}")
    return named_tools(offered, taken)


@dataclass(frozen=True, slots=True)
class McpFunctions:
    """The functions that represent a body's MCP servers: by the place of their entry in ``tools``, and ``tools`` by the
    model's names.
    """

    by_place: Mapping[int, Sequence[Tool]]
    tools: Mapping[str, CallableTool]

    @classmethod
    def of(
        cls, places: Mapping[int, McpRequest], tools: Mapping[str, CallableTool], offered: Sequence[OfferedServer]
    ) -> Self:
        """Return the functions of the servers at `places`. The first function of a server describes the server, too."""
        by_place: dict[int, list[Tool]] = {}
        for place, request in places.items():
            server = next(each.server for each in offered if each.request is request)
            about = request.description or server.description
            functions = by_place[place] = []
            for name, known in tools.items():
                if known.server.label == request.label:
                    description = "\n\n".join(filter(None, [about, known.tool.description]))
                    schema = {**known.tool.schema, "type": "object"}
                    functions.append(Tool(name, description, schema, at=f"tools.{place}"))
                    about = ""
        return cls(by_place, tools)

    def choice(self, given: Any, n_entries: int) -> Any:
        """Return ``tool_choice`` as functions. `n_entries`: the length of ``tools``. Raises `InvalidRequest`."""
        if given == "required" and not self.tools and len(self.by_place) == n_entries:
            return "auto"  # no server could list its tools; the response reports it
        if not isinstance(given, dict):
            return given
        if given.get("type") == "allowed_tools" and isinstance(given.get("tools"), list):
            listed = [
                function
                for place, entry in enumerate(given["tools"])
                for function in (
                    self._chosen(entry, f"tool_choice.tools.{place}")
                    if isinstance(entry, dict) and entry.get("type") == "mcp"
                    else [entry]
                )
            ]
            return {**given, "tools": listed}
        if given.get("type") != "mcp":
            return given
        chosen = self._chosen(given, "tool_choice")
        return chosen[0] if len(chosen) == 1 else {"type": "allowed_tools", "mode": "required", "tools": chosen}

    def _chosen(self, entry: Mapping[str, Any], at: str) -> list[Json]:
        label, tool = entry.get("server_label"), entry.get("name")
        names = [
            name
            for name, known in self.tools.items()
            if known.server.label == label and (tool is None or known.tool.name == tool)
        ]
        if not names:
            raise InvalidRequest(f"{at}: no MCP server of the request has such a tool", at)
        return [{"type": "function", "name": name} for name in names]


def shown_server(entry: Json) -> Json:
    """Return an entry of ``tools`` as a reply repeats it and as it is stored: without secrets.

    Secrets may be in headers, in an unknown field, and in a URL's path or query: as at OpenAI, only its origin is left.
    """
    if entry["type"] != "mcp":
        return entry
    own = {name: value for name, value in entry.items() if name in _SHOWN}
    if own.get("server_url"):
        own["server_url"] = origin_of(own["server_url"])
    return {**own, "headers": None}


def list_item(offered: OfferedServer) -> Json:
    """Return the ``mcp_list_tools`` item of a server."""
    tools = [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": dict(tool.schema),
            "annotations": tool.annotations,
        }
        for tool in offered.tools
    ]
    error = None if offered.fault is None else f"the tools could not be listed: {offered.fault.message}"
    label = offered.request.label
    return {
        "id": f"mcpl_{random_id()}",
        "type": "mcp_list_tools",
        "server_label": label,
        "tools": tools,
        "error": error,
    }


def outcome_fields(outcome: Outcome) -> Json:
    """Return ``output``, ``error`` and ``status`` of an ``mcp_call`` item."""
    fault = outcome.fault
    if fault is not None:
        error: Json = {"type": "http_error", "code": fault.code, "message": fault.message}
        if fault.kind != "http":
            error["type"] = "mcp_protocol_error"
        return {"output": None, "error": error, "status": "failed"}
    if outcome.result.is_error:
        content = [{"type": "text", "text": outcome.text}]
        return {"output": None, "error": {"type": "mcp_tool_execution_error", "content": content}, "status": "failed"}
    return {"output": outcome.text, "error": None, "status": "completed"}


def call_item(known: CallableTool, arguments: str, approval: str | None = None) -> Json:
    """Return an ``mcp_call`` item whose outcome is not known yet; `approval`: the id of the request for it."""
    return {
        "id": f"mcp_{random_id()}",
        "type": "mcp_call",
        "status": "in_progress",
        "approval_request_id": approval,
        "arguments": arguments,
        "error": None,
        "name": known.tool.name,
        "output": None,
        "server_label": known.server.label,
    }


@dataclass(slots=True)
class McpRounds:
    """The MCP tools of one response.

    ``tools``: by the model's names. ``server_tools``: calls them (None = no tools). The rest was done before the
    first round: items at the start of the output, and messages that they add.
    """

    tools: Mapping[str, CallableTool] = field(default_factory=dict)
    server_tools: ServerTools | None = None
    lead: list[Json] = field(default_factory=list)
    added: list[Message] = field(default_factory=list)

    def calls_of(self, approved: Sequence[ApprovedCall]) -> list[ServerCall]:
        """Return the calls that the client has approved.

        Raises `InvalidRequest` for one whose server is not among the request's tools.
        """
        calls = []
        for each in approved:
            wanted = (each.label, each.name)
            name = next((n for n, known in self.tools.items() if (known.server.label, known.tool.name) == wanted), None)
            if name is None:
                raise InvalidRequest(
                    f"{each.at}: the request's tools lack the MCP server or the tool of the approved call", each.at
                )
            calls.append(ServerCall(each.id, name, each.arguments))
        return calls

    async def make(self, calls: Sequence[ServerCall]) -> None:
        """Make approved calls, once, before the first round."""
        if self.added or self.server_tools is None:
            return
        outcomes = {call.id: outcome async for call, outcome in self.server_tools.outcomes(calls)}
        made = tuple(Call(call.name, call.arguments, call.id) for call in calls)
        self.added.append(Message("assistant", calls=made))
        for call in calls:
            outcome = outcomes[call.id]
            self.lead.append(call_item(self.tools[call.name], call.arguments, call.id) | outcome_fields(outcome))
            self.added.append(outcome.message(call.id))

    def continued(self, conversation: Conversation) -> Conversation:
        """Return the conversation with the approved calls and their results."""
        if not self.added:
            return conversation
        return replace(conversation, messages=(*conversation.messages, *self.added), opens=None, continues=None)


def reader_name(item: Mapping[str, Any]) -> str:
    """Return the model's name of the tool of an ``mcp_call`` or ``mcp_approval_request`` item."""
    label = item.get("server_label")
    return function_name(label, item["name"]) if isinstance(label, str) else str(item["name"])
