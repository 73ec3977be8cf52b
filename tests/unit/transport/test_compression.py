import asyncio
import gzip
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from server.transport.middleware import MIN_BYTES, Compression, wants_gzip
from server.transport.sse import EventStream


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("gzip", True),
        ("deflate, gzip, br", True),
        ("GZIP;q=0.5", True),
        ("br;q=1, gzip;q=0.001", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("*", False),
        ("identity", False),
        ("x-gzip-like", False),
        ("", False),
    ],
)
def test_gzip_is_asked_for_by_name_and_weight(value: str, wanted: bool) -> None:
    assert wants_gzip([(b"accept-encoding", value.encode())]) is wanted


def test_several_headers_are_one_list() -> None:
    assert wants_gzip([(b"accept-encoding", b"br"), (b"accept-encoding", b"gzip")])


async def sent(app: Any, accept: str = "gzip") -> tuple[dict[bytes, bytes], list[bytes]]:
    """The headers and the parts of the body that `app` sends through the compression."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        raise AssertionError("asked for a body")

    scope = {"type": "http", "method": "GET", "headers": [(b"accept-encoding", accept.encode())]}
    await Compression(app)(scope, receive, send)
    return dict(messages[0]["headers"]), [m["body"] for m in messages[1:]]


@pytest.mark.parametrize("n", [MIN_BYTES, 200_000])
async def test_a_long_reply_is_compressed(n: int) -> None:
    headers, (body,) = await sent(PlainTextResponse("a" * n))
    assert headers[b"content-encoding"] == b"gzip"
    assert headers[b"content-length"] == str(len(body)).encode()
    assert headers[b"vary"] == b"Accept-Encoding"
    assert gzip.decompress(body) == b"a" * n


@pytest.mark.parametrize("accept", ["", "br", "gzip;q=0"])
async def test_others_get_it_as_it_is(accept: str) -> None:
    headers, (body,) = await sent(PlainTextResponse("a" * MIN_BYTES), accept)
    assert (b"content-encoding" in headers, body) == (False, b"a" * MIN_BYTES)


async def test_a_short_reply_is_not_worth_it() -> None:
    headers, (body,) = await sent(JSONResponse({"a": 1}))
    assert (b"content-encoding" in headers, body) == (False, b'{"a":1}')


async def test_what_is_compressed_already_is_left_alone() -> None:
    headers, (body,) = await sent(Response(b"x" * MIN_BYTES, headers={"Content-Encoding": "br"}))
    assert (headers[b"content-encoding"], body) == (b"br", b"x" * MIN_BYTES)


async def test_connections_of_other_kinds_pass() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def unused(*_: Any) -> Any:
        raise AssertionError

    await Compression(app)({"type": "lifespan"}, unused, unused)
    assert seen == ["lifespan"]


async def test_an_event_stream_passes_event_by_event() -> None:
    """Each chunk is out before the next one is made."""
    out: list[bytes] = []
    seen_before: list[int] = []
    event = b"data: " + b"x" * MIN_BYTES + b"\n\n"

    async def chunks() -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            seen_before.append(len(out))
            yield event

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert b"content-encoding" not in dict(message["headers"])
        elif message["body"]:
            out.append(message["body"])

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(chunks(), on_close=None, ping_s=0, send_timeout_s=5)
    scope = {"type": "http", "method": "GET", "headers": [(b"accept-encoding", b"gzip")]}
    await Compression(stream)(scope, receive, send)
    assert out == [event] * 3
    assert seen_before == [0, 1, 2]
