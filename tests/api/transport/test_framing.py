"""Request framing: ambiguous lengths and upgrades are refused and the connection is closed.

Otherwise a proxy and the server may disagree where a request ends (request smuggling, RFC 9112 sections 6 and 11.2).
"""

import contextlib
import json
import threading
from typing import Any

import pytest

from server.transport.server import MAX_WAITING, without_h2c
from tests.api.conftest import GoLive, Live, chat_request, until
from tests.support.fakes import FakeLoader

pytestmark = pytest.mark.slow

BODY = json.dumps({"prompt": "Hi", "n_predict": 1}).encode()
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
NEXT = b"GET /nowhere HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"


async def statuses(server: Live, head: bytes, body: bytes) -> list[int]:
    """Send a request and another one on the same connection. Returns the statuses of all replies until it closes."""
    raw = await server.exchange(b"POST /completion HTTP/1.1\r\nHost: test\r\n" + head + b"\r\n" + body + NEXT)
    return [int(part.split(b" ", 1)[0]) for part in raw.split(b"HTTP/1.1 ")[1:]]


AMBIGUOUS = [
    (b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % len(CHUNKS), CHUNKS),
    (b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", CHUNKS),
    (b"Content-Length: 5\r\nContent-Length: %d\r\n" % len(BODY), BODY),
    (b"Content-Length: 5, %d\r\n" % len(BODY), BODY),
    (b"Content-Length: +%d\r\n" % len(BODY), BODY),
    (b"Content-Length: -1\r\n", BODY),
    (b"Content-Length: 0x10\r\n", BODY),
    (b"Content-Length: 99999999999999999999\r\n", BODY),
    (b"Content-Length : %d\r\n" % len(BODY), BODY),
    (b"Transfer-Encoding : chunked\r\n", CHUNKS),
    (b"Transfer-Encoding: xchunked\r\n", CHUNKS),
    (b"Transfer-Encoding: chunked, identity\r\n", CHUNKS),
    (b"Transfer-Encoding: chunked, chunked\r\n", CHUNKS),
    (b"Transfer-Encoding: chunked\x0b\r\n", CHUNKS),
    (b"X: a\r\n Transfer-Encoding: chunked\r\n", CHUNKS),
    (b"X: a\nContent-Length: %d\r\n" % len(BODY), BODY),
    (b"X: a\x00b\r\nContent-Length: %d\r\n" % len(BODY), BODY),
    (b"Transfer-Encoding: chunked\r\n", CHUNKS.replace(b"\r\n", b"\n")),
    (b"Transfer-Encoding: chunked\r\n", b"ffffffffffffffffff\r\n" + BODY),
    (b"Transfer-Encoding: chunked\r\n", b"%x\r\n%bxx0\r\n\r\n" % (len(BODY), BODY)),
    (b"Transfer-Encoding: chunked\r\n", b'%x;a="\r\n"\r\n' % len(BODY) + BODY + b"\r\n0\r\n\r\n"),
]


async def test_ambiguous_length_is_refused_and_closes_the_connection(live: GoLive) -> None:
    """After an unambiguous length the next request on the connection is answered."""
    async with live() as server:
        for head, body in AMBIGUOUS:
            assert await statuses(server, head, body) in ([400], [413]), (head, body)
        assert await statuses(server, b"Content-Length: %d\r\n" % len(BODY), BODY) == [200, 404]
        assert await statuses(server, b"Transfer-Encoding: Chunked\r\n", CHUNKS) == [200, 404]


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
TOKENIZE = b'{"content": "hi"}'


@pytest.mark.parametrize("offer", [OFFER, OFFER.replace(b"Upgrade: h2c\r\n", b"") + b"upgrade:h2c \r\n"])
@pytest.mark.parametrize("separate", [False, True])
async def test_h2c_upgrade_is_ignored(live: GoLive, offer: bytes, separate: bool) -> None:
    """Java's HttpClient offers it with the first request on each plain HTTP connection, even with a POST."""
    async with live() as server:
        head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + offer + b"Content-Length: %d\r\n\r\n" % len(TOKENIZE)
        reader, writer = await server.connect(head if separate else head + TOKENIZE)
        if separate:
            await until(lambda: server.server.server_state.tasks)
            writer.write(TOKENIZE)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await reader.readuntil(b"]}")
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\n\r\n\r\nUpgrade: h2c\r\n",
        b"GET / HTTP/1.1\r\nUpgrade: h2c\r\n continued\r\n\r\n",
        b"GET / HTTP/1.1\r\nUpgrade: h2c",
        b"GET / HTTP/1.1\r\nUpgrade: websocket, h2c\r\n\r\n",
        b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
    ],
)
def test_only_an_h2c_upgrade_header_is_removed(data: bytes) -> None:
    assert without_h2c(data) == data


HANDSHAKE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n" + HANDSHAKE + b"\r\n{}",
        b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nCookie: " + b"x" * 9000 + b"\r\n" + HANDSHAKE + b"\r\n",
        b"GET /v1/responses HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200 + HANDSHAKE + b"\r\n",
        b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
)
async def test_invalid_websocket_handshake_is_refused(live: GoLive, request_: bytes) -> None:
    """uvicorn alone leaves such connections open without a reply, and its shutdown fails."""
    async with live(server={"max_connections": 3, "api_keys": ["secret"]}) as server:
        for _ in range(4):
            reader, writer = await server.connect(request_[:9])  # the protocol receives the head in two parts
            await until(lambda: server.server.server_state.connections)
            writer.write(request_[9:])
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            writer.close()
        assert (await server.api.client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "upgrade",
    [
        b"Connection: Upgrade\r\nUpgrade: foo\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nConnection: keep-alive\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n",
    ],
)
async def test_body_of_an_ignored_upgrade_is_not_parsed_as_a_request(live: GoLive, upgrade: bytes) -> None:
    """httptools skips the body of a request with an upgrade, so it parsed a later packet of the body as a request."""
    async with live() as server:
        head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(NEXT)
        reader, writer = await server.connect(head + upgrade + b"\r\n")
        assert b"connection: close" in await reader.readuntil(b"\r\n\r\n")
        rest = b""
        with contextlib.suppress(ConnectionError):
            writer.write(NEXT)
            rest = await reader.read()
        assert b"HTTP/1.1 " not in rest


async def test_websocket_handshake_during_another_request_closes_the_connection(live: GoLive) -> None:
    """uvicorn alone answers it immediately, and then misses a disconnect during the first request."""
    async with live() as server:
        first = b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)
        handshake = b"GET /v1/responses HTTP/1.1\r\nHost: x\r\n" + HANDSHAKE + b"\r\n"
        assert await server.exchange(first + BODY + handshake) == b""


async def test_websocket_handshake_in_http_1_0_is_accepted(live: GoLive) -> None:
    """Old proxies that pass the headers of a handshake send HTTP/1.0."""
    async with live() as server:
        reader, writer = await server.connect(b"GET /v1/responses HTTP/1.0\r\nHost: x\r\n" + HANDSHAKE + b"\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.close()


UPLOAD = b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n"
PIPELINED = {
    "one segment": [],
    "one": [NEXT],
    "three": [b"GET /nowhere HTTP/1.1\r\nHost: test\r\n\r\n"] * 3,
    "a body": [UPLOAD + b"x" * 70_000],
    "a body in two parts": [UPLOAD, b"x" * 70_000],
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("pipelined", PIPELINED)
async def test_disconnect_ends_the_running_request_of_a_pipeline(live: GoLive, pipelined: str, stream: bool) -> None:
    """uvicorn alone reports a disconnect only to the last request, and reads nothing until the reply is complete."""
    steps = threading.Semaphore(0)
    async with live(FakeLoader(steps=steps)) as server:
        _, writer = await server.connect(chat_request(stream=stream) + (b"" if PIPELINED[pipelined] else NEXT))
        loaded = server.api.loaded()
        await until(lambda: loaded.busy)
        connection: Any = next(iter(server.server.server_state.connections))
        for part in PIPELINED[pipelined]:
            before = connection.cycle, len(connection.cycle.body)
            writer.write(part)
            await until(lambda: (connection.cycle, len(connection.cycle.body)) != before)  # noqa: B023
        writer.close()
        await until(lambda: not server.server.server_state.tasks)
        steps.release(1000)


@pytest.mark.parametrize("pipelined", [b"GET / HTTP/1.1\r\n\r\n" * (MAX_WAITING + 1), UPLOAD + b"x" * 2_000_000])
async def test_pipelined_requests_and_their_bytes_are_limited(live: GoLive, pipelined: bytes) -> None:
    steps = threading.Semaphore(0)
    reply = b""
    async with live(FakeLoader(steps=steps)) as server:
        with contextlib.suppress(ConnectionError):
            reply = await server.exchange(chat_request(stream=False) + pipelined)
        assert reply == b""
        await until(lambda: not server.server.server_state.tasks)
        steps.release(1000)


async def test_http_1_0_connection_is_kept_if_the_client_asks(live: GoLive) -> None:
    """A reply of unknown length ends with the connection and has no chunks, which HTTP/1.0 does not know."""
    keep = b"\r\nConnection: Keep-Alive\r\n"
    one = chat_request(stream=False).replace(b" HTTP/1.1\r\n", b" HTTP/1.0" + keep)
    async with live() as server:
        stream = chat_request(stream=True).replace(b" HTTP/1.1\r\n", b" HTTP/1.0" + keep)
        kept, again, streamed = (await server.exchange(one + one + stream)).split(b"HTTP/1.1 200 OK\r\n")[1:]
        head, _, events = streamed.partition(b"\r\n\r\n")
        assert b"\r\nconnection: keep-alive\r\n" in kept
        assert b"\r\nconnection: keep-alive\r\n" in again
        assert b"\r\nconnection: close" in head
        assert b"chunked" not in head
        assert events.startswith(b"data: ")
        assert events.endswith(b"data: [DONE]\n\n")
        closed = await server.exchange(one.replace(keep, b"\r\n"))
        assert closed.count(b"HTTP/1.1 200 ") == 1
        assert b"\r\nconnection: close\r\n" in closed
