"""The application with an API prefix, under a root path, and mounted in another application: all checks hold there."""

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
from tests.api.management.test_models import TWO_MODELS
from tests.api.transport.test_keys import bearer, key_file
from tests.support.fakes import FakeLoader

MOUNTS = ("plain", "prefix", "root path", "mounted", "mounted twice")
ADMINISTRATION = (
    *("GET metrics", "GET slots", "HEAD slots", "GET models?reload=1", "GET page/log", "POST models/unload"),
    *("POST lora-adapters", "POST props", "POST slots/0?action=erase"),
)


@asynccontextmanager
async def serve_mounted(mount: str, **settings: Any) -> AsyncIterator[Api]:
    """Start an application mounted as `mount` says, with a client whose base URL leads to it."""
    server = {"slots": True, "metrics": True, **settings.pop("server", {})}
    if mount == "prefix":
        server["api_prefix"] = "/llm"
    loader = FakeLoader()
    app = create_app(make_settings(server=server, **settings), loader=loader)
    outermost: Any = app
    if mount.startswith("mounted"):
        outermost = FastAPI()
        outermost.add_exception_handler(LlamapoolError, lambda *_: Response(status_code=418))
        outermost.mount("/llm", app)
    if mount == "mounted twice":
        inner, outermost = outermost, FastAPI()
        outermost.mount("/api/", inner)
    if mount == "root path":
        outermost = with_root_path(app)
    base = {"plain": "", "root path": "", "mounted twice": "/api/llm"}.get(mount, "/llm")
    transport = httpx.ASGITransport(outermost)
    async with run_app(app), httpx.AsyncClient(transport=transport, base_url=f"http://test{base}/") as client:
        api = Api(app, client, loader)
        await api.settled()
        yield api


def with_root_path(app: FastAPI) -> Any:
    """Change the scope of each request as ``uvicorn --root-path /llm`` does."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        scope |= {"root_path": "/llm", "path": "/llm" + scope["path"]}
        await app(scope, receive, send)

    return call


def keys(folder: Path) -> dict[str, Any]:
    """Return settings with one key for each scope. The key equals the scope's name."""
    return {"keys_file": str(key_file(folder, **{scope: {"scopes": [scope]} for scope in SCOPES}))}


@pytest.mark.parametrize("mount", MOUNTS)
async def test_endpoints_need_the_scope_of_the_key_under_every_mount(mount: str, tmp_path: Path) -> None:
    async with serve_mounted(mount, models=TWO_MODELS, server=keys(tmp_path)) as api:
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


@pytest.mark.parametrize("mount", MOUNTS)
async def test_administration_is_served_only_on_the_admin_port(mount: str) -> None:
    async with serve_mounted(mount, server={"admin_port": 8081, "props": True}) as api:
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


@pytest.mark.parametrize("mount", MOUNTS)
async def test_only_parameters_of_a_path_and_names_of_files_may_be_encoded(mount: str, tmp_path: Path) -> None:
    (tmp_path / "my page.html").write_text("a page")
    async with serve_mounted(mount, server={"path": str(tmp_path)}) as api:
        for path in ("%6detrics", "v1%2fmodels", "v1%2Fmodels/demo", "sl%6Fts", "v1/mode%6cs/demo", "he%61lth"):
            assert (await api.client.get(path)).status_code == 404, path
        for path in ("v1/models/d%65mo", "v1/models/dem%6F", "my%20page.html", "metrics", "slots?%61=b"):
            assert (await api.client.get(path)).status_code == 200, path
        assert (await api.client.get("v1/responses/%72esp")).json()["error"]["message"] != "File Not Found"


async def test_prefix_may_need_encoding() -> None:
    app = create_app(make_settings(server={"api_prefix": "/a b:ü"}), loader=FakeLoader())
    transport = httpx.ASGITransport(app)
    async with run_app(app), httpx.AsyncClient(transport=transport, base_url="http://test/a b:ü/") as client:
        assert (await client.get("health")).status_code in (200, 503)
        assert (await client.get("%68ealth")).status_code == 404


async def test_path_with_a_line_feed_is_not_found() -> None:
    """Starlette's patterns match before a final line feed, so the router would find an endpoint without checks."""
    async with serve_mounted("plain", models=TWO_MODELS) as api:
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


@pytest.mark.parametrize("mount", MOUNTS)
async def test_metrics_openapi_and_web_ui_do_not_contain_the_mount_path(mount: str) -> None:
    async with serve_mounted(mount) as api:
        await api.client.get("props")
        await api.client.get("nope")
        text = (await api.client.get("metrics")).text
        routes = set(re.findall('path_template="([^"]*)"', text))
        assert {"/props", "unmatched"} <= routes
        assert not any("llm" in route for route in routes)
        document = (await api.client.get("openapi.json")).json()
        assert document["servers"] == [{"url": "."}]
        assert "/v1/models" in document["paths"]
        assert (await api.client.get("_app/version.json")).status_code == 200


@pytest.mark.parametrize("server", [{}, {"api_keys": ["secret"]}, {"admin_port": 8081}])
async def test_prefix_without_a_slash_redirects_to_the_web_ui(server: dict[str, Any]) -> None:
    """The redirect needs no key and does not count as administration."""
    async with serve_mounted("prefix", server=server) as api:
        moved = await api.client.get("http://test/llm")
        assert (moved.status_code, moved.headers["location"]) == (307, "llm/")
        assert (await api.client.post("http://test/llm")).status_code in (401, 404)
        assert (await api.client.get("http://test/llmx")).status_code in (401, 404)


async def test_unreadable_file_of_the_web_ui_does_not_open_the_endpoint_of_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of the web UI's files need no key."""
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "metrics").write_text("a file")
    settings = {"metrics": True, "path": str(tmp_path / "page"), "api_keys": ["secret"]}
    async with serve_mounted("plain", server=settings) as api:
        assert (await api.client.get("metrics")).text == "a file"
        monkeypatch.setattr("os.access", lambda *_: False)
        assert (await api.client.get("metrics")).status_code == 404


# ---- a real server


async def test_root_path_of_uvicorn_bypasses_no_check(live: GoLive, tmp_path: Path) -> None:
    async with live(
        models=TWO_MODELS, server=keys(tmp_path) | {"metrics": True}, uvicorn={"root_path": "/llm"}
    ) as server:
        for method, path in (("POST", "/models/unload"), ("GET", "/page/log"), ("GET", "/metrics")):
            denied = {"error": {"type": "permission_error"}}
            await server.api.expect(f"{method} {path}", {"model": "first"}, 403, denied, bearer("infer"))
        await server.api.expect("GET /health")
        await server.api.expect("GET /")
        await server.api.expect("POST /tokenize", {"content": "Hi"}, headers=bearer("infer"))
        body = json.dumps({"model": "first"}).encode()
        head = "POST /models/unload%0a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer infer\r\nConnection: close\r\n"
        reply = await server.exchange(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert reply.startswith(b"HTTP/1.1 404 ")
        for url in (b"/health#x", b"/healt%68", b"http://x/healt%68"):
            reply = await server.exchange(b"GET " + url + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 401 "), url  # no endpoint: it needs a key
