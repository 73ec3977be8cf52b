"""Checks which MCP servers a request may use, and lists their tools."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from fastapi import Request

from server.dialects.mcp import McpRequest, ServerTools
from server.errors import PermissionDenied, invalid
from server.mcp.config import McpServer, host_of, named
from server.mcp.servers import Json, McpFault
from server.serving.services import key_of, owner_of, services
from server.transport.body import read_later
from server.transport.sse import Watch

T = TypeVar("T")


def _allowed_server(request: Request, entry: McpRequest) -> McpServer:
    """Return the MCP server that a request names. Raises `InvalidRequest`, `PermissionDenied`."""
    servers = services(request).mcp
    key = key_of(request)
    usable = [label for label in servers.configured if servers.rules.allow(label) and key.may_call(label)]
    is_configured = entry.label in usable and servers.configured[entry.label].url == entry.url
    if entry.url and not (is_configured and not entry.headers):
        host = host_of(entry.url)
        if not servers.hosts.allow(host):
            raise invalid(entry.url_at, f"this server's option mcp_hosts does not allow the host {host}")
        if not key.may_call(host):
            raise PermissionDenied(f"{entry.url_at}: this API key may not use MCP servers of the host {host}")
        return McpServer(entry.label, url=entry.url, headers=entry.headers, owner=owner_of(request) or "anybody")
    if entry.label not in usable:
        raise invalid(
            entry.label_at, f"no MCP server is called '{entry.label}' here; this request may use: {named(usable)}"
        )
    if entry.headers:
        raise invalid(entry.label_at, "a configured MCP server takes no headers or tokens of requests")
    return servers.configured[entry.label]


async def read_with_servers(
    request: Request, body: Json, entries: Sequence[McpRequest], parse: Callable[[Json, ServerTools], T]
) -> T:
    """List the tools of the servers that `entries` name concurrently. Return ``parse(body, tools)``.

    A server that cannot list its tools gets a fault. Raises `InvalidRequest`, `PermissionDenied`, `ClientDisconnect`.
    """
    servers = services(request).mcp
    # An invalid body is refused before a connection is made.
    await read_later(request, lambda: parse({**body, "tool_choice": None}, ServerTools(servers)))
    for each in entries:
        each.server = _allowed_server(request, each)

    async def list_tools(each: McpRequest) -> None:
        assert each.server is not None
        try:
            tools = await servers.list_tools(each.server) if each.known is None else each.known
            each.tools = tuple(filter(each.allowed, tools))
        except McpFault as fault:
            each.fault = fault

    with Watch(request.receive):
        await asyncio.gather(*map(list_tools, entries))
    tools = ServerTools(servers, entries, body.get("tools"))
    return await read_later(request, lambda: parse(body, tools))
