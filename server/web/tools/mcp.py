"""Tools of the configured MCP servers among the page's, as llama-server has them (``--mcp-servers-json``)."""

import logging
from collections.abc import Container
from typing import Any

from server.mcp.config import McpServer
from server.mcp.servers import McpFault, McpServers, McpTool

logger = logging.getLogger(__name__)
Json = dict[str, Any]
PageMcpTools = dict[str, tuple[McpServer, McpTool]]


def mcp_tools(servers: McpServers, taken: Container[str]) -> PageMcpTools:
    """Return the tools by the names that the page uses, ``LABEL_TOOL``; names that are `taken` are skipped."""
    found: PageMcpTools = {}
    for label, tools in servers.tools.items():
        for tool in tools:
            name = f"{label}_{tool.name}"
            if name in taken or name in found:
                logger.warning("the MCP tool %s is skipped: another tool has its name", name)
            else:
                found[name] = servers.configured[label], tool
    return found


async def called(servers: McpServers, server: McpServer, tool: str, params: Json) -> Json:
    """Return the reply of POST /tools: the result's text, or an ``error``."""
    try:
        result = await servers.call(server, tool, params)
    except McpFault as fault:
        return {"error": fault.message}
    if result.is_error:
        return {"error": result.text or "MCP tool returned an error"}
    return {"plain_text_response": result.text}
