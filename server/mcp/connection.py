"""A session with an MCP server through the official package. All failures are `McpFault`.

HTTP connections follow the host rules for media (`server.media.hosts`), and the size of each reply is limited.
"""

import asyncio
import base64
import binascii
import contextlib
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Self, TextIO

import anyio
import httpcore2
import httpx2
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp import Client, MCPError, StdioServerParameters
from mcp.client._transport import ReadStream, Transport, TransportStreams
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, CallToolResult, ContentBlock, ErrorData
from mcp_types.jsonrpc import JSONRPCError, JSONRPCResponse
from pydantic_core import to_json

from server.errors import short
from server.mcp.config import McpServer
from server.mcp.servers import Json, McpFault, McpResult, McpTool
from server.media.fetch import CheckedBackend
from server.media.header import Unreadable
from server.media.hosts import AllowedHosts, resolved
from server.media.source import Media
from server.sandbox.process import public_environment

logger = logging.getLogger(__name__)
MAX_TOOLS = 1024
MAX_LIST_PAGES = 100
MAX_IMAGES = 16
_LOG_CHARS = 4096
CLOSE_S = 10.0
"""Seconds that a server has to end a session."""
MAX_REPLY_BYTES = 16 << 20
"""Limit of a JSON reply. The MCP package limits events of streams."""
MAX_VALUES = 20_000
"""Limit of the JSON values in a message, except in `_UNTYPED`. The package validates them on the event loop: 100,000
items of a wrong type take 2 seconds and 300 MB."""
_UNTYPED = frozenset(("_meta", "inputSchema", "structuredContent"))
_TIMEOUT = httpx2.Timeout(30.0, read=600.0)
_EVENTS = b"text/event-stream"
logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs tracebacks for errors that calls raise


@dataclass(slots=True)
class _Use:
    """The last HTTP reply to one use of a connection, in whose context the package sends requests."""

    status: int = 0  # of a refusal without a JSON-RPC error, whose status the package would hide
    is_session_ended: bool = False  # whether it was a 404 for the session


_use: ContextVar[_Use] = ContextVar("_use")


class Connection:
    """A session that its own task opens and closes, as the package requires.

    Any task of the event loop may call it. A cancelled call is cancelled at the server. `McpServers` counts its calls
    in ``n_calls``, and closes it with the timer ``idle``.
    """

    def __init__(self, server: McpServer, sites: AllowedHosts | None) -> None:
        self._server, self._sites = server, sites
        self.n_calls = 0
        self.idle: asyncio.TimerHandle | None = None
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._incoming: MemoryObjectReceiveStream[Any] | None = None  # messages of a program
        self.session_ended = False  # by the server
        self._scope = anyio.CancelScope()
        self._task = asyncio.create_task(self._run(), name=f"MCP server {server.label}")

    @property
    def is_alive(self) -> bool:
        """Whether calls are possible, now or once it is open."""
        has_ended = self._incoming is not None and not self._incoming.statistics().open_send_streams
        return not (self._task.done() or has_ended or self.session_ended or self._closing.is_set())

    @property
    def was_open(self) -> bool:
        """Whether the handshake succeeded once."""
        return self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None

    async def tools(self) -> tuple[McpTool, ...]:
        """Return all tools of the server. Raises `McpFault`."""
        with _faults():
            client = await asyncio.shield(self._ready)
            found: list[McpTool] = []
            cursor = None
            for _ in range(MAX_LIST_PAGES):
                page = await client.list_tools(cursor=cursor)
                for tool in page.tools:
                    notes = tool.annotations
                    annotations = None if notes is None else _plain(notes.model_dump(mode="json", by_alias=True))
                    found.append(McpTool(tool.name, tool.description or "", _plain(tool.input_schema), annotations))
                cursor = page.next_cursor
                if cursor is None or len(found) > MAX_TOOLS:
                    break
        if cursor is not None or len(found) > MAX_TOOLS:
            raise McpFault(f"the server lists more than {MAX_TOOLS} tools")
        return tuple(found)

    async def call(self, tool: str, arguments: Json, max_chars: int) -> McpResult:
        """Return a tool's result, with its text truncated to `max_chars`. Raises `McpFault`."""
        with _faults():
            client = await asyncio.shield(self._ready)
            return _result(await client.call_tool(tool, arguments), max_chars)

    async def close(self) -> None:
        """End the session and wait until its program has exited."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self.session_ended and self.n_calls:  # noqa: ASYNC110 (calls may be repeated after a 404)
                    await asyncio.sleep(0.05)
        self._closing.set()
        limit_s = CLOSE_S if self._ready.done() else 0.0  # a server that has not replied may never do
        self._scope.deadline = anyio.current_time() + limit_s
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        use = _Use()
        _use.set(use)
        try:
            with self._scope:
                async with AsyncExitStack() as stack:
                    client = Client(_checked(await self._transport(stack)), cache=None, client_info=None)
                    self._ready.set_result(await stack.enter_async_context(client))
                    await self._closing.wait()
        except Exception as error:  # noqa: BLE001 (from the package, its transport or the MCP server)
            if not self._ready.done():
                self._ready.set_exception(_fault_of(error, use.status))
            else:
                logger.warning("MCP server %s: the connection ended: %s", self._server.label, _fault_of(error).message)
        finally:
            if not self._ready.done():
                self._ready.set_exception(McpFault("the connection was closed before it was open", "http"))
            self._ready.exception()  # the caller may have been cancelled

    async def _transport(self, stack: AsyncExitStack) -> Transport:
        """Return the transport to the server. `stack` closes its resources."""
        server = self._server
        if server.url:
            client = await stack.enter_async_context(http_client(server.headers, self._sites))
            client.event_hooks["response"].append(self._watch)
            return streamable_http_client(server.url, http_client=client)
        program = StdioServerParameters(
            command=server.command,
            args=list(server.args),
            env={**public_environment(), **dict(server.env)},
            cwd=server.cwd,
            encoding_error_handler="replace",
        )
        return self._program(program, stack.enter_context(_logged(server.label)))

    async def _watch(self, reply: httpx2.Response) -> None:
        """Record refusals. After one that ends the session, the next use opens a new one (revision 2025-11-25)."""
        if reply.request.method != "POST":
            return
        use, use.status = (_use.get(None) or _Use()), 0
        if reply.status_code == 404 and MCP_SESSION_ID in reply.request.headers:
            self.session_ended = use.is_session_ended = True
        if reply.status_code >= 400:
            is_json = reply.headers.get("content-type", "").startswith("application/json")
            has_reason = is_json and b'"jsonrpc"' in await reply.aread()
            use.status = 0 if has_reason else reply.status_code

    @asynccontextmanager
    async def _program(self, program: StdioServerParameters, errors: TextIO) -> AsyncGenerator[TransportStreams, None]:
        async with stdio_client(program, errlog=errors) as (incoming, outgoing):
            assert isinstance(incoming, MemoryObjectReceiveStream)
            self._incoming = incoming
            yield incoming, outgoing


@asynccontextmanager
async def _checked(transport: Transport) -> AsyncGenerator[TransportStreams, None]:
    async with transport as (incoming, outgoing):
        yield _CheckedStream(incoming), outgoing


class _CheckedStream:
    """The messages of a server, with an error in place of each that has more than `MAX_VALUES` values."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception]) -> None:
        self._stream = stream

    async def receive(self) -> SessionMessage | Exception:
        return _checked_message(await self._stream.receive())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return _checked_message(await anext(self._stream))

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _checked_message(item: SessionMessage | Exception) -> SessionMessage | Exception:
    """Return the message without output schemas, or an error.

    The package would validate results against output schemas on the event loop, which a pattern can block for ever.
    """
    if isinstance(item, Exception) or isinstance(item.message, JSONRPCError):
        return item
    message, n = item.message, 0
    left: list[Any] = [message.result if isinstance(message, JSONRPCResponse) else message.params]
    while left and n <= MAX_VALUES:
        value = left.pop()
        if isinstance(value, dict):
            value.pop("outputSchema", None)
            value = [member for name, member in value.items() if name not in _UNTYPED]
        if isinstance(value, list):
            n += len(value)
            left += value
    if n <= MAX_VALUES:
        return item
    reason = f"the MCP server's message has more than {MAX_VALUES} values"
    if not isinstance(message, JSONRPCResponse):
        return ValueError(reason)
    return SessionMessage(
        JSONRPCError(jsonrpc="2.0", id=message.id, error=ErrorData(code=INVALID_REQUEST, message=reason))
    )


@contextlib.contextmanager
def _logged(label: str) -> Iterator[TextIO]:
    """Yield a file for a program's standard error. Its lines are logged."""
    loop = asyncio.get_running_loop()
    read_end, write_end = os.pipe()
    with open(read_end, "rb", buffering=0) as source, open(write_end, "w", encoding="utf-8") as file:

        def log() -> bool:
            text = source.read(_LOG_CHARS) or b""
            for line in text.decode("utf-8", "replace").splitlines():
                logger.debug("MCP server %s: %s", label, line)
            return bool(text)

        os.set_blocking(read_end, False)  # a child of the program may keep the write end open
        loop.add_reader(read_end, log)
        try:
            yield file
        finally:
            loop.remove_reader(read_end)
            while log():  # its last lines
                pass


@contextlib.contextmanager
def _faults() -> Iterator[None]:
    use = _Use()
    _use.set(use)
    try:
        yield
    except McpFault:
        raise
    except Exception as error:  # noqa: BLE001 (any failure of the MCP server)
        fault = _fault_of(error, use.status)
        fault.is_session_ended = use.is_session_ended
        raise fault from None


def _fault_of(error: BaseException, status: int = 0) -> McpFault:
    """Convert an exception to a fault. For a group, use the first exception with a message. `status`: see `_Use`."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, McpFault):
        return error
    if isinstance(error, MCPError):
        if status:
            return McpFault(f"HTTP status {status}", "http", status)
        kind: Literal["http", "protocol"] = "http" if error.code == CONNECTION_CLOSED else "protocol"
        return McpFault(short(error.message) or "an error without a message", kind, error.code)
    if isinstance(error, httpx2.HTTPError | OSError):
        return McpFault(short(str(error)) or type(error).__name__, "http")
    return McpFault(f"{type(error).__name__}: {short(str(error))}")


def _plain(value: Json) -> Any:
    """Return `value` as if from a request's body: an integer above 64 bits, which orjson can't write, is a float."""
    return orjson.loads(to_json(value, inf_nan_mode="null"))


def _result(reply: CallToolResult, max_chars: int) -> McpResult:
    texts: list[str] = []
    images: list[Media] = []
    for block in reply.content:
        image = _image(block)
        if image is not None and len(images) < MAX_IMAGES:
            images.append(image)
        else:
            texts.append(_text(block))
    if not reply.content and reply.structured_content is not None:
        texts.append(to_json(reply.structured_content, inf_nan_mode="null").decode())
    text = "\n".join(texts)
    if len(text) > max_chars:
        text = f"{text[:max_chars]}\n[cut off: {len(text) - max_chars} more characters]"
    return McpResult(text, tuple(images), bool(reply.is_error))


def _text(block: ContentBlock) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource_link":
        return f"[{block.name}: {block.uri}]"
    if block.type == "resource" and isinstance(text := getattr(block.resource, "text", None), str):
        return text
    return f"[{block.type}: not shown]"


def _image(block: ContentBlock) -> Media | None:
    if block.type != "image":
        return None
    try:
        data = base64.b64decode(block.data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return Media("image", re.sub(r"[^\w./+-]", "", block.mime_type)[:40], source=data)


def http_client(headers: Iterable[tuple[str, str]], sites: AllowedHosts | None) -> httpx2.AsyncClient:
    """Return a client for one MCP server.

    `sites` limits the hosts that it may connect to. None, for a URL of the operator, means no limit. Only then it uses
    the environment's proxies.
    """
    transport = None if sites is None else CheckedTransport(sites)
    return httpx2.AsyncClient(
        headers=[*headers, ("Accept-Encoding", "identity")],
        timeout=_TIMEOUT,
        transport=transport,
        trust_env=sites is None,
        event_hooks={"response": [_bound]},
    )


async def _bound(reply: httpx2.Response) -> None:
    """Limit the bytes of a reply. Reject compressed replies, which may expand a thousandfold."""
    if reply.headers.get("content-encoding", "identity").lower() != "identity":
        raise httpx2.DecodingError("the MCP server's reply is compressed", request=reply.request)
    if not reply.headers.get("content-type", "").encode().startswith(_EVENTS):
        assert isinstance(reply.stream, httpx2.AsyncByteStream)
        reply.stream = _Bounded(reply.stream)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        n_bytes = 0
        async for part in self._stream:
            n_bytes += len(part)
            if n_bytes > MAX_REPLY_BYTES:
                raise httpx2.ReadError(f"the MCP server's reply has more than {MAX_REPLY_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


class CheckedTransport(httpx2.AsyncHTTPTransport):
    """Connects only to hosts that `sites` allows, and to the same IP address that was checked."""

    def __init__(self, sites: AllowedHosts) -> None:
        context = httpx2.create_ssl_context(trust_env=False)
        super().__init__(verify=context)
        self._sites = sites
        self._pool = httpcore2.AsyncConnectionPool(ssl_context=context, network_backend=CheckedBackend(sites, resolved))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises `httpx2.TransportError`."""
        host = request.url.host
        if not self._sites.allow(host):
            raise httpx2.ConnectError(f"{host} is not among the hosts that this server allows", request=request)
        try:
            return await super().handle_async_request(request)
        except Unreadable as refused:
            raise httpx2.ConnectError(str(refused), request=request) from None
        except httpx2.TransportError as error:
            raise httpx2.ConnectError(f"can't be reached: {type(error).__name__}", request=request) from error
