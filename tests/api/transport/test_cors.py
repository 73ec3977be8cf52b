"""CORS headers, and ``--ui-mcp-proxy``: the headers and bodies that /cors-proxy forwards in both directions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.types import Message

from tests.api.conftest import Serve
from tests.api.streams import scope_of

ORIGIN = {"Origin": "http://x.y"}


async def test_preflight_needs_no_key(serve: Serve) -> None:
    async with serve(server={"api_keys": ["secret"]}) as api:
        for path in ("/v1/chat/completions", "/", "/nope"):
            reply = await api.client.options(path, headers=ORIGIN)
            assert (reply.status_code, reply.content) == (200, b"")
            assert reply.headers["content-type"].startswith("text/html")
            assert reply.headers["access-control-allow-origin"] == "http://x.y"
            assert reply.headers["access-control-allow-credentials"] == "true"
            assert reply.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
            assert reply.headers["access-control-allow-headers"] == "*"
            reply = await api.client.get(path, headers=ORIGIN)  # some of these are errors
            assert reply.headers["access-control-allow-origin"] == "http://x.y"


async def test_only_configured_origins_get_cors_headers(serve: Serve) -> None:
    async with serve(server={"cors_origins": "https://a.example"}) as api:
        assert "access-control-allow-origin" not in (await api.client.get("/health", headers=ORIGIN)).headers
        reply = await api.client.get("/health", headers={"Origin": "https://a.example"})
        assert reply.headers["access-control-allow-origin"] == "https://a.example"


async def test_listed_localhost_allows_local_pages(serve: Serve) -> None:
    async with serve(server={"cors_origins": "localhost,https://a.example"}) as api:
        for origin, is_allowed in (("http://[::1]:3000", True), ("https://a.example", True), ("http://x.y", False)):
            reply = await api.client.get("/health", headers={"Origin": origin})
            assert (reply.headers.get("access-control-allow-origin") == origin) is is_allowed


PROXY_ON = {"ui_mcp_proxy": True}
HTML_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def target(reply: bytes = HTML_REPLY) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a server that sends `reply` to every request. Yields its URL and the raw requests that it received."""
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        requests.append(head + await reader.readexactly(length))
        writer.write(reply)
        await writer.drain()
        writer.close()
        with suppress(OSError):  # reset by the client
            await writer.wait_closed()
        answered.release()

    answered = asyncio.Semaphore(0)
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
        for _ in requests:
            await answered.acquire()


async def test_proxy_forwards_only_prefixed_headers_and_sandboxes_the_reply(serve: Serve) -> None:
    headers = {
        "Authorization": "Bearer secret",
        "Cookie": "session=secret",
        "x-llama-server-proxy-header-accept": "application/json",
        "x-llama-server-proxy-header-authorization": "Bearer explicit",
        "x-llama-server-proxy-header-host": "elsewhere",
    }
    async with target() as (url, requests), serve(server={**PROXY_ON, "api_keys": ["secret"]}) as api:
        reply = await api.client.get(f"/cors-proxy?url={url}/x%3Fa=b", headers=headers)
    assert (reply.status_code, reply.text) == (200, "ok")
    head = requests[0].decode().lower()
    assert head.startswith("get /x?a=b http/1.1")
    assert "authorization: bearer explicit" in head
    assert f"host: {url[7:]}" in head
    assert "secret" not in head
    assert "elsewhere" not in head
    assert reply.headers["content-security-policy"].startswith("sandbox")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("kind", ["application/json", "text/plain;charset=UTF-8"])
@pytest.mark.parametrize("prefixed", [{"x-llama-server-proxy-header-content-type": "application/json"}, {}])
async def test_proxy_forwards_a_json_body_and_an_empty_reply(serve: Serve, kind: str, prefixed: dict[str, str]) -> None:
    """llama.cpp's web UI sends the JSON type to MCP servers in a prefixed header. The browser adds its own type."""
    no_content = b"HTTP/1.1 204 No Content\r\nMcp-Session-Id: 7\r\n\r\n"
    async with target(no_content) as (url, requests), serve(server=PROXY_ON) as api:
        headers = {"content-type": kind, **prefixed}
        reply = await api.client.post(f"/cors-proxy?url={url}/mcp", content=b'{"id": 1}', headers=headers)
    if kind != "application/json" and not prefixed:
        assert (reply.status_code, requests) == (415, [])
        return
    assert (reply.status_code, reply.content, reply.headers["mcp-session-id"]) == (204, b"", "7")
    (request,) = requests
    assert request.endswith(b'{"id": 1}')
    assert request.lower().count(b"content-type: application/json") == len(prefixed)


async def test_disconnect_ends_the_proxied_request(serve: Serve) -> None:
    received, closed = asyncio.Event(), asyncio.Event()
    unread = [{"type": "http.request"}]

    async def wait_for_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        received.set()
        await reader.read()
        closed.set()
        writer.close()

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await received.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    server = await asyncio.start_server(wait_for_close, "127.0.0.1", 0)
    async with server, serve(server=PROXY_ON) as api, asyncio.timeout(20):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        query = f"url={url}".encode()
        await api.app(scope_of("http", "/cors-proxy", {}, method="GET", query_string=query), receive, send)
        await closed.wait()
