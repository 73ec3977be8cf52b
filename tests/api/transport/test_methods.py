"""HEAD on every route, gzip, errors, request ids, and the access log."""

import asyncio
import gzip
import json
import logging
from typing import Any, cast

import httpx
import pytest
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from server import logs
from server.app import create_app
from server.routes import ROUTERS
from server.web.live import MAX_WATCHERS
from tests.api.conftest import TIMEOUT_S, Api, GoLive, make_settings
from tests.support.fakes import FakeLoader

pytestmark = pytest.mark.slow

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, Route)]
STREAMS = {"/models/sse", "/page/live"}
REFUSED = {"/tools": 403, "/cors-proxy": 403, "/v1/stream": 400, "/page/bodies": 404}
"""The status of a plain GET on endpoints that are off or need a parameter."""
STORED = ("{response_id}", "{conversation_id}", "{file_id}", "{batch_id}")
GETS = sorted(
    {
        route.path.replace("{model_id:path}", "demo")
        for route in ROUTES
        if "GET" in cast(set[str], route.methods)
        and route.path not in STREAMS
        and not route.path.endswith(("{digest}", "docs/{name}"))
        and not any(each in route.path for each in STORED)  # no object is stored
    }
)
GZIP = {"Accept-Encoding": "gzip"}


async def test_head_equals_get_without_the_body(live: GoLive) -> None:
    async with live(server={"metrics": True}) as server:
        for path in GETS:
            get = await server.api.client.get(path)
            head = await server.api.client.head(path)
            assert (head.status_code, head.content) == (REFUSED.get(path, 200), b""), path
            assert head.headers["content-type"] == get.headers["content-type"], path
            if path != "/metrics":
                assert head.headers["content-length"] == get.headers["content-length"], path
            assert (await server.api.client.get("/livez")).status_code == 200  # no body was left on the connection
        for path, status in (("/nope", 404), ("/v1/completions", 405)):  # no GET either
            assert (await server.api.expect(f"HEAD {path}", None, status)).content == b""


@pytest.mark.parametrize("path", sorted(STREAMS))
async def test_head_of_a_stream_ends_and_uses_no_place_of_a_watcher(live: GoLive, path: str) -> None:
    async with live() as server:
        for _ in range(MAX_WATCHERS + 1):
            head = await asyncio.wait_for(server.api.client.head(path), TIMEOUT_S)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"].startswith("text/event-stream")


async def test_long_replies_are_compressed_if_the_client_accepts_gzip(live: GoLive) -> None:
    async with live() as server:
        async with server.api.client.stream("GET", "/openapi.json", headers=GZIP) as reply:
            raw = b"".join([part async for part in reply.aiter_raw()])
        assert reply.headers["content-encoding"] == "gzip"
        assert reply.headers["content-length"] == str(len(raw))
        for refused in ("identity", "gzip;q=0", "br, GZIP; q=0.000, identity"):
            plain = await server.api.client.get("/openapi.json", headers={"Accept-Encoding": refused})
            assert "content-encoding" not in plain.headers
        assert json.loads(gzip.decompress(raw)) == plain.json()


@pytest.mark.parametrize(("path", "last"), [("/v1/completions", "data: [DONE]"), ("/api/generate", '"done":true')])
async def test_streams_are_never_compressed(live: GoLive, path: str, last: str) -> None:
    async with live() as server:
        body = {"model": "demo", "prompt": "Hi", "max_tokens": 100, "stream": True, "ignore_eos": True}
        async with server.api.client.stream("POST", path, json=body, headers=GZIP) as reply:
            assert "content-encoding" not in reply.headers
            assert last in (await reply.aread()).decode().splitlines()[-1 if path.startswith("/api") else -2]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", "POST"),
        ("PUT", "/v1/audio/transcriptions", "POST"),
        ("PUT", "/v1/conversations/conv_1", "GET, HEAD, POST, DELETE"),
        ("GET", "/v1/responses/compact", "POST"),
        ("DELETE", "/responses/input_tokens", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
    ],
)
async def test_wrong_method_is_refused_with_the_allowed_ones(
    client: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    reply = await client.request(method, path)
    assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
    assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_internal_error_is_logged_with_details_and_sent_without(
    api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:

    def broken() -> None:
        raise KeyError("the password")

    monkeypatch.setattr(api.pool, "states", broken)
    monkeypatch.setattr(caplog.handler, "formatter", logs.LineFormatter(logs.as_json))
    with caplog.at_level(logging.ERROR):
        reply = await api.client.get("/v1/models", headers={"Origin": "http://x.y", "X-Request-Id": "abc-1"})
    text = caplog.text
    monkeypatch.undo()
    assert reply.status_code == 500
    assert reply.json()["error"]["type"] == "server_error"
    assert "password" not in reply.text
    assert "the password" in text
    assert "abc-1" in text
    assert reply.headers["access-control-allow-origin"] == "http://x.y"
    assert reply.headers["x-request-id"] == "abc-1"


async def test_unsupported_requests_forbid_a_retry(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/embeddings", json={"input": "x"})
    assert (reply.status_code, reply.headers["x-should-retry"]) == (501, "false")
    assert "x-should-retry" not in (await client.post("/v1/completions", json={"n": 0})).headers


async def test_every_reply_has_a_request_id(client: httpx.AsyncClient) -> None:
    """The client's id is used unless it is too long or has characters that are unsafe in the log."""
    reply = await client.get("/health", headers={"X-Request-Id": "mine"})
    assert reply.headers["x-request-id"] == "mine"
    unsafe = ["a b", "x" * 129, "ü".encode().decode("latin-1"), ""]
    replies = [await client.get("/health", headers=[(b"x-request-id", each.encode("latin-1"))]) for each in unsafe]
    replies += [await client.get("/health") for _ in range(2)]
    generated = {reply.headers["x-request-id"] for reply in replies}
    assert len(generated) == len(replies)
    assert not generated & set(unsafe)


async def test_access_log_has_the_status_and_omits_health_checks(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "server.access"):
        await client.get("/nope%0Ainjected", headers={"X-Request-Id": "abc-2"})
        await client.get("/health")
    record: Any
    (record,) = [r for r in caplog.records if r.name == "server.access"]
    assert "GET '/nope\\ninjected' 404" in record.getMessage()
    assert (record.request, record.outcome) == ("abc-2", "http_404")


async def test_program_may_add_middleware() -> None:
    async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = create_app(make_settings(), loader=FakeLoader())
    app.add_middleware(lambda _: refuse)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        assert (await client.get("/health")).status_code == 418
    app.state.services.batches.state.database.close()
