"""``mcp_servers`` and tools of type ``mcp_toolset`` in Anthropic's Messages API.

The model sees the tools of the servers as functions. In the reply their calls are ``mcp_tool_use`` blocks, followed
by an ``mcp_tool_result`` for each. With toolsets, a reply starts with an ``mcp_tool_listing`` per server that was asked
for its tools. This API has no approvals.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from server.chat.conversation import Tool
from server.dialects.common import Json
from server.dialects.fields import as_object, objects_in, wrong_type
from server.dialects.mcp import (
    CallableTool,
    McpRequest,
    OfferedServer,
    Outcome,
    ToolFilter,
    check_labels,
    named_tools,
    read_headers,
    read_label,
    read_names,
    read_url,
    tool_of,
)
from server.errors import InvalidRequest
from server.mcp.results import McpTool

TOOLSET = "mcp_toolset"
LISTING = "mcp_tool_listing"
STRICT_BETA = "mcp-client-2025-11-20"
"""The version of the API in which a server without a toolset is an error."""


def uses_mcp(given: Mapping[str, Any]) -> bool:
    """Return whether a body names MCP servers."""
    return bool(given.get("mcp_servers"))


def has_toolsets(given: Mapping[str, Any]) -> bool:
    """Return whether a body uses toolsets, whose clients know ``mcp_tool_listing`` blocks."""
    return bool(_toolsets(given.get("tools")))


def read_mcp(given: Mapping[str, Any], betas: str) -> list[McpRequest]:
    """Return the servers that a body names. `betas`: the header ``anthropic-beta``. Raises `InvalidRequest`."""
    toolsets = _toolsets(given.get("tools"))
    found = [
        _server(entry, at, toolsets, strict=STRICT_BETA in betas)
        for entry, at in objects_in(given["mcp_servers"], "mcp_servers")
    ]
    check_labels(found, "mcp_servers", "name")
    for name, (_, at) in toolsets.items():
        if name not in {server.label for server in found}:
            path = f"{at}.mcp_server_name"
            raise InvalidRequest(f"{path}: mcp_servers has no server of that name", path)
    return found


def pinned_lists(given: Mapping[str, Any]) -> dict[str, tuple[McpTool, ...]]:
    """Return the tools of servers that the body lists itself, by the name of the server.

    A toolset's ``tools`` win over the newest ``mcp_tool_listing`` block of an earlier reply.
    """
    found = {}
    for block, at in _listings(given.get("messages")):
        found[str(block.get("mcp_server_name"))] = _tools_of(block, at)
    for name, (entry, at) in _toolsets(given.get("tools")).items():
        if entry.get("tools") is not None:
            found[name] = _tools_of(entry, at)
    return found


def _tools_of(entry: Mapping[str, Any], at: str) -> tuple[McpTool, ...]:
    tools = [tool_of(tool) for tool, _ in objects_in(entry.get("tools"), f"{at}.tools")]
    return tuple(tool for tool in tools if tool is not None)


def _listings(messages: object) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the ``mcp_tool_listing`` blocks with their paths, the oldest first."""
    for place, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for index, block in enumerate(content if isinstance(content, list) else ()):
            if isinstance(block, dict) and block.get("type") == LISTING:
                yield block, f"messages.{place}.content.{index}"


def listing_blocks(offered: Iterable[OfferedServer]) -> list[Json]:
    """Return an ``mcp_tool_listing`` block for each server that was asked for its tools. Clients return it later."""
    return [
        {
            "type": LISTING,
            "mcp_server_name": each.request.label,
            "tools": [
                {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}
                for tool in each.tools
            ],
        }
        for each in offered
        if not each.is_known and each.fault is None
    ]


def _toolsets(tools: object) -> dict[str, tuple[Mapping[str, Any], str]]:
    """The toolsets by the names of their servers, each with its path."""
    found: dict[str, tuple[Mapping[str, Any], str]] = {}
    for place, entry in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(entry, dict) and entry.get("type") == TOOLSET:
            at = f"tools.{place}"
            name = read_label(entry.get("mcp_server_name"), f"{at}.mcp_server_name")
            if name in found:
                path = f"{at}.mcp_server_name"
                raise InvalidRequest(f"{path}: two toolsets have the same server", path)
            found[name] = entry, at
    return found


def _server(
    entry: Mapping[str, Any], at: str, toolsets: Mapping[str, tuple[Mapping[str, Any], str]], *, strict: bool
) -> McpRequest:
    if entry.get("type") != "url":
        raise InvalidRequest(f'{at}.type: must be "url"', f"{at}.type")
    label = read_label(entry.get("name"), f"{at}.name")
    if strict and label not in toolsets:
        raise InvalidRequest(f"{at}.name: no mcp_toolset in tools refers to this server", f"{at}.name")
    allowed = _enabled(*toolsets[label]) if label in toolsets else _configured(entry, at)
    token_at = f"{at}.authorization_token"
    return McpRequest(
        label,
        at,
        read_url(entry.get("url"), f"{at}.url"),
        f"{at}.url",
        read_headers(None, entry.get("authorization_token"), token_at, token_at),
        allowed=allowed,
    )


def _configured(entry: Mapping[str, Any], at: str) -> Any:
    """Return the tools that ``tool_configuration`` allows."""
    at = f"{at}.tool_configuration"
    given = as_object(entry.get("tool_configuration") or {}, at)
    if given.get("enabled") is False:
        return ToolFilter(frozenset()).fits
    return ToolFilter(read_names(given.get("allowed_tools"), f"{at}.allowed_tools")).fits


def _enabled(entry: Mapping[str, Any], at: str) -> Any:
    """Return the tools that a toolset enables."""
    default = as_object(entry.get("default_config") or {}, f"{at}.default_config").get("enabled")
    configs = as_object(entry.get("configs") or {}, f"{at}.configs")
    own = {}
    for name, config in configs.items():
        enabled = as_object(config, f"{at}.configs.{name}").get("enabled")
        if not isinstance(enabled, bool | None):
            raise wrong_type(f"{at}.configs.{name}.enabled", "a boolean", enabled)
        own[name] = enabled

    def enabled_tool(tool: McpTool) -> bool:
        chosen = own.get(tool.name)
        return (default is not False) if chosen is None else chosen

    return enabled_tool


def offer_tools(offered: Sequence[OfferedServer], tools: object) -> dict[str, CallableTool]:
    """Return the tools of all servers by the model's names. Names of the client's own `tools` are taken."""
    own = tools if isinstance(tools, list) else []
    return named_tools(offered, {str(entry.get("name")) for entry in own if isinstance(entry, dict)})


def without_toolsets(tools: object) -> object:
    """Return the entries of ``tools`` that are no toolsets."""
    if not isinstance(tools, list):
        return tools
    return [entry for entry in tools if not (isinstance(entry, dict) and entry.get("type") == TOOLSET)]


def functions(mcp: Mapping[str, CallableTool]) -> list[Tool]:
    """Return the functions that represent the tools of MCP servers."""
    return [
        Tool(name, known.tool.description, {**known.tool.schema, "type": "object"}, at="mcp_servers")
        for name, known in mcp.items()
    ]


def unlisted(offered: Iterable[OfferedServer]) -> list[str]:
    """Return a warning for each server whose tools could not be listed; this API has no place for them in the reply."""
    return [
        f"{each.request.at}: the tools of the MCP server could not be listed: {each.fault.message}"
        for each in offered
        if each.fault is not None
    ]


def result_block(call_id: str, outcome: Outcome) -> Json:
    """Return the ``mcp_tool_result`` of a call."""
    content = [{"type": "text", "text": outcome.text}]
    return {"type": "mcp_tool_result", "tool_use_id": call_id, "is_error": outcome.failed, "content": content}
