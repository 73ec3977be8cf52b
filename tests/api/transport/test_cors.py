"""CORS headers, and ``--ui-mcp-proxy``: what goes on to the other server, what comes back, and for whom."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.types import Message

from tests.api.conftest import Serve
from tests.api.streams import scope_of

ORIGIN = {"Origin": "http://x.y"}


async def test_a_preflight_is_answered_without_a_key(serve: Serve) -> None:
    async with serve(server={"api_keys": ["secret"]}) as api:
        for path in ("/v1/chat/completions", "/", "/nope"):
            reply = await api.client.options(path, headers=ORIGIN)
            assert (reply.status_code, reply.content) == (200, b"")
            assert reply.headers["content-type"].startswith("text/html")
            assert reply.headers["access-control-allow-origin"] == "http://x.y"
            assert reply.headers["access-control-allow-credentials"] == "true"
            assert reply.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
            assert reply.headers["access-control-allow-headers"] == "*"
            reply = await api.client.get(path, headers=ORIGIN)  # also an error
            assert reply.headers["access-control-allow-origin"] == "http://x.y"


async def test_only_configured_origins_get_them(serve: Serve) -> None:
    async with serve(server={"cors_origins": "https://a.example"}) as api:
        assert "access-control-allow-origin" not in (await api.client.get("/health", headers=ORIGIN)).headers
        reply = await api.client.get("/health", headers={"Origin": "https://a.example"})
        assert reply.headers["access-control-allow-origin"] == "https://a.example"


ON = {"ui_mcp_proxy": True}
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def target(reply: bytes = PAGE) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that says `reply` to everything; its address, and the requests that came."""
    came: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        came.append(head + await reader.readexactly(length))
        writer.write(reply)
        await writer.drain()
        writer.close()
        with suppress(OSError):  # reset by a client that has read enough
            await writer.wait_closed()
        answered.release()

    answered = asyncio.Semaphore(0)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", came
        for _ in came:
            await answered.acquire()


async def test_only_headers_with_the_prefix_go_on_and_the_reply_cannot_act_as_a_page_of_this_server(
    serve: Serve,
) -> None:
    headers = {
        "Authorization": "Bearer secret",
        "Cookie": "session=secret",
        "x-llama-server-proxy-header-accept": "application/json",
        "x-llama-server-proxy-header-authorization": "Bearer explicit",
        "x-llama-server-proxy-header-host": "elsewhere",
    }
    async with target() as (url, came), serve(server={**ON, "api_keys": ["secret"]}) as api:
        reply = await api.client.get(f"/cors-proxy?url={url}/x%3Fa=b", headers=headers)
    assert (reply.status_code, reply.text) == (200, "ok")
    head = came[0].decode().lower()
    assert head.startswith("get /x?a=b http/1.1")
    assert "authorization: bearer explicit" in head
    assert f"host: {url[7:]}" in head
    assert "secret" not in head
    assert "elsewhere" not in head
    assert reply.headers["content-security-policy"].startswith("sandbox")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("kind", ["application/json", "text/plain;charset=UTF-8"])
@pytest.mark.parametrize("named", [{"x-llama-server-proxy-header-content-type": "application/json"}, {}])
async def test_a_body_goes_on_and_no_content_comes_back(serve: Serve, kind: str, named: dict[str, str]) -> None:
    """Also one whose type is behind the prefix, as llama.cpp's page asks MCP servers: its own type is what browsers put
    there for a text."""
    nothing = b"HTTP/1.1 204 No Content\r\nMcp-Session-Id: 7\r\n\r\n"
    async with target(nothing) as (url, came), serve(server=ON) as api:
        headers = {"content-type": kind, **named}
        reply = await api.client.post(f"/cors-proxy?url={url}/mcp", content=b'{"id": 1}', headers=headers)
    if kind != "application/json" and not named:
        assert (reply.status_code, came) == (415, [])
        return
    assert (reply.status_code, reply.content, reply.headers["mcp-session-id"]) == (204, b"", "7")
    (request,) = came
    assert request.endswith(b'{"id": 1}')
    assert request.lower().count(b"content-type: application/json") == len(named)


async def test_a_client_that_leaves_ends_the_request_to_a_server_that_is_silent(serve: Serve) -> None:
    came, gone = asyncio.Event(), asyncio.Event()
    unread = [{"type": "http.request"}]

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.set()
        await reader.read()
        gone.set()
        writer.close()

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await came.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with server, serve(server=ON) as api, asyncio.timeout(20):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        query = f"url={url}".encode()
        await api.app(scope_of("http", "/cors-proxy", {}, method="GET", query_string=query), receive, send)
        await gone.wait()
