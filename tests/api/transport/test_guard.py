"""Cross-origin checks: requests that another site can make a visitor's browser send, DNS rebinding, ``--closed``."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import GoLive, Serve

JSON = {"Content-Type": "application/json"}
FOREIGN = {"Origin": "https://evil.example"}
REBOUND = {"Host": "rebound.example:8080"}
"""A name of an attacker that resolves to this server (DNS rebinding)."""
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


def is_refused(reply: httpx.Response, status: int = 403) -> bool:
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
async def test_changes_from_another_origin_are_refused(serve: Serve, headers: dict[str, str]) -> None:
    async with serve(server={"props": True}) as api:
        for method, path, body in CHANGES:
            reply = await api.client.request(method, path, content=body, headers=JSON | headers)
            assert is_refused(reply), path
            assert "Host" not in headers or "--allowed-hosts" in reply.json()["error"]["message"]
            assert reply.headers.get("access-control-allow-origin", headers.get("Origin")) == headers.get("Origin")
            assert api.pool.states()[0].loaded is not None, path


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
async def test_changes_with_a_content_type_that_needs_no_preflight_are_refused(serve: Serve, kind: str | None) -> None:
    async with serve(server={"props": True}) as api:
        for method, path, body in (each for each in CHANGES if each[0] == "POST" and each[2]):
            headers = {"Content-Type": kind} if kind else {}
            assert is_refused(await api.client.request(method, path, content=body, headers=headers), 415), path
            assert api.pool.states()[0].loaded is not None, path


DENIED = {"error": {"type": "permission_error"}}
CHANGE, DONE = ("POST /props", b"{}"), {"success": True}
UI = {"Origin": "https://ui.example"}
SAME_ORIGIN: tuple[dict[str, str], ...] = (
    {},
    {"Origin": "http://test"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://127.0.0.1:5173", "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
    {"Content-Type": "application/json; charset=utf-8"},
    {"Content-Type": "application/vnd.api+json"},
)
"""Headers of the server's own web UI, of pages on loopback, and of programs."""
BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"}
LLM = {"Host": "llm.example.com", "Origin": "http://llm.example.com"}
PLAIN = {"Content-Type": "text/plain"}
BEARER = {"Authorization": "Bearer secret"}
SERVERS: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "open": (
        {},
        [
            *((*CHANGE, 200, DONE, JSON | headers) for headers in SAME_ORIGIN),
            (*CHANGE, 403, DENIED, {**JSON, **FOREIGN, "Authorization": "Bearer any"}),  # the server has no keys
            ("GET /models?reload=1", None, 403, DENIED, BROWSER),  # over plain HTTP browsers send no Sec-Fetch-Site
            ("GET /models", None, 200, "", BROWSER),
            ("GET /models?reload=1", None, 200),
            ("POST /v1/chat/completions", CHAT, 200, "", {**FOREIGN, **PLAIN, "Sec-Fetch-Site": "cross-site"}),
            ("POST /v1/chat/completions", CHAT, 200, "", {**FOREIGN, **JSON, "Sec-Fetch-Site": "cross-site"}),
            ("GET /v1/models", None, 200, "", {"Host": "llm.example.com"}),  # no loopback address
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
async def test_cross_origin_rules_by_settings(serve: Serve, server: str) -> None:
    settings, rows = SERVERS[server]
    async with serve(server={"props": True, **settings}) as api:
        for row in rows:
            await api.expect(*row)


ALLOWED_HOSTS = ["llm.example.com", "*.tail.example"]
ON_LOOPBACK: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "with listed hosts": (
        {"allowed_hosts": ALLOWED_HOSTS},
        [
            *(
                (f"GET {path}", None, 403, (DENIED, f"'{name}'; list it"), {"Host": host, "Origin": f"http://{host}"})
                for host in ("rebound.example", "Rebound.example:8080", "tail.example.", "a@b.example:80")
                for name in [host if "@" in host else host.lower().partition(":")[0].rstrip(".")]
                for path in ("/v1/models", "/readyz", "/", "/nope")
            ),
            *(
                ("GET /v1/models", None, 200, "", {"Host": host})
                for host in ("localhost", "[::1]:8080", "llamapool", "LLM.example.com", "box.tail.example:443")
            ),
        ],
    ),
    "with a key": (
        {"api_keys": ["secret"]},
        [("GET /health", None, 200, "", LLM), ("GET /v1/models", None, 200, "", LLM | BEARER)],
    ),
    "closed": (
        {"closed": True},
        [
            ("POST /v1/chat/completions", CHAT, 200, "", JSON),
            ("POST /v1/chat/completions", CHAT, 415, {"error": {"type": "invalid_request_error"}}, PLAIN),
            *(
                (request, body, 403, DENIED, JSON | headers)
                for request, body in (("POST /v1/chat/completions", CHAT), ("GET /v1/models", None))
                for headers in (FOREIGN, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"})
            ),
        ],
    ),
    "closed, with a listed origin": (
        {"closed": True, "cors_origins": "https://ui.example"},
        [("POST /v1/chat/completions", CHAT, 200, "", JSON | UI)],
    ),
}


@pytest.mark.parametrize("server", ON_LOOPBACK)
async def test_cross_origin_rules_on_a_loopback_address(live: GoLive, server: str) -> None:
    """Unlike `serve`, a real socket has a loopback address, on which DNS rebinding is refused."""
    settings, rows = ON_LOOPBACK[server]
    async with live(server=settings) as running:
        for row in rows:
            await running.api.expect(*row)


@pytest.mark.parametrize(("origins", "allowed"), [({}, None), ({"cors_origins": UI["Origin"]}, UI["Origin"])])
async def test_cors_header_of_a_closed_server(serve: Serve, origins: dict[str, str], allowed: str | None) -> None:
    async with serve(server={"closed": True, **origins}) as api:
        preflight = await api.client.options("/v1/models", headers=UI)
        assert preflight.headers.get("access-control-allow-origin") == allowed


async def test_erase_without_a_body_needs_no_content_type(serve: Serve, tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"{}"

    async with serve(server={"slot_save_path": str(tmp_path)}) as api:
        assert (await api.client.post("/slots/0?action=erase")).status_code == 200
        assert is_refused(await api.client.post("/slots/0?action=erase", content=chunks()), 415)


async def test_closed_server_serves_scripts_to_the_sandboxed_frame_of_the_web_ui(live: GoLive) -> None:
    opaque = {"Origin": "null", "Sec-Fetch-Site": "cross-site"}
    async with live(server={"closed": True}) as server:
        found = re.search(r"[^\"']*/main\.js", (await server.api.client.get("/")).text)
        assert found is not None
        for file in ("diagram.html", "diagram.js"):
            path = found.group().replace("main.js", file)
            await server.api.expect(f"GET {path}", headers=opaque)


FORWARDED = [
    *({"X-Forwarded-For": "127.0.0.1"}, {"X-Forwarded-For": "::1"}, {"X-Forwarded-Host": "localhost"}),
    *({"Forwarded": "for=127.0.0.1"}, {"X-Real-IP": "127.0.0.1"}, {"Via": "1.1 proxy"}),
]


async def test_forwarded_request_is_not_treated_as_local(live: GoLive, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn trusts X-Forwarded-For from the peers in FORWARDED_ALLOW_IPS, here from all."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    async with live() as server:
        await server.api.expect("GET /page/log")
        for headers in FORWARDED:
            await server.api.expect("GET /page/log", None, 403, DENIED, headers)
            await server.api.expect("GET /v1/models", headers=headers)
