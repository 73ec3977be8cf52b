"""Lists and calls the tools of MCP servers. Connections are opened when they are needed and opened again when they
have ended. Used on the event loop."""

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
"""Seconds in which a server that could not be reached is not tried again (llama-server's)."""
IDLE_S = 120.0
"""Seconds that a connection to a URL of a request stays open unused, so that a session lasts over several requests."""
MAX_CONNECTIONS = 256
"""Connections to URLs of requests that may be open at once."""
_TOO_LATE = 504
EXTRA = "pip install 'llamapool[mcp]'"
Json = dict[str, Any]
T = TypeVar("T")


class McpFault(Exception):
    """A failed list or call. ``kind``: the layer that failed. ``code``: the HTTP or JSON-RPC code, 0 for none."""

    def __init__(self, message: str, kind: Literal["http", "protocol"] = "protocol", code: int = 0) -> None:
        super().__init__(message)
        self.message, self.kind, self.code = message, kind, code
        self.is_of_session = False  # whether the server refused the work because it has ended the session


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool of a server, as the server lists it. ``schema`` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]
    annotations: Json | None = None

    @property
    def is_read_only(self) -> bool:
        return (self.annotations or {}).get("readOnlyHint") is True


@dataclass(frozen=True, slots=True)
class McpResult:
    """A tool's result. ``is_error``: the tool reports a failure. ``what`` of an image is its media type.

    ``fault``: why there is no result.
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
    """The ``configured`` servers by label, and connections to all servers that are in use.

    ``hosts``: which hosts a request may name by URL.
    ``tools``: those of configured servers as they were listed at the start.
    """

    configured: Mapping[str, McpServer] = field(default_factory=dict)
    hosts: AllowedHosts = field(default_factory=AllowedHosts)
    rules: McpRules = field(default_factory=McpRules)
    tools: dict[str, tuple[McpTool, ...]] = field(default_factory=dict)
    _used: dict[McpServer, "Connection"] = field(default_factory=dict)
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
        """List the tools of all configured servers, at most `LIST_TIMEOUT_S` seconds. One that fails has none."""
        await asyncio.gather(*map(self._list_at_start, self.configured.values()))

    async def _list_at_start(self, server: McpServer) -> None:
        try:
            self.tools[server.label] = await self.list_tools(server)
        except McpFault as fault:
            logger.warning("MCP server %s: its tools could not be listed: %s", server.label, fault.message)
        else:
            logger.info("MCP server %s has %d tools", server.label, len(self.tools[server.label]))

    async def list_tools(self, server: McpServer) -> tuple[McpTool, ...]:
        """Return a server's tools, as they are now, that its configuration allows. Raises `McpFault`."""
        found = await self._use(server, lambda used: used.tools(), LIST_TIMEOUT_S, closes_hung=True)
        return tuple(tool for tool in found if server.allowed_tools is None or tool.name in server.allowed_tools)

    async def call(self, server: McpServer, tool: str, arguments: Json) -> McpResult:
        """Return a tool's result. Cancelling it cancels the call at the server. Raises `McpFault`."""
        if server.allowed_tools is not None and tool not in server.allowed_tools:
            raise McpFault(f"the tool {tool} of the server {server.label} is not allowed")
        return await self._use(server, lambda used: used.call(tool, arguments, self.rules.max_chars), server.timeout_s)

    async def close(self) -> None:
        """Close all connections and wait until their programs have ended."""
        for server in list(self._used):
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
        """Return what `work` makes of a connection within `timeout_s` seconds. Raises `McpFault`. Work that the server
        refused because the session has ended is repeated once, which `is_last` marks.

        `closes_hung`: close the connection when that time is over, unless other work uses it too.
        """
        used = self._open(server)
        used.n_calls += 1
        if used.idle is not None:
            used.idle.cancel()
        try:
            async with asyncio.timeout(timeout_s):
                return await work(used)
        except TimeoutError:
            late = McpFault(f"no answer within {timeout_s:g} s", "http", _TOO_LATE)
            self._fail(server, used, late)
            if closes_hung and used.n_calls == 1 and self._used.get(server) is used:
                self._drop(server)  # it answers nothing; the next use starts it again
            raise late from None
        except McpFault as fault:
            self._fail(server, used, fault)
            if is_last or not fault.is_of_session:
                raise
        finally:
            used.n_calls -= 1
            if server.owner and not used.n_calls and self._used.get(server) is used:
                used.idle = asyncio.get_running_loop().call_later(IDLE_S, self._drop, server)
        return await self._use(server, work, timeout_s, closes_hung=closes_hung, is_last=True)

    def _open(self, server: McpServer) -> "Connection":
        """Return the open connection, or a new one. Raises `McpFault` if the last attempt has just failed."""
        used = self._used.get(server)
        if used is not None and used.is_alive:
            return used
        if used is not None:
            self._drop(server)
        failed_at, fault = self._failed.pop(server, (float("-inf"), None))
        if fault is not None and time.monotonic() < failed_at + COOLDOWN_S:
            self._failed[server] = failed_at, fault
            raise fault
        if not is_installed():
            raise McpFault(f"this server lacks the extra mcp: {EXTRA}")
        if server.owner and len(self._used) >= MAX_CONNECTIONS + len(self.configured):
            raise McpFault("too many connections to MCP servers are open", "http", 503)
        from server.mcp.connection import Connection  # of an extra, and large

        sites = self.hosts if server.owner else None
        return self._used.setdefault(server, Connection(server, sites))

    def _fail(self, server: McpServer, used: "Connection", fault: McpFault) -> None:
        """Close a connection that never opened, or that broke."""
        if (used.is_alive and used.was_open) or self._used.get(server) is not used:
            return
        if not used.was_open:
            if len(self._failed) >= MAX_CONNECTIONS:
                self._failed.clear()
            self._failed[server] = time.monotonic(), fault
        self._drop(server)

    def _drop(self, server: McpServer) -> None:
        used = self._used.pop(server, None)
        if used is None:
            return
        if used.idle is not None:
            used.idle.cancel()
        task = asyncio.create_task(used.close(), name=f"close MCP server {server.label}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
