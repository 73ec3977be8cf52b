"""What a web page can't make a visitor's browser do, and what it can as in llama-server."""

import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import GoLive, Live, Serve

JSON = {"Content-Type": "application/json"}
FOREIGN = {"Origin": "https://evil.example"}
REBOUND = {"Host": "rebound.example:8080"}
"""A name that an attacker made to lead here."""
CHANGES = [
    ("POST", "/models/load", b'{"model": "demo"}'),
    ("POST", "/models/unload", b'{"model": "demo"}'),
    ("POST", "/models", b'{"model": "org/name"}'),
    ("DELETE", "/models?model=demo", b""),
    ("POST", "/lora-adapters", b"[]"),
    ("POST", "/props", b"{}"),
    ("POST", "/slots/0?action=erase", b""),
    ("POST", "/slots/0?action=save", b'{"filename": "a"}'),
    ("GET", "/models?reload=1", b""),
    ("GET", "/v1/models?reload=1", b""),
    ("GET", "/models?%72eload=1", b""),
]
CHAT = b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}'


def refused(reply: httpx.Response, status: int = 403) -> bool:
    kind = "permission_error" if status == 403 else "invalid_request_error"
    return reply.status_code == status and reply.json()["error"]["type"] == kind


@pytest.mark.parametrize(
    "headers",
    [
        FOREIGN,
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1.evil.example"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        REBOUND | {"Origin": "http://rebound.example:8080"},
        REBOUND | {"Sec-Fetch-Site": "same-origin"},
    ],
    ids=str,
)
async def test_a_page_of_another_site_changes_nothing(serve: Serve, headers: dict[str, str]) -> None:
    async with serve(server={"props": True}) as api:
        for method, path, body in CHANGES:
            reply = await api.client.request(method, path, content=body, headers=JSON | headers)
            assert refused(reply), path
            assert "Host" not in headers or "--allowed-hosts" in reply.json()["error"]["message"]
            assert reply.headers.get("access-control-allow-origin", headers.get("Origin")) == headers.get("Origin")
            assert api.pool.states()[0].loaded is not None, path


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
async def test_a_body_that_a_page_may_send_unasked_changes_nothing(serve: Serve, kind: str | None) -> None:
    async with serve(server={"props": True}) as api:
        for method, path, body in (each for each in CHANGES if each[0] == "POST" and each[2]):
            headers = {"Content-Type": kind} if kind else {}
            assert refused(await api.client.request(method, path, content=body, headers=headers), 415), path
            assert api.pool.states()[0].loaded is not None, path


DENIED = {"error": {"type": "permission_error"}}
CHANGE, DONE = ("POST /props", b"{}"), {"success": True}
UI = {"Origin": "https://ui.example"}
OWN: tuple[dict[str, str], ...] = (
    {},
    {"Origin": "http://test"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://127.0.0.1:5173", "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
    {"Content-Type": "application/json; charset=utf-8"},
    {"Content-Type": "application/vnd.api+json"},
)
"""Headers of the server's own pages and of programs."""
BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"}
LLM = {"Host": "llm.example.com", "Origin": "http://llm.example.com"}
PLAIN = {"Content-Type": "text/plain"}
BEARER = {"Authorization": "Bearer secret"}
SERVERS: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "open": (
        {},
        [
            *((*CHANGE, 200, DONE, JSON | headers) for headers in OWN),
            (*CHANGE, 403, DENIED, {**JSON, **FOREIGN, "Authorization": "Bearer any"}),  # a key that nobody asked for
            ("GET /models?reload=1", None, 403, DENIED, BROWSER),  # as over plain http, which tells nothing of a page
            ("GET /models", None, 200, "", BROWSER),
            ("GET /models?reload=1", None, 200),
            ("POST /v1/chat/completions", CHAT, 200, "", {**FOREIGN, **PLAIN, "Sec-Fetch-Site": "cross-site"}),
            ("POST /v1/chat/completions", CHAT, 200, "", {**FOREIGN, **JSON, "Sec-Fetch-Site": "cross-site"}),
            ("GET /v1/models", None, 200, "", {"Host": "llm.example.com"}),  # the server's address is no loopback one
        ],
    ),
    "with a listed origin": (
        {"cors_origins": "https://ui.example"},
        [(*CHANGE, 200, DONE, JSON | UI), (*CHANGE, 403, DENIED, JSON | FOREIGN)],
    ),
    "with a key": ({"api_keys": ["secret"]}, [(*CHANGE, 200, DONE, FOREIGN | PLAIN | BEARER)]),
    "with a listed host": ({"allowed_hosts": ["llm.example.com"]}, [(*CHANGE, 200, DONE, JSON | LLM)]),
    "closed": ({"closed": True}, [("GET /v1/models", None, 403, DENIED), ("GET /health", None, 403, DENIED)]),
    "closed, with a key": (
        {"closed": True, "api_keys": ["secret"]},
        [("GET /health", None, 200), ("GET /v1/models", None, 200, "", {"X-Api-Key": "secret"})],
    ),
}


@pytest.mark.parametrize("server", SERVERS)
async def test_what_each_server_takes_of_whom(serve: Serve, server: str) -> None:
    settings, rows = SERVERS[server]
    async with serve(server={"props": True, **settings}) as api:
        for row in rows:
            await api.expect(*row)


async def test_an_erase_without_a_body_needs_no_type(serve: Serve, tmp_path: Path) -> None:
    async with serve(server={"slot_save_path": str(tmp_path)}) as api:
        assert (await api.client.post("/slots/0?action=erase")).status_code == 200
        chunked = await api.client.post("/slots/0?action=erase", content=_chunks())
        assert refused(chunked, 415)


async def _chunks() -> AsyncIterator[bytes]:
    yield b"{}"


# ---- a name that was made to lead here


async def ask(server: Live, headers: Mapping[str, str], path: str = "/v1/models") -> httpx.Response:
    return await server.api.client.get(path, headers=headers)


async def test_on_a_loopback_address_a_strangers_name_is_refused(live: GoLive) -> None:
    async with live(server={"allowed_hosts": ["llm.example.com", "*.tail.example"]}) as server:
        for host in ("rebound.example", f"rebound.example:{server.port}", "tail.example"):
            for path in ("/v1/models", "/readyz", "/", "/nope"):
                reply = await ask(server, {"Host": host, "Origin": f"http://{host}"}, path)
                assert refused(reply)
                assert "--allowed-hosts" in reply.json()["error"]["message"]
        for host in ("localhost", f"[::1]:{server.port}", "llamapool", "LLM.example.com", "box.tail.example:443"):
            assert (await ask(server, {"Host": host})).status_code == 200


async def test_with_keys_any_name_will_do(live: GoLive) -> None:
    async with live(server={"api_keys": ["secret"]}) as server:
        assert (await ask(server, {"Host": "llm.example.com"}, "/health")).status_code == 200
        key = {"Authorization": "Bearer secret"}
        assert (await ask(server, {"Host": "llm.example.com", **key})).status_code == 200


# ---- closed

CLOSED = {"closed": True}


async def test_a_closed_server_takes_nothing_of_other_sites(live: GoLive) -> None:
    async with live(server=CLOSED) as server:
        post = server.api.client.post
        assert (await post("/v1/chat/completions", content=CHAT, headers=JSON)).status_code == 200
        for headers in (FOREIGN, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            assert refused(await post("/v1/chat/completions", content=CHAT, headers=JSON | headers))
            assert refused(await ask(server, headers))
        assert refused(await post("/v1/chat/completions", content=CHAT, headers={"Content-Type": "text/plain"}), 415)
        preflight = await server.api.client.options("/v1/models", headers=FOREIGN)
        assert "access-control-allow-origin" not in preflight.headers


async def test_a_closed_server_gives_the_sandboxed_frame_of_the_page_its_scripts(live: GoLive) -> None:
    opaque = {"Origin": "null", "Sec-Fetch-Site": "cross-site"}
    async with live(server=CLOSED) as server:
        found = re.search(r"[^\"']*/main\.js", (await server.api.client.get("/")).text)
        assert found is not None
        for file in ("diagram.html", "diagram.js"):
            path = found.group().replace("main.js", file)
            assert (await server.api.client.get(path, headers=opaque)).status_code == 200


async def test_a_closed_server_serves_the_origins_that_are_listed(live: GoLive) -> None:
    async with live(server=CLOSED | {"cors_origins": "https://ui.example"}) as server:
        reply = await server.api.client.post(
            "/v1/chat/completions", content=CHAT, headers=JSON | {"Origin": "https://ui.example"}
        )
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == "https://ui.example"


# ---- a client that says where it is


FORWARDED = [
    {"X-Forwarded-For": "127.0.0.1"},
    {"X-Forwarded-For": "::1"},
    {"X-Forwarded-Host": "localhost"},
    {"Forwarded": "for=127.0.0.1"},
    {"X-Real-IP": "127.0.0.1"},
    {"Via": "1.1 proxy"},
]


async def test_a_forwarded_request_is_not_of_this_machine(live: GoLive, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn believes X-Forwarded-For from the peers of FORWARDED_ALLOW_IPS, here from all."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    async with live() as server:
        assert (await server.api.client.get("/page/log")).status_code == 200
        for headers in FORWARDED:
            assert refused(await server.api.client.get("/page/log", headers=headers)), headers
            assert (await server.api.client.get("/v1/models", headers=headers)).status_code == 200
