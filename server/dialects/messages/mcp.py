"""``mcp_servers`` and tools of type ``mcp_toolset`` in Anthropic's Messages API.

The model sees the tools of the servers as functions. In the reply, a call is an ``mcp_tool_use`` block, and its result
an ``mcp_tool_result`` block. If the body has toolsets, the reply starts with an ``mcp_tool_listing`` for each server
that listed its tools. This API has no approvals.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from server.dialects.common import Json
from server.dialects.fields import Body, dicts_in, objects_in, parse
from server.dialects.mcp import Label, McpRequest, Token, Url, check_labels, shown_tool, tools_of, with_token
from server.errors import invalid
from server.mcp.servers import McpTool

TOOLSET = "mcp_toolset"
LISTING = "mcp_tool_listing"
STRICT_BETA = "mcp-client-2025-11-20"
"""The version of the API in which a server without a toolset is an error."""


class ToolConfig(Body):
    """Whether a tool is offered, and whether it is deferred."""

    enabled: bool | None = None
    defer_loading: Any = None


class McpToolset(Body):
    """An entry of ``tools`` that selects tools of one server. ``tools``: the server's list, if the client knows it."""

    mcp_server_name: Label
    default_config: ToolConfig = Field(default_factory=ToolConfig)
    configs: dict[str, ToolConfig] = Field(default_factory=dict)
    tools: list[dict[str, Any]] | None = None

    def enables(self, tool: McpTool) -> bool:
        """Return whether the toolset offers a tool."""
        own = self.configs.get(tool.name, self.default_config).enabled
        return self.default_config.enabled is not False if own is None else own


class ToolConfiguration(Body):
    """``tool_configuration`` of a server, the older form of a toolset."""

    enabled: bool = True
    allowed_tools: list[str] | None = None

    def enables(self, tool: McpTool) -> bool:
        """Return whether a tool of the server is offered."""
        return self.enabled and (self.allowed_tools is None or tool.name in self.allowed_tools)


class McpServerParam(Body):
    """An entry of ``mcp_servers``."""

    type: Literal["url"]
    name: Label
    url: Url
    authorization_token: Token | None = None
    tool_configuration: ToolConfiguration = Field(default_factory=ToolConfiguration)


def read_mcp(given: Mapping[str, Any], betas: str) -> list[McpRequest]:
    """Return the MCP servers of a body. `betas`: the header ``anthropic-beta``. Raises `InvalidRequest`.

    A toolset's ``tools`` replace the newest ``mcp_tool_listing`` block of an earlier reply.
    """
    toolsets = _toolsets(given.get("tools"))
    lists = [(block.get("mcp_server_name"), block.get("tools"), at) for block, at in _listings(given.get("messages"))]
    lists += ((name, each.tools, at) for name, (each, at) in toolsets.items() if each.tools is not None)
    listed = {str(name): tools_of([tool for tool, _ in objects_in(tools, f"{at}.tools")]) for name, tools, at in lists}
    found = []
    for entry, at in objects_in(given["mcp_servers"], "mcp_servers"):
        server = parse(McpServerParam, entry, at)
        toolset, _ = toolsets.get(server.name, (None, ""))
        if toolset is None and STRICT_BETA in betas:
            raise invalid(f"{at}.name", "no mcp_toolset in tools refers to this server")
        found.append(
            McpRequest(
                *(server.name, at, f"{at}.name", server.url, f"{at}.url"),
                with_token({}, server.authorization_token),
                allowed=(toolset or server.tool_configuration).enables,
                known=listed.get(server.name),
                is_listed=bool(toolsets) and server.name not in listed,  # only clients with toolsets know listings
            )
        )
    check_labels(found, "mcp_servers")
    for name, (_, at) in toolsets.items():
        if name not in {server.label for server in found}:
            raise invalid(f"{at}.mcp_server_name", "mcp_servers has no server of that name")
    return found


def _listings(messages: object) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the ``mcp_tool_listing`` blocks with their paths, the oldest first."""
    for n_message, message in dicts_in(messages):
        for n_block, block in dicts_in(message.get("content")):
            if block.get("type") == LISTING:
                yield block, f"messages.{n_message}.content.{n_block}"


def listing_blocks(requested: Iterable[McpRequest]) -> list[Json]:
    """Return an ``mcp_tool_listing`` block for each server that listed its tools. Clients send it back."""
    return [
        {"type": LISTING, "mcp_server_name": each.label, "tools": list(map(shown_tool, each.tools))}
        for each in requested
        if each.is_listed and each.fault is None
    ]


def _toolsets(tools: object) -> dict[str, tuple[McpToolset, str]]:
    """Return the toolsets with their paths, by the names of their servers."""
    found: dict[str, tuple[McpToolset, str]] = {}
    for index, entry in dicts_in(tools):
        if entry.get("type") == TOOLSET:
            at = f"tools.{index}"
            toolset = parse(McpToolset, entry, at)
            if toolset.mcp_server_name in found:
                raise invalid(f"{at}.mcp_server_name", "two toolsets have the same server")
            found[toolset.mcp_server_name] = toolset, at
    return found


def unlisted(requested: Iterable[McpRequest]) -> list[str]:
    """Return a warning for each server that could not list its tools: replies of this API have no field for it."""
    return [
        f"{each.at}: the tools of the MCP server could not be listed: {each.fault.message}"
        for each in requested
        if each.fault is not None
    ]
