"""The web page's files: who gets them, in which form, and what is there without a page."""

import gzip
import re
from pathlib import Path

import httpx
import pytest

from server.errors import ConfigError
from server.settings import check_files
from tests.api.conftest import Serve, make_settings

OPEN = ("/", "/index.html", "/sw.js", "/manifest.webmanifest", "/favicon.svg", "/_app/version.json")


def module_of(document: str) -> str:
    found = re.search(r'<script type="module" src="([^"]+)">', document)
    assert found is not None
    return found[1]


async def test_the_page_is_public_and_its_data_is_not(serve: Serve) -> None:
    async with serve(server={"api_keys": ["secret"]}) as api:
        for path in OPEN:
            assert (await api.client.get(path)).status_code == 200, path
        main = "/" + module_of((await api.client.get("/")).text)
        assert (await api.client.get(main)).status_code == 200
        for path in ("/props", "/slots", "/_app/nothing.js", "/tools"):
            assert (await api.client.get(path)).status_code == 401, path


async def test_the_page_runs_no_script_that_stands_in_it(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["connect-src"] == "'self' http://127.0.0.1:* http://localhost:*"
    assert not re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=|https?://", page.text)


@pytest.mark.parametrize("origins", [[], ["https://mcp.example.com", "https://*.example.org:8443"], ["*"]])
async def test_the_page_connects_where_the_operator_allows_it(serve: Serve, origins: list[str]) -> None:
    async with serve(server={"ui_connect": origins}) as api:
        policy = (await api.client.get("/")).headers["content-security-policy"]
        assert policy.endswith(" ".join(("; connect-src 'self'", *origins)))


@pytest.mark.parametrize(
    "origin", ["mcp.example.com", "https://a.example/mcp", "https://a.example; script-src *", "'self'"]
)
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="ui_connect"):
        make_settings(server={"ui_connect": [origin]})


async def test_hashed_files_are_kept_and_the_document_is_asked_for_anew(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    main = await client.get("/" + module_of(page.text))
    assert page.headers["cache-control"] == "no-cache"
    assert "immutable" in main.headers["cache-control"]
    for reply in (page, main):
        again = await client.get(reply.request.url, headers={"If-None-Match": f"W/{reply.headers['etag']}"})
        assert (again.status_code, again.content) == (304, b"")
    version = (await client.get("/_app/version.json")).json()["version"]
    assert version in module_of(page.text)


async def test_files_are_compressed_for_who_takes_it(client: httpx.AsyncClient) -> None:
    plain = await client.get("/", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    async with client.stream("GET", "/", headers={"Accept-Encoding": "br;q=1.0, gzip"}) as reply:
        raw = b"".join([chunk async for chunk in reply.aiter_raw()])
    assert reply.headers["content-encoding"] == "gzip"
    assert gzip.decompress(raw) == plain.content
    assert int(reply.headers["content-length"]) == len(raw) < len(plain.content)


async def test_the_page_is_behind_the_prefix_with_relative_addresses(serve: Serve) -> None:
    async with serve(server={"api_prefix": "/llm", "api_keys": ["secret"]}) as api:
        page = await api.client.get("/llm/")
        main = module_of(page.text)
        assert not main.startswith("/")
        assert (await api.client.get(f"/llm/{main}")).status_code == 200
        assert (await api.client.get("/")).status_code == 401


@pytest.mark.parametrize("path", ["/", "/index.html", "/manifest.webmanifest", "/_app/version.json"])
async def test_without_a_page_there_is_none(serve: Serve, path: str) -> None:
    async with serve(server={"ui": False}) as api:
        assert (await api.client.get(path)).status_code == 404
        assert (await api.client.head("/")).status_code == 200  # Ollama's clients look whether anybody is there
        assert "unregister" in (await api.client.get("/sw.js")).text
        assert (await api.client.get("/props")).json()["ui"] is False


async def test_a_folder_of_ones_own_takes_the_pages_place(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>mine")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text("below")
    (tmp_path / "data.bin").write_bytes(b"\0\1")
    async with serve(server={"path": str(tmp_path), "api_keys": ["secret"]}) as api:
        assert (await api.client.get("/")).text == "<!doctype html>mine"
        assert (await api.client.get("/sub/")).text == "below"
        data = await api.client.get("/data.bin")
        assert (data.content, data.headers["content-type"]) == (b"\0\1", "application/octet-stream")
        assert "unregister" in (await api.client.get("/sw.js")).text
        assert (await api.client.get("/favicon.svg")).status_code == 401  # no file, so it is the API's
        assert (await api.client.get("/health")).status_code == 200
        (tmp_path / "tokenize").write_text("a file of that name opens no endpoint")
        assert (await api.client.post("/tokenize", json={"content": "a"})).status_code == 401
        (tmp_path / "sw.js").write_text("my own")
        assert (await api.client.get("/sw.js")).text == "my own"


@pytest.mark.parametrize(
    "path", ["/../secret", "/%2e%2e/secret", "/link", "/sub/..%2f..%2fsecret", "/a%00b", "/circle", "/" + "x" * 5000]
)
async def test_nothing_beside_the_folder_is_served(serve: Serve, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "circle").symlink_to("circle")
    async with serve(server={"path": str(root)}) as api:
        assert (await api.client.get(path)).status_code == 404


def test_a_folder_that_is_not_there_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.path: .*is not a folder"):
        check_files(make_settings(server={"path": str(tmp_path / "nothing")}))


@pytest.mark.parametrize("path", ["/tools", "/cors-proxy"])
async def test_what_would_act_on_the_machine_is_off(client: httpx.AsyncClient, path: str) -> None:
    for reply in (await client.get(path), await client.post(path, json={})):
        assert reply.status_code == 403
        assert reply.json()["error"]["code"] == 403
