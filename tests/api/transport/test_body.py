import asyncio
import contextlib
import gc
import gzip
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib import import_module
from typing import Never

import httpx
import pytest
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartParser

from server.dialects.dialect import Dialect
from server.errors import InvalidRequest
from tests.api.conftest import Api, GoLive, Live, Serve, idle, until
from tests.support.fakes import FakeLoader

pytestmark = pytest.mark.slow

COMPLETION = {"prompt": "Hi", "max_tokens": 2}
BYTES = json.dumps(COMPLETION).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"{b", "line 1, column 2"),
        (b"{\n" + b" " * (1 << 16) + b"x", "is not valid JSON at line 2, column 65537"),
        (b'["' + b"x" * (1 << 16) + b'"]', "must be a JSON object, not an array"),
    ],
)
async def test_a_malformed_body_is_the_clients_mistake(api: Api, content: bytes, message: str) -> None:
    """Also a long one, which a thread reads. `test_openapi` tries every endpoint."""
    part = ({"error": {"type": "invalid_request_error"}}, message)
    await api.expect("POST /v1/completions", content, 400, part, headers={"Content-Type": "application/json"})


async def test_the_content_type_does_not_matter(api: Api) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "???"):
        await api.expect("POST /v1/completions", BYTES, headers={"Content-Type": kind})


@pytest.mark.parametrize(
    ("path", "reader", "field"),
    [
        ("/v1/chat/completions", "routes.chat.CHAT", "messages"),
        ("/v1/completions", "routes.completions.COMPLETIONS", "prompt"),
        ("/completion", "routes.completions.NATIVE", "prompt"),
        ("/infill", "routes.completions.INFILL", "input_prefix"),
        ("/tokenize", "routes.tokens.read_tokenize", "content"),
        ("/v1/messages", "routes.messages.parse_messages", "messages"),
        ("/v1/responses", "serving.responses.parse_response", "input"),
        ("/v1/embeddings", "routes.embeddings.read_embeddings", "input"),
        ("/rerank", "routes.embeddings.read_rerank", "query"),
    ],
)
async def test_a_long_body_is_read_beside_the_event_loop_without_the_garbage_collector(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, reader: str, field: str
) -> None:
    seen: list[tuple[threading.Thread, bool]] = []

    def refuse(*_given: object, **_options: object) -> Never:
        seen.append((threading.current_thread(), gc.isenabled()))
        raise InvalidRequest("this was read")

    module, _, name = reader.rpartition(".")
    user = import_module(f"server.{module}")
    given = getattr(user, name)
    monkeypatch.setattr(user, name, replace(given, parse=refuse) if isinstance(given, Dialect) else refuse)
    for n in (1, 1 << 14):
        reply = await client.post(path, json={field: "x" * n})
        assert reply.status_code in (400, 501)  # the latter: a model that doesn't embed is refused first
    (short, collects), (long, collects_then) = seen
    assert (short, collects) == (threading.current_thread(), True)
    assert (long.name, collects_then) == ("prepare-body_0", False)
    assert gc.isenabled()


async def test_a_form_is_read_beside_the_event_loop(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 64 MiB takes a second."""
    seen: list[str] = []
    parse = MultiPartParser.parse

    async def noted(parser: MultiPartParser) -> FormData:
        seen.append(threading.current_thread().name)
        return await parse(parser)

    monkeypatch.setattr(MultiPartParser, "parse", noted)
    reply = await client.post("/v1/files", data={"purpose": "user_data"}, files={"file": b"x"})
    assert (reply.status_code, seen) == (200, ["prepare-body_0"])


async def test_a_form_has_its_boundary_once_for_each_part(client: httpx.AsyncClient) -> None:
    head = b'--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=B"}
    reply = await client.post("/v1/files", content=head + b"\r\n--Bx" * 300 + b"\r\n--B--\r\n", headers=kind)
    assert (reply.status_code, "more than 200 parts" in reply.text) == (400, True)


async def test_compressed_bodies_are_refused(api: Api) -> None:
    refused = {"error": {"code": "unsupported_media_type"}}
    await api.expect("POST /v1/completions", gzip.compress(BYTES), 415, refused, headers={"Content-Encoding": "gzip"})


async def test_a_body_over_the_limit_is_refused_by_its_length_or_by_its_size(serve: Serve) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * 1000

    async with serve(server={"max_body_bytes": 2048}) as api:
        for content in (b" " * 2049, chunks()):
            reply = await api.client.post("/v1/completions", content=content)
            assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
        await api.expect("POST /v1/completions", BYTES.ljust(2048))


async def test_bodies_of_all_requests_together_have_a_limit(live: GoLive) -> None:
    steps = threading.Semaphore(0)
    loader = FakeLoader(n_seq=1, steps=steps)
    async with live(loader, server={"max_body_bytes": 1024, "max_bodies_bytes": 1500}) as server:
        long = BYTES.ljust(1000)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n"
        reader, writer = await server.connect(head + long)
        loaded = server.api.loaded()
        await until(lambda: loaded.engine.busy)
        said = ({"error": {"type": "unavailable_error"}}, "limit of 1500 bytes")
        reply = await server.api.expect("POST /v1/completions", long, 503, said)
        assert (reply.headers["retry-after"], reply.headers["connection"]) == ("5", "close")
        for _ in range(10):
            steps.release()
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await idle(loaded.engine)
        for _ in range(10):
            steps.release()
        await server.api.expect("POST /v1/completions", long)


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n"


@pytest.mark.parametrize("options", [{"idle_s": 0.05}, {"timeout_s": 0.05}])
async def test_a_body_that_never_ends_is_given_up(live: GoLive, options: dict[str, float]) -> None:
    async with live(options=options) as server:
        reply = await server.exchange(HEAD + b'{"prompt": ')
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b'"the request body did not arrive within 0.05 s"' in reply


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten(live: GoLive) -> None:
    async with live() as server:
        _, writer = await server.connect(HEAD + b'{"prompt": ')
        writer.transport.abort()
        assert (await server.api.client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /health HTTP/1.1\r\nbad header\r\n\r\n",
    ],
)
async def test_what_is_not_http_ends_its_connection_and_nothing_else(live: GoLive, garbage: bytes) -> None:
    async with live() as server:
        assert (await server.exchange(garbage)).startswith(b"HTTP/1.1 400 ")
        assert (await server.api.client.get("/health")).status_code == 200


async def test_garbage_behind_a_request_does_not_spoil_its_reply(live: GoLive) -> None:
    async with live() as server:
        reply = await server.exchange(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n\x00garbage\r\n\r\n")
        assert b"HTTP/1.1 400 " in reply
        assert (await server.api.client.get("/health")).status_code == 200


async def test_the_body_of_a_request_that_outlives_its_client_counts_until_its_end(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    limits = {"max_body_bytes": 1024, "max_bodies_bytes": 1500}
    async with serve(FakeLoader(steps=steps), server=limits) as api:
        body = {"input": "Hi", "background": True, "max_output_tokens": 2}
        await api.expect("POST /v1/responses", json.dumps(body).encode().ljust(1000))
        (stream,) = api.app.state.services.background.values()
        await api.expect("POST /v1/completions", BYTES.ljust(1000), 503, "limit of 1500 bytes")
        steps.release(1000)
        await stream.stopped()
        await api.expect("POST /v1/completions", BYTES.ljust(1000))


async def test_pipelined_requests_are_answered_in_order(live: GoLive) -> None:
    async with live() as server:
        one = b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: %d\r\n\r\n"
        last = b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: 3\r\nConnection: close\r\n\r\n"
        reply = await server.exchange(one % 1 + one % 2 + last)
        assert [reply.index(b"x-request-id: %d" % i) for i in (1, 2, 3)] == sorted(
            reply.index(b"x-request-id: %d" % i) for i in (1, 2, 3)
        )
        assert reply.count(b"HTTP/1.1 200 ") == 3


async def reply_to_endless(server: Live, beginning: bytes, piece: bytes) -> bytes:
    """What comes while `piece` is sent again and again; nothing where the connection is reset."""
    reader, writer = await server.connect(beginning)
    reply = asyncio.create_task(reader.read())
    with contextlib.suppress(ConnectionError):
        while not reply.done():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        return await reply
    return b""


@pytest.mark.parametrize("piece", [b"X-A: " + b"a" * 1000 + b"\r\n", b"a" * 1000])
@pytest.mark.parametrize(
    "beginning",
    [
        b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: ",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Long: ",
    ],
    ids=["head", "trailers"],
)
async def test_endless_heads_and_trailers_are_cut(live: GoLive, beginning: bytes, piece: bytes) -> None:
    async with live() as server:
        reply = await reply_to_endless(server, beginning, piece)
        assert reply == b"" or (reply.startswith(b"HTTP/1.1 400 ") and beginning.startswith(b"GET"))


async def test_large_but_finite_heads_pass(live: GoLive) -> None:
    async with live() as server:
        head = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-A: " + b"a" * 60_000 + b"\r\n\r\n"
        assert (await server.exchange(head)).startswith(b"HTTP/1.1 200 ")


async def test_a_body_in_small_chunks_with_a_trailer_is_read(live: GoLive) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    body = json.dumps(COMPLETION).ljust(20_000).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    async with live() as server:
        reply = await server.exchange(head + chunks + b"0\r\nX-Check: 1\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200 ")
