"""List and call the tools of MCP servers, on the event loop.

Connections are opened on demand, and again after their end.
"""

import asyncio
import importlib.util
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from server.errors import ConfigError
from server.mcp.config import McpRules, McpServer
from server.media.hosts import AllowedHosts
from server.media.source import Media

if TYPE_CHECKING:
    from server.mcp.connection import Connection

logger = logging.getLogger(__name__)
LIST_TIMEOUT_S = 10.0
"""Seconds for a connection and its list of tools (llama-server's warm-up)."""
COOLDOWN_S = 5.0
"""Seconds before another attempt to reach an unreachable server (llama-server's)."""
IDLE_S = 120.0
"""Seconds that an unused connection to a request's URL stays open, so that a session spans several requests."""
MAX_CONNECTIONS = 256
"""Maximum open connections to URLs of requests."""
_GATEWAY_TIMEOUT = 504
EXTRA = "pip install 'llamapool[mcp]'"
Json = dict[str, Any]
T = TypeVar("T")


class McpFault(Exception):
    """A failed list or call. ``kind``: the layer that failed. ``code``: the HTTP or JSON-RPC code, 0 for none."""

    def __init__(self, message: str, kind: Literal["http", "protocol"] = "protocol", code: int = 0) -> None:
        super().__init__(message)
        self.message, self.kind, self.code = message, kind, code
        self.is_session_ended = False  # whether the server refused the work because it has ended the session


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool as its server lists it. ``schema`` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]
    annotations: Json | None = None

    @property
    def is_read_only(self) -> bool:
        return (self.annotations or {}).get("readOnlyHint") is True


@dataclass(frozen=True, slots=True)
class McpResult:
    """A tool's result. ``is_error``: the tool reports a failure. ``fault``: the reason if there is no result.

    ``what`` of an image is its media type.
    """

    text: str = ""
    images: tuple[Media, ...] = ()
    is_error: bool = False
    fault: McpFault | None = None

    @property
    def failed(self) -> bool:
        """Return whether there is no result, or the tool reports a failure."""
        return self.fault is not None or self.is_error

    @property
    def shown(self) -> str:
        """Return the result as text, for clients."""
        if self.fault is not None:
            return f"Error: {self.fault.message}"
        return "\n".join(filter(None, [self.text, *(f"[image {image.what}]" for image in self.images)]))


def is_installed() -> bool:
    return importlib.util.find_spec("mcp") is not None


@dataclass(slots=True)
class McpServers:
    """The ``configured`` servers by label, and connections to the servers in use.

    ``hosts``: the hosts that URLs of requests may name. ``tools``: those of configured servers, listed at the start.
    """

    configured: Mapping[str, McpServer] = field(default_factory=dict)
    hosts: AllowedHosts = field(default_factory=AllowedHosts)
    rules: McpRules = field(default_factory=McpRules)
    tools: dict[str, tuple[McpTool, ...]] = field(default_factory=dict)
    _connections: dict[McpServer, "Connection"] = field(default_factory=dict)
    _failed: dict[McpServer, tuple[float, McpFault]] = field(default_factory=dict)
    _closing: set["asyncio.Task[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.configured and not is_installed():
            raise ConfigError(f"server.mcp_servers needs the extra mcp: {EXTRA}")

    @property
    def is_for_requests(self) -> bool:
        """Whether requests may use any server."""
        return bool(self.rules.labels or self.hosts.anywhere or self.hosts.hosts)

    async def start(self) -> None:
        """List the tools of all configured servers, within `LIST_TIMEOUT_S`. A server that fails has none."""
        await asyncio.gather(*map(self._list_at_start, self.configured.values()))

    async def _list_at_start(self, server: McpServer) -> None:
        try:
            self.tools[server.label] = await self.list_tools(server)
        except McpFault as fault:
            logger.warning("MCP server %s: its tools could not be listed: %s", server.label, fault.message)
        else:
            logger.info("MCP server %s has %d tools", server.label, len(self.tools[server.label]))

    async def list_tools(self, server: McpServer) -> tuple[McpTool, ...]:
        """Return the current tools of a server that its configuration allows. Raises `McpFault`."""
        found = await self._use(server, lambda connection: connection.tools(), LIST_TIMEOUT_S, closes_hung=True)
        return tuple(tool for tool in found if server.allowed_tools is None or tool.name in server.allowed_tools)

    async def call(self, server: McpServer, tool: str, arguments: Json) -> McpResult:
        """Return a tool's result. Cancellation also cancels the call at the server. Raises `McpFault`."""
        if server.allowed_tools is not None and tool not in server.allowed_tools:
            raise McpFault(f"the tool {tool} of the server {server.label} is not allowed")
        return await self._use(
            server, lambda connection: connection.call(tool, arguments, self.rules.max_chars), server.timeout_s
        )

    async def close(self) -> None:
        """Close all connections and wait until their programs have exited."""
        for server in list(self._connections):
            self._drop(server)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _use(
        self,
        server: McpServer,
        work: Callable[["Connection"], Awaitable[T]],
        timeout_s: float,
        *,
        closes_hung: bool = False,
        is_last: bool = False,
    ) -> T:
        """Run `work` on a connection and return its result within `timeout_s` seconds. Raises `McpFault`.

        If the server refuses the work because it has ended the session, repeat it once (then `is_last`). `closes_hung`:
        close the connection after a timeout, unless other work uses it.
        """
        connection = self._open(server)
        connection.n_calls += 1
        if connection.idle is not None:
            connection.idle.cancel()
        try:
            async with asyncio.timeout(timeout_s):
                return await work(connection)
        except TimeoutError:
            fault = McpFault(f"no answer within {timeout_s:g} s", "http", _GATEWAY_TIMEOUT)
            self._fail(server, connection, fault)
            if closes_hung and connection.n_calls == 1 and self._connections.get(server) is connection:
                self._drop(server)  # the next use starts it again
            raise fault from None
        except McpFault as fault:
            self._fail(server, connection, fault)
            if is_last or not fault.is_session_ended:
                raise
        finally:
            connection.n_calls -= 1
            if server.owner and not connection.n_calls and self._connections.get(server) is connection:
                connection.idle = asyncio.get_running_loop().call_later(IDLE_S, self._drop, server)
        return await self._use(server, work, timeout_s, closes_hung=closes_hung, is_last=True)

    def _open(self, server: McpServer) -> "Connection":
        """Return the open connection, or a new one. Raises `McpFault` if the last attempt has just failed."""
        connection = self._connections.get(server)
        if connection is not None and connection.is_alive:
            return connection
        if connection is not None:
            self._drop(server)
        failed_at, fault = self._failed.pop(server, (float("-inf"), None))
        if fault is not None and time.monotonic() < failed_at + COOLDOWN_S:
            self._failed[server] = failed_at, fault
            raise fault
        if not is_installed():
            raise McpFault(f"this server lacks the extra mcp: {EXTRA}")
        if server.owner and len(self._connections) >= MAX_CONNECTIONS + len(self.configured):
            raise McpFault("too many connections to MCP servers are open", "http", 503)
        from server.mcp.connection import Connection  # imports the large optional package

        sites = self.hosts if server.owner else None
        return self._connections.setdefault(server, Connection(server, sites))

    def _fail(self, server: McpServer, connection: "Connection", fault: McpFault) -> None:
        """Close a connection that did not open, or that broke."""
        if (connection.is_alive and connection.was_open) or self._connections.get(server) is not connection:
            return
        if not connection.was_open:
            if len(self._failed) >= MAX_CONNECTIONS:
                self._failed.clear()
            self._failed[server] = time.monotonic(), fault
        self._drop(server)

    def _drop(self, server: McpServer) -> None:
        connection = self._connections.pop(server, None)
        if connection is None:
            return
        if connection.idle is not None:
            connection.idle.cancel()
        task = asyncio.create_task(connection.close(), name=f"close MCP server {server.label}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
