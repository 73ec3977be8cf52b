"""Request bodies: JSON and forms, limits of size and time, pipelining, and malformed HTTP."""

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
async def test_malformed_body_is_refused_with_its_position(api: Api, content: bytes, message: str) -> None:
    """Long bodies are parsed in a thread. `test_openapi` tests every endpoint."""
    part = ({"error": {"type": "invalid_request_error"}}, message)
    await api.expect("POST /v1/completions", content, 400, part, headers={"Content-Type": "application/json"})


async def test_json_is_accepted_with_any_content_type(api: Api) -> None:
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
async def test_long_body_is_parsed_in_a_thread_with_the_garbage_collector_off(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, reader: str, field: str
) -> None:
    calls: list[tuple[threading.Thread, bool]] = []

    def refuse(*_: object, **_options: object) -> Never:
        calls.append((threading.current_thread(), gc.isenabled()))
        raise InvalidRequest("parsed")

    module_name, _, name = reader.rpartition(".")
    module = import_module(f"server.{module_name}")
    original = getattr(module, name)
    monkeypatch.setattr(module, name, replace(original, parse=refuse) if isinstance(original, Dialect) else refuse)
    for n in (1, 1 << 14):
        reply = await client.post(path, json={field: "x" * n})
        assert reply.status_code in (400, 501)  # 501: the model has no embeddings
    (short_thread, short_gc), (long_thread, long_gc) = calls
    assert (short_thread, short_gc) == (threading.current_thread(), True)
    assert (long_thread.name, long_gc) == ("prepare-body_0", False)
    assert gc.isenabled()


async def test_form_is_parsed_in_a_thread(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A form of 64 MiB takes a second."""
    threads: list[str] = []
    original = MultiPartParser.parse

    async def parse(parser: MultiPartParser) -> FormData:
        threads.append(threading.current_thread().name)
        return await original(parser)

    monkeypatch.setattr(MultiPartParser, "parse", parse)
    reply = await client.post("/v1/files", data={"purpose": "user_data"}, files={"file": b"x"})
    assert (reply.status_code, threads) == (200, ["prepare-body_0"])


async def test_form_with_too_many_boundaries_is_refused(client: httpx.AsyncClient) -> None:
    head = b'--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=B"}
    reply = await client.post("/v1/files", content=head + b"\r\n--Bx" * 300 + b"\r\n--B--\r\n", headers=kind)
    assert (reply.status_code, "more than 200 parts" in reply.text) == (400, True)


@pytest.mark.parametrize("charset", ["punycode", "undefined", "idna", "utf-16", "utf-8"])
async def test_charset_of_a_form_is_ignored(client: httpx.AsyncClient, charset: str) -> None:
    """Python's decoder of punycode takes quadratic time, "undefined" always fails."""
    form = '--B"é\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\nuser_data\r\n'
    content = form.format("purpose", "") + form.format("file", '; filename="é-a"') + '--B"é--\r\n'
    kind = {b"Content-Type": f'multipart/form-data; charset={charset}; boundary="B\\"é"'.encode()}
    reply = await client.post("/v1/files", content=content.encode(), headers=kind)
    assert (reply.status_code, reply.json().get("filename")) == (200, "é-a")


async def test_compressed_bodies_are_refused(api: Api) -> None:
    refused = {"error": {"code": "unsupported_media_type"}}
    await api.expect("POST /v1/completions", gzip.compress(BYTES), 415, refused, headers={"Content-Encoding": "gzip"})


async def test_body_over_the_limit_is_refused_with_and_without_a_length(serve: Serve) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * 1000

    async with serve(server={"max_body_bytes": 2048}) as api:
        for content in (b" " * 2049, chunks()):
            reply = await api.client.post("/v1/completions", content=content)
            assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
        await api.expect("POST /v1/completions", BYTES.ljust(2048))


async def test_total_size_of_all_bodies_is_limited(live: GoLive) -> None:
    steps = threading.Semaphore(0)
    loader = FakeLoader(n_seq=1, steps=steps)
    async with live(loader, server={"max_body_bytes": 1024, "max_bodies_bytes": 1500}) as server:
        long = BYTES.ljust(1000)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n"
        reader, writer = await server.connect(head + long)
        loaded = server.api.loaded()
        await until(lambda: loaded.engine.busy)
        part = ({"error": {"type": "unavailable_error"}}, "limit of 1500 bytes")
        reply = await server.api.expect("POST /v1/completions", long, 503, part)
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
async def test_incomplete_body_times_out(live: GoLive, options: dict[str, float]) -> None:
    async with live(options=options) as server:
        reply = await server.exchange(HEAD + b'{"prompt": ')
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b'"the request body did not arrive within 0.05 s"' in reply


async def test_disconnect_during_a_body_does_not_affect_the_server(live: GoLive) -> None:
    async with live() as server:
        _, writer = await server.connect(HEAD + b'{"prompt": ')
        writer.transport.abort()
        assert (await server.api.client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /health HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n\x00garbage\r\n\r\n",
    ],
)
async def test_malformed_http_gets_400_and_closes_only_its_connection(live: GoLive, request_bytes: bytes) -> None:
    async with live() as server:
        assert (await server.exchange(request_bytes)).startswith(b"HTTP/1.1 400 ")
        assert (await server.api.client.get("/health")).status_code == 200


async def test_body_of_a_background_response_counts_until_its_end(serve: Serve) -> None:
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
        request = b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: %d\r\n\r\n"
        last = b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: 3\r\nConnection: close\r\n\r\n"
        reply = await server.exchange(request % 1 + request % 2 + last)
        positions = [reply.index(b"x-request-id: %d" % i) for i in (1, 2, 3)]
        assert positions == sorted(positions)
        assert reply.count(b"HTTP/1.1 200 ") == 3


async def reply_to_endless(server: Live, start: bytes, part: bytes) -> bytes:
    """Send `start` and then `part` until the server replies. Returns the reply, empty if the connection is reset."""
    reader, writer = await server.connect(start)
    reply = asyncio.create_task(reader.read())
    with contextlib.suppress(ConnectionError):
        while not reply.done():
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        return await reply
    return b""


@pytest.mark.parametrize("part", [b"X-A: " + b"a" * 1000 + b"\r\n", b"a" * 1000])
@pytest.mark.parametrize(
    "start",
    [
        b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: ",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Long: ",
    ],
    ids=["head", "trailers"],
)
async def test_endless_heads_and_trailers_are_refused(live: GoLive, start: bytes, part: bytes) -> None:
    async with live() as server:
        reply = await reply_to_endless(server, start, part)
        assert reply == b"" or (reply.startswith(b"HTTP/1.1 400 ") and start.startswith(b"GET"))


async def test_large_head_is_accepted(live: GoLive) -> None:
    async with live() as server:
        head = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-A: " + b"a" * 60_000 + b"\r\n\r\n"
        assert (await server.exchange(head)).startswith(b"HTTP/1.1 200 ")


async def test_body_in_small_chunks_with_a_trailer_is_accepted(live: GoLive) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    body = json.dumps(COMPLETION).ljust(20_000).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    async with live() as server:
        reply = await server.exchange(head + chunks + b"0\r\nX-Check: 1\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200 ")
