"""The same application under a root path, mounted in another one and behind a prefix: every check holds there too."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response

from server.app import create_app
from server.errors import LlamapoolError
from server.transport.endpoints import SCOPES
from tests.api.conftest import Api, GoLive, make_settings, run_app
from tests.api.management.test_models import TWO
from tests.api.transport.test_keys import bearer, key_file
from tests.support.fakes import FakeLoader

FRAMES = ("plain", "prefix", "root path", "mounted", "mounted twice")
ADMINISTRATION = (
    *("GET metrics", "GET slots", "HEAD slots", "GET models?reload=1", "GET page/log", "POST models/unload"),
    *("POST lora-adapters", "POST props", "POST slots/0?action=erase"),
)


@asynccontextmanager
async def framed(frame: str, **settings: Any) -> AsyncIterator[Api]:
    """An application whose client has the frame's base address."""
    server = {"slots": True, "metrics": True, **settings.pop("server", {})}
    if frame == "prefix":
        server["api_prefix"] = "/llm"
    loader = FakeLoader()
    app = create_app(make_settings(server=server, **settings), loader=loader)
    asked: Any = app
    if frame.startswith("mounted"):
        asked = FastAPI()
        asked.add_exception_handler(LlamapoolError, lambda *_: Response(status_code=418))
        asked.mount("/llm", app)
    if frame == "mounted twice":
        outer = FastAPI()
        outer.mount("/api/", asked)
        asked = outer
    if frame == "root path":
        asked = as_uvicorn(app)
    base = {"plain": "", "root path": "", "mounted twice": "/api/llm"}.get(frame, "/llm")
    transport = httpx.ASGITransport(asked)
    async with run_app(app), httpx.AsyncClient(transport=transport, base_url=f"http://test{base}/") as client:
        api = Api(app, client, loader)
        await api.settled()
        yield api


def as_uvicorn(app: FastAPI) -> Any:
    """What ``uvicorn --root-path /llm`` makes of a request."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        scope |= {"root_path": "/llm", "path": "/llm" + scope["path"]}
        await app(scope, receive, send)

    return served


def keys(folder: Path) -> dict[str, Any]:
    """A key for each scope, named as it is."""
    return {"keys_file": str(key_file(folder, **{scope: {"scopes": [scope]} for scope in SCOPES}))}


@pytest.mark.parametrize("frame", FRAMES)
async def test_each_key_may_what_its_scopes_say(frame: str, tmp_path: Path) -> None:
    async with framed(frame, models=TWO, server=keys(tmp_path)) as api:
        unload = {"model": "first"}
        for method, path, scope in (
            ("GET", "metrics", "metrics"),
            ("GET", "page/log", "props"),
            ("GET", "slots?model=first", "slots"),
            ("POST", "tokenize", "infer"),
            ("POST", "models/unload", "models"),
        ):
            for name in SCOPES:
                reply = await api.client.request(method, path, json=unload, headers=bearer(name))
                assert (reply.status_code == 403) is (name != scope), (path, name, reply.text)
        assert (await api.client.get("health")).json() == {"status": "ok"}
        assert (await api.client.get("")).headers["content-type"].startswith("text/html")
        assert (await api.client.get("v1/models")).status_code == 401
        assert (await api.client.get("v1/models/nope", headers=bearer("infer"))).status_code == 404
        anthropic = await api.client.post("v1/messages", json={})
        assert (anthropic.status_code, anthropic.json()["type"]) == (401, "error")


@pytest.mark.parametrize("frame", FRAMES)
async def test_administration_is_answered_at_its_own_port_alone(frame: str) -> None:
    async with framed(frame, server={"admin_port": 8081, "props": True}) as api:
        base = api.client.base_url.copy_with(port=8081)
        for method, path in (request.split() for request in ADMINISTRATION):
            body: Any = None if method != "POST" else [] if "lora" in path else {"model": "demo"}
            assert (await api.client.request(method, path, json=body)).status_code == 404, path
            assert (await api.client.request(method, base.join(path), json=body)).status_code != 404, path
        for path in ("nope", "METRICS"):
            assert (await api.client.get(path)).status_code == 404
        for url in ("", base):
            for path in ("v1/models", "health", "props"):
                assert (await api.client.get(f"{url}{path}")).status_code in (200, 503)


async def test_a_path_that_the_table_does_not_list_is_answered_by_nothing() -> None:
    """A router's patterns end before a line feed: it would download a model for a client of another machine."""
    async with framed("plain", models=TWO) as api:
        scope = {"type": "http", "method": "POST", "path": "/models/unload\n", "query_string": b"", "headers": []}
        body, sent = b'{"model": "first"}', list[Any]()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope["headers"] = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        await api.app(scope, receive, send)
        assert sent[0]["status"] == 404
        assert api.pool.states()[0].loaded is not None


@pytest.mark.parametrize("frame", FRAMES)
async def test_metrics_the_pages_links_and_the_description_do_not_name_the_frame(frame: str) -> None:
    async with framed(frame) as api:
        await api.client.get("props")
        await api.client.get("nope")
        text = (await api.client.get("metrics")).text
        routes = set(re.findall('path_template="([^"]*)"', text))
        assert {"/props", "unmatched"} <= routes
        assert not any("llm" in route for route in routes)
        described = (await api.client.get("openapi.json")).json()
        assert described["servers"] == [{"url": "."}]
        assert "/v1/models" in described["paths"]
        assert (await api.client.get("_app/version.json")).status_code == 200


@pytest.mark.parametrize("server", [{}, {"api_keys": ["secret"]}, {"admin_port": 8081}])
async def test_the_bare_prefix_leads_to_the_page(server: dict[str, Any]) -> None:
    """A browser has no key, and the web UI is not administration."""
    async with framed("prefix", server=server) as api:
        moved = await api.client.get("http://test/llm")
        assert (moved.status_code, moved.headers["location"]) == (307, "llm/")
        assert (await api.client.post("http://test/llm")).status_code in (401, 404)
        assert (await api.client.get("http://test/llmx")).status_code in (401, 404)


async def test_a_page_file_that_cannot_be_read_is_not_the_endpoint_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path needs no key."""
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "metrics").write_text("a file")
    settings = {"metrics": True, "path": str(tmp_path / "page"), "api_keys": ["secret"]}
    async with framed("plain", server=settings) as api:
        assert (await api.client.get("metrics")).text == "a file"
        monkeypatch.setattr("os.access", lambda *_: False)
        assert (await api.client.get("metrics")).status_code == 404


# ---- a real server


async def test_uvicorns_root_path_opens_nothing(live: GoLive, tmp_path: Path) -> None:
    async with live(models=TWO, server=keys(tmp_path) | {"metrics": True}, uvicorn={"root_path": "/llm"}) as server:
        client = server.api.client
        for method, path in (("POST", "/models/unload"), ("GET", "/page/log"), ("GET", "/metrics")):
            reply = await client.request(method, path, json={"model": "first"}, headers=bearer("infer"))
            assert (reply.status_code, reply.json()["error"]["type"]) == (403, "permission_error")
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/")).status_code == 200
        assert (await client.post("/tokenize", json={"content": "Hi"}, headers=bearer("infer"))).status_code == 200
        body = json.dumps({"model": "first"}).encode()
        head = "POST /models/unload%0a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer infer\r\nConnection: close\r\n"
        said = await server.exchange(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert said.startswith(b"HTTP/1.1 404 ")
