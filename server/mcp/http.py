"""HTTP to MCP servers, with the address rules of media fetching (`server.media.fetch`) and a bound on each reply."""

from collections.abc import AsyncIterator, Iterable

import httpcore2
import httpx2

from server.media.fetch import AllowedHosts, CheckedBackend, Resolve, checked_address, resolved
from server.media.header import Unreadable

MAX_REPLY_BYTES = 16 << 20
"""Of one JSON reply. Events of a stream have the MCP package's own bound."""
_TIMEOUT = httpx2.Timeout(30.0, read=600.0)
_EVENTS = b"text/event-stream"


def http_client(headers: Iterable[tuple[str, str]], sites: AllowedHosts | None) -> httpx2.AsyncClient:
    """Return a client for one MCP server.

    `sites` limits the hosts that it may connect to; None = no limit, for an operator's URL. It ignores the
    environment's proxies unless the URL is the operator's.
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
    """Bound a reply's bytes. Compressed replies are refused: they could become a thousand times as much."""
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
    """Connects to hosts that `sites` allows, and to the very address that was checked."""

    def __init__(self, sites: AllowedHosts, resolve: Resolve = resolved) -> None:
        context = httpx2.create_ssl_context(trust_env=False)
        super().__init__(verify=context)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context, network_backend=_checked_backend(sites, resolve)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Raises `httpx2.TransportError`."""
        try:
            return await super().handle_async_request(request)
        except Unreadable as refused:
            raise httpx2.ConnectError(str(refused), request=request) from None
        except httpx2.TransportError as error:
            raise httpx2.ConnectError(f"can't be reached: {type(error).__name__}", request=request) from error


def _checked_backend(sites: AllowedHosts, resolve: Resolve) -> CheckedBackend:
    async def address_of(host: str, port: int) -> str:
        if not sites.allow(host):
            raise Unreadable(f"{host} is not among the hosts that this server allows")
        return await checked_address(host, port, sites, resolve)

    return CheckedBackend(address_of)
