"""Where a request ends: whatever a proxy in front could see otherwise is refused, and its connection closed, so that
nobody's bytes are taken for the next request (request smuggling, RFC 9112 sections 6 and 11.2)."""

import json

import pytest

from tests.api.conftest import GoLive, Live

pytestmark = pytest.mark.slow

BODY = json.dumps({"prompt": "Hi", "n_predict": 1}).encode()
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
NEXT = b"GET /nowhere HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"


async def statuses(server: Live, head: bytes, body: bytes) -> list[int]:
    """Of all replies on a connection that says this and another request, until the server closes it."""
    said = await server.exchange(b"POST /completion HTTP/1.1\r\nHost: test\r\n" + head + b"\r\n" + body + NEXT)
    return [int(part.split(b" ", 1)[0]) for part in said.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    ("head", "body"),
    [
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
    ],
)
async def test_a_length_that_may_be_read_in_two_ways_ends_the_connection(
    live: GoLive, head: bytes, body: bytes
) -> None:
    async with live() as server:
        found = await statuses(server, head, body)
    assert len(found) == 1
    assert found[0] in (400, 413)


@pytest.mark.parametrize(
    ("head", "body"),
    [(b"Content-Length: %d\r\n" % len(BODY), BODY), (b"Transfer-Encoding: Chunked\r\n", CHUNKS)],
)
async def test_what_can_be_read_in_one_way_is_followed_by_the_next_request(
    live: GoLive, head: bytes, body: bytes
) -> None:
    async with live() as server:
        assert await statuses(server, head, body) == [200, 404]
