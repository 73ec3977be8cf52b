"""What a web page can't make a visitor's browser do, and what it can as in llama-server."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import GoLive, Live, Serve
from tests.api.management.test_models import TWO

JSON = {"Content-Type": "application/json"}
FOREIGN = {"Origin": "https://evil.example"}
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
    ],
    ids=str,
)
async def test_a_page_of_another_site_changes_nothing(serve: Serve, headers: dict[str, str]) -> None:
    async with serve(server={"props": True}) as api:
        for method, path, body in CHANGES:
            reply = await api.client.request(method, path, content=body, headers=JSON | headers)
            assert refused(reply), path
            assert reply.headers.get("access-control-allow-origin", headers.get("Origin")) == headers.get("Origin")
            assert api.pool.states()[0].loaded is not None, path


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
async def test_a_body_that_a_page_may_send_unasked_changes_nothing(serve: Serve, kind: str | None) -> None:
    async with serve(server={"props": True}) as api:
        for method, path, body in (each for each in CHANGES if each[0] == "POST" and each[2]):
            headers = {"Content-Type": kind} if kind else {}
            assert refused(await api.client.request(method, path, content=body, headers=headers), 415), path
            assert api.pool.states()[0].loaded is not None, path


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://test"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://127.0.0.1:5173", "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Content-Type": "application/json; charset=utf-8"},
        {"Content-Type": "application/vnd.api+json"},
    ],
    ids=str,
)
async def test_the_servers_own_pages_and_programs_may_change_it(serve: Serve, headers: dict[str, str]) -> None:
    async with serve(models=TWO) as api:
        reply = await api.client.post("/models/unload", content=b'{"model": "first"}', headers=JSON | headers)
        assert (reply.status_code, reply.json()) == (200, {"success": True})


async def test_origins_that_are_listed_may(serve: Serve) -> None:
    async with serve(models=TWO, server={"cors_origins": "https://ui.example"}) as api:
        for origin, status in (("https://ui.example", 200), ("https://evil.example", 403)):
            headers = JSON | {"Origin": origin}
            reply = await api.client.post("/models/unload", content=b'{"model": "first"}', headers=headers)
            assert reply.status_code == status


async def test_a_key_may_come_from_anywhere_in_any_form(serve: Serve) -> None:
    headers = {**FOREIGN, "Content-Type": "text/plain", "Authorization": "Bearer secret"}
    async with serve(models=TWO, server={"api_keys": ["secret"]}) as api:
        reply = await api.client.post("/models/unload", content=b'{"model": "first"}', headers=headers)
        assert reply.status_code == 200


async def test_a_key_that_nobody_asked_for_opens_nothing(serve: Serve) -> None:
    async with serve(models=TWO) as api:
        headers = {**JSON, **FOREIGN, "Authorization": "Bearer any"}
        assert refused(await api.client.post("/models/unload", content=b'{"model": "first"}', headers=headers))


async def test_an_erase_without_a_body_needs_no_type(serve: Serve, tmp_path: Path) -> None:
    async with serve(server={"slot_save_path": str(tmp_path)}) as api:
        assert (await api.client.post("/slots/0?action=erase")).status_code == 200
        chunked = await api.client.post("/slots/0?action=erase", content=_chunks())
        assert refused(chunked, 415)


async def _chunks() -> AsyncIterator[bytes]:
    yield b"{}"


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
async def test_pages_may_generate_as_with_llama_server(serve: Serve, kind: str) -> None:
    async with serve() as api:
        headers = {**FOREIGN, "Content-Type": kind, "Sec-Fetch-Site": "cross-site"}
        assert (await api.client.post("/v1/chat/completions", content=CHAT, headers=headers)).status_code == 200


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


async def test_elsewhere_any_name_will_do(serve: Serve) -> None:
    async with serve() as api:  # its address is no loopback one
        assert (await api.client.get("/v1/models", headers={"Host": "llm.example.com"})).status_code == 200


async def test_elsewhere_a_page_with_a_strangers_name_changes_nothing(serve: Serve) -> None:
    rebound = {"Host": "rebound.example:8080", "Origin": "http://rebound.example:8080"}
    async with serve(server={"props": True}) as api:
        for method, path, body in CHANGES:
            for headers in (rebound, {"Host": "rebound.example", "Sec-Fetch-Site": "same-origin"}):
                reply = await api.client.request(method, path, content=body, headers=JSON | headers)
                assert refused(reply), path
                assert "--allowed-hosts" in reply.json()["error"]["message"]
            assert api.pool.states()[0].loaded is not None, path


async def test_elsewhere_the_page_of_a_listed_name_may_change_it(serve: Serve) -> None:
    async with serve(models=TWO, server={"allowed_hosts": ["llm.example.com"]}) as api:
        own = {"Host": "llm.example.com", "Origin": "http://llm.example.com"}
        reply = await api.client.post("/models/unload", content=b'{"model": "first"}', headers=JSON | own)
        assert reply.status_code == 200


async def test_a_browser_that_says_nothing_of_its_page_reloads_nothing(serve: Serve) -> None:
    async with serve() as api:  # so it is with plain http where the address is no loopback one
        browser = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"}
        assert refused(await api.client.get("/models?reload=1", headers=browser))
        assert (await api.client.get("/models", headers=browser)).status_code == 200
        assert (await api.client.get("/models?reload=1")).status_code == 200


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


async def test_a_closed_server_serves_the_origins_that_are_listed(live: GoLive) -> None:
    async with live(server=CLOSED | {"cors_origins": "https://ui.example"}) as server:
        reply = await server.api.client.post(
            "/v1/chat/completions", content=CHAT, headers=JSON | {"Origin": "https://ui.example"}
        )
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == "https://ui.example"


async def test_a_closed_server_without_keys_serves_this_machine_only(serve: Serve) -> None:
    async with serve(server=CLOSED) as api:  # its address is no loopback one
        for path in ("/v1/models", "/health"):
            assert refused(await api.client.get(path))
    async with serve(server=CLOSED | {"api_keys": ["secret"]}) as api:
        assert (await api.client.get("/health")).status_code == 200
        assert (await api.client.get("/v1/models", headers={"X-Api-Key": "secret"})).status_code == 200


# ---- the administration's own address


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", "/metrics"), ("GET", "/slots"), ("HEAD", "/slots"), ("GET", "/models?reload=1")),
        *(
            ("POST", "/models/unload"),
            ("POST", "/lora-adapters"),
            ("POST", "/props"),
            ("POST", "/slots/0?action=erase"),
        ),
    ],
)
async def test_administration_is_answered_at_its_own_port_alone(serve: Serve, method: str, path: str) -> None:
    async with serve(server={"admin_port": 9000, "metrics": True, "props": True}) as api:
        body = b"[]" if "lora" in path else b'{"model": "demo"}'
        content: dict[str, Any] = {} if method in ("GET", "HEAD") else {"content": body, "headers": JSON}
        refused = await api.client.request(method, path, **content)
        assert refused.status_code == 404
        assert (await api.client.request(method, f"http://test:9000{path}", **content)).status_code != 404
        for base in ("", "http://test:9000"):
            for read in ("/v1/models", "/health", "/props"):
                assert (await api.client.get(base + read)).status_code in (200, 503)


async def test_generation_is_answered_at_both_ports(serve: Serve) -> None:
    async with serve(server={"admin_port": 9000}) as api:
        for base in ("", "http://test:9000"):
            reply = await api.client.post(base + "/v1/chat/completions", content=CHAT, headers=JSON)
            assert reply.status_code == 200


# ---- a client that says where it is


FORWARDED = [
    {"X-Forwarded-For": "127.0.0.1"},
    {"X-Forwarded-For": "::1"},
    {"X-Forwarded-Host": "localhost"},
    {"Forwarded": "for=127.0.0.1"},
    {"X-Real-IP": "127.0.0.1"},
    {"Via": "1.1 proxy"},
]


@pytest.mark.parametrize("headers", FORWARDED, ids=str)
async def test_a_forwarded_request_is_not_of_this_machine(
    live: GoLive, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    """uvicorn believes X-Forwarded-For from the peers of FORWARDED_ALLOW_IPS, here from all."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    async with live() as server:
        assert (await server.api.client.get("/page/log")).status_code == 200
        assert refused(await server.api.client.get("/page/log", headers=headers))
        assert (await server.api.client.get("/v1/models", headers=headers)).status_code == 200


async def test_a_forwarded_address_is_not_believed_of_another_machine(serve: Serve) -> None:
    """As uvicorn makes the scope under FORWARDED_ALLOW_IPS=*: the client's claim has replaced its address."""
    async with serve() as api:
        claimed = httpx.ASGITransport(api.app, client=("127.0.0.1", 0))
        async with httpx.AsyncClient(transport=claimed, base_url="http://192.0.2.1") as client:
            assert refused(
                await client.post("/models", json={"model": "o/n"}, headers={"X-Forwarded-For": "127.0.0.1"})
            )
