"""The proxy for the MCP clients of web UIs: llama-server's ``--ui-mcp-proxy`` (tools/server/server-cors-proxy.h). Off
by default, because clients reach every host through it that this machine can reach.

Only headers with a prefix are forwarded, without the prefix, so no key or cookie of this server leaks. Browsers do not
sniff the type of a reply or run its scripts, so it cannot act as a page of this server.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import httpcore2
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from server.errors import InvalidRequest, Unavailable
from server.transport.options import FORWARD_PREFIX

TIMEOUT_S = 600.0
_NOT_FORWARDED = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"accept-encoding"})
_REPLY_HEADERS = frozenset({b"content-type", b"mcp-session-id", b"www-authenticate", b"cache-control"})
_SANDBOX = {"Content-Security-Policy": "sandbox; default-src 'none'", "X-Content-Type-Options": "nosniff"}
_TIMEOUTS = dict.fromkeys(("connect", "read", "write", "pool"), TIMEOUT_S)


async def forward(request: Request, url: str, body: bytes) -> Response:
    """Return the reply of `url` to the same method and `body`. Raises `InvalidRequest`, `Unavailable`."""
    target, host = _target(url)
    headers = [(b"Host", host), (b"Accept-Encoding", b"identity")]
    for name, value in request.headers.raw:
        forwarded = name.removeprefix(FORWARD_PREFIX)
        if forwarded != name and forwarded and forwarded not in _NOT_FORWARDED:
            headers.append((forwarded, value))
    async with AsyncExitStack() as stack:
        try:
            pool = await stack.enter_async_context(httpcore2.AsyncConnectionPool())
            reply = await stack.enter_async_context(
                pool.stream(request.method, target, headers=headers, content=body, extensions={"timeout": _TIMEOUTS})
            )
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as error:
            raise Unavailable(f"{host.decode('latin-1')} can't be reached: {type(error).__name__}") from None
        sent = [pair for pair in reply.headers if pair[0].lower() in _REPLY_HEADERS]
        reply_headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent} | _SANDBOX
        if reply.status in (204, 304):
            return Response(status_code=reply.status, headers=reply_headers)
        parts = _parts(reply, stack.pop_all())
        return StreamingResponse(parts, status_code=reply.status, headers=reply_headers)


async def _parts(reply: httpcore2.Response, stack: AsyncExitStack) -> AsyncGenerator[bytes, None]:
    async with stack:
        async for part in reply.aiter_stream():
            yield part


def _target(url: str) -> tuple[httpcore2.URL, bytes]:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna"), parts.port
    except (ValueError, UnicodeError):
        raise InvalidRequest("url: is not a URL", "url") from None
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.password:
        raise InvalidRequest("url: must be an http or https URL with a host and without a password", "url")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or any(c <= " " for c in path):
        raise InvalidRequest("url: has characters that must be escaped", "url")
    host_header = (b"[%b]" % host if b":" in host else host) + (b":%d" % port if port else b"")
    return httpcore2.URL(scheme=parts.scheme.encode(), host=host, port=port, target=path.encode()), host_header
