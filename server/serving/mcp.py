"""Which MCP servers a request may use, and the tools that they have now."""

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


def _allowed_server(request: Request, wanted: McpRequest) -> McpServer:
    """Return the server that a request names. Raises `InvalidRequest`, `PermissionDenied`."""
    servers = services(request).mcp
    key = key_of(request)
    usable = [label for label in servers.configured if servers.rules.allow(label) and key.may_call(label)]
    is_configured = wanted.label in usable and servers.configured[wanted.label].url == wanted.url
    if wanted.url and not (is_configured and not wanted.headers):
        host = host_of(wanted.url)
        if not servers.hosts.allow(host):
            raise invalid(wanted.url_at, f"this server's option mcp_hosts does not allow the host {host}")
        if not key.may_call(host):
            raise PermissionDenied(f"{wanted.url_at}: this API key may not use MCP servers of the host {host}")
        return McpServer(wanted.label, url=wanted.url, headers=wanted.headers, owner=owner_of(request) or "anybody")
    if wanted.label not in usable:
        raise invalid(
            wanted.label_at, f"no MCP server is called '{wanted.label}' here; this request may use: {named(usable)}"
        )
    if wanted.headers:
        raise invalid(wanted.label_at, "a configured MCP server takes no headers or tokens of requests")
    return servers.configured[wanted.label]


async def read_with_servers(
    request: Request, given: Json, wanted: Sequence[McpRequest], read: Callable[[Json, ServerTools], T]
) -> T:
    """Return what `read` makes of a body and of the tools of the servers that it names, listed all at once.

    A server that can't list its tools has a fault. Raises `InvalidRequest`, `PermissionDenied` and `ClientDisconnect`.
    """
    servers = services(request).mcp
    # Nothing is connected to for a body that is wrong anyway.
    await read_later(request, lambda: read({**given, "tool_choice": None}, ServerTools(servers)))
    for each in wanted:
        each.server = _allowed_server(request, each)

    async def ask(each: McpRequest) -> None:
        assert each.server is not None
        try:
            found = await servers.list_tools(each.server) if each.known is None else each.known
            each.tools = tuple(filter(each.allowed, found))
        except McpFault as fault:
            each.fault = fault

    with Watch(request.receive):
        await asyncio.gather(*map(ask, wanted))
    tools = ServerTools(servers, wanted, given.get("tools"))
    return await read_later(request, lambda: read(given, tools))
