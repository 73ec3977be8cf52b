"""Files of the web UI, and its endpoints for the operator: log, bodies, pins and benchmark."""

import gzip
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import FileResponse

from server.dialects.fields import parse
from server.errors import ConfigError, InvalidRequest
from server.settings import check_files
from server.web import bench
from server.web.bench import SCENARIOS, Address, BenchBody, measured
from tests.api.conftest import Api, Serve, make_settings


def module_path(document: str) -> str:
    found = re.search(r'<script type="module" src="([^"]+)">', document)
    assert found is not None
    return found[1]


async def test_content_security_policy_allows_no_inline_script_and_the_configured_origins(serve: Serve) -> None:
    for origins in (None, ["https://mcp.example.com", "https://*.example.org:8443"], [], ["*"]):
        async with serve(server={} if origins is None else {"ui_connect": origins}) as api:
            page = await api.client.get("/")
        policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        allowed = ["http://127.0.0.1:*", "http://localhost:*"] if origins is None else origins
        assert policy["connect-src"] == " ".join(("'self'", *allowed))
        assert not re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=|https?://", page.text)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"ui_connect": ["mcp.example.com"]}, "ui_connect"),
        ({"ui_connect": ["https://a.example/mcp"]}, "ui_connect"),
        ({"ui_connect": ["https://a.example; script-src *"]}, "ui_connect"),
        ({"ui_connect": ["'self'"]}, "ui_connect"),
        ({"path": "/nowhere/at/all"}, r"server\.path: .*is not a folder"),
    ],
)
def test_invalid_web_ui_settings_are_refused_at_the_start(server: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=message):
        check_files(make_settings(server=server))


async def test_hashed_files_are_immutable_and_the_document_is_revalidated(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    main = await client.get("/" + module_path(page.text))
    assert page.headers["cache-control"] == "no-cache"
    assert "immutable" in main.headers["cache-control"]
    for reply in (page, main):
        again = await client.get(reply.request.url, headers={"If-None-Match": f"W/{reply.headers['etag']}"})
        assert (again.status_code, again.content) == (304, b"")
    version = (await client.get("/_app/version.json")).json()["version"]
    assert version in module_path(page.text)


async def test_files_are_compressed_if_the_client_accepts_gzip(client: httpx.AsyncClient) -> None:
    main = "/" + module_path((await client.get("/")).text)
    plain = await client.get(main, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    async with client.stream("GET", main, headers={"Accept-Encoding": "br;q=1.0, gzip"}) as reply:
        raw = b"".join([chunk async for chunk in reply.aiter_raw()])
    assert reply.headers["content-encoding"] == "gzip"
    assert gzip.decompress(raw) == plain.content
    assert int(reply.headers["content-length"]) == len(raw) < len(plain.content)


async def test_web_ui_under_a_prefix_uses_relative_urls(serve: Serve) -> None:
    async with serve(server={"api_prefix": "/llm", "api_keys": ["secret"]}) as api:
        page = await api.client.get("/llm/")
        main = module_path(page.text)
        assert not main.startswith("/")
        assert (await api.client.get(f"/llm/{main}")).status_code == 200
        assert (await api.client.get("/")).status_code == 401


async def test_configured_folder_replaces_the_web_ui(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>mine")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text("below")
    (tmp_path / "data.bin").write_bytes(b"\0\1")
    async with serve(server={"path": str(tmp_path), "api_keys": ["secret"]}) as api:
        await api.expect("GET /", part="<!doctype html>mine")
        await api.expect("GET /sub/", part="below")
        data = await api.client.get("/data.bin")
        assert (data.content, data.headers["content-type"]) == (b"\0\1", "application/octet-stream")
        await api.expect("GET /sw.js", part="unregister")
        await api.expect("GET /favicon.svg", None, 401)  # no such file: the API handles the path
        await api.expect("GET /health")
        (tmp_path / "tokenize").write_text("a file with the path of an endpoint needs no key")
        await api.expect("POST /tokenize", {"content": "a"}, 401)
        (tmp_path / "sw.js").write_text("my own")
        await api.expect("GET /sw.js", part="my own")


async def test_file_of_a_folder_is_streamed_and_supports_ranges(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may be larger than the memory, so it must not be read as a whole."""
    (tmp_path / "large.txt").write_bytes(b"0123456789" * 20_000)
    monkeypatch.setattr(Path, "read_bytes", None)
    async with serve(server={"path": str(tmp_path)}) as api:
        whole = await api.client.get("/large.txt")
        assert (len(whole.content), whole.headers["content-type"]) == (200_000, "text/plain; charset=utf-8")
        part = await api.client.get("/large.txt", headers={"Range": "bytes=199995-"})
        assert (part.status_code, part.content) == (206, b"56789")
        again = await api.client.get("/large.txt", headers={"If-None-Match": whole.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        (tmp_path / "data.json.gz").write_bytes(gzip.compress(b"{}"))
        assert (await api.client.get("/data.json.gz")).headers["content-type"] == "application/gzip"
        monkeypatch.setattr(FileResponse, "_open_file", None)
        head = await api.client.head("/large.txt")
        assert (head.status_code, head.headers["content-length"], head.content) == (200, "200000", b"")


async def test_files_outside_the_folder_are_not_served(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "circle").symlink_to("circle")
    escapes = ("/../secret", "/%2e%2e/secret", "/link", "/sub/..%2f..%2fsecret", "/a%00b", "/circle", "/" + "x" * 5000)
    async with serve(server={"path": str(root)}) as api:
        for path in escapes:
            await api.expect(f"GET {path}", None, 404)


HI = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": HI, "max_tokens": 3}
OWN = Address("this", "http://127.0.0.1:1", "demo", "secret")


async def test_log_endpoint_returns_the_lines_after_a_number(client: httpx.AsyncClient) -> None:
    logging.getLogger("server.test").warning("a line of %s", "words")
    lines = (await client.get("/page/log")).json()["lines"]
    found = next(line for line in lines if line["origin"] == "test")
    assert (found["level"], found["text"]) == ("W", "a line of words")
    logging.getLogger("server.test").warning("another")
    later = (await client.get("/page/log", params={"after": found["number"]})).json()["lines"]
    assert [line["text"] for line in later if line["origin"] == "test"] == ["another"]


async def test_bodies_are_stored_only_with_log_bodies(serve: Serve) -> None:
    for on in (False, True):
        async with serve(server={"log_bodies": on}) as api:
            assert (await api.client.get("/page/config")).json()["log_bodies"] is on
            headers = {"X-Request-Id": "one"}
            reply = await api.client.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers=headers)
            found = await api.client.get("/page/bodies", params={"id": "one"})
            assert found.status_code == (200 if on else 404)
            if on:
                assert '"Hi"' in found.json()["request"]["text"]
                assert found.json()["reply"]["text"] == reply.text
            assert (await api.client.get("/page/bodies", params={"id": "two"})).status_code == 404


async def test_model_is_pinned_and_unpinned(api: Api) -> None:
    for pinned in (True, False):
        await api.expect("POST /models/pin", {"model": "demo", "pinned": pinned})
        assert (await api.client.get("/models")).json()["data"][0].get("pinned", False) is pinned
    await api.expect("POST /models/pin", {"model": "demo", "pinned": 1}, 400)
    assert (await api.client.post("/models/pin", json={"model": "nobody"})).status_code in (400, 404)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "scenarios"),
        ({"scenarios": []}, "scenarios"),
        ({"scenarios": ["contended"]}, "scenarios.0"),
        ({"scenarios": ["long", "rate"]}, "scenarios.1"),
        ({"scenarios": ["long"], "parallel": 0}, "parallel"),
        ({"scenarios": ["long"], "parallel": True}, "parallel"),
        ({"scenarios": ["long"], "scale": 2}, "scale"),
        ({"scenarios": ["long"], "other": "ftp://host"}, "other"),
        ({"scenarios": ["long"], "other": "http://host", "other_key": 1}, "other_key"),
    ],
)
def test_invalid_benchmark_request_names_the_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse(BenchBody, body)
    assert raised.value.param == field


def test_web_ui_offers_all_remote_scenarios_of_the_benchmark() -> None:
    from server.bench.scenarios import SCENARIOS as KNOWN

    assert {scenario.name for scenario in KNOWN if not scenario.local} == {*SCENARIOS}


async def test_benchmark_measures_both_servers_with_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[list[str], str]] = []

    async def run(arguments: list[str], key: str) -> tuple[str, str]:
        runs.append((arguments, key))
        if "http://other" in arguments:
            return "", "llamapool bench: nobody answers"
        return '{"scenarios": [{"failure": null, "rounds": [{"tok/s": 5.0}]}]}', ""

    monkeypatch.setattr(bench, "_run", run)
    body = {"scenarios": ["prefix", "long"], "other": "http://other", "other_key": "k"}
    results = [event async for event in measured(parse(BenchBody, body), OWN) if "scenario" in event]
    assert results[:2] == [
        {"scenario": "prefix", "address": "this", "figures": {"tok/s": 5.0}},
        {"scenario": "prefix", "address": "other", "failure": "nobody answers"},
    ]
    assert len(results) == 4
    assert [key for _, key in runs] == ["secret", "k", "secret", "k"]
    assert all("secret" not in arguments for arguments, _ in runs)
    seeds = [arguments[arguments.index("--seed") + 1] for arguments, _ in runs]
    assert seeds[0] == seeds[1]
    assert seeds[2] == seeds[3]
