"""Models of the hub over HTTP: download, cancel, remove, reload and Ollama's pull, with a fake hub."""

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from server.app import create_app
from server.errors import ConfigError
from server.hub.hub import HubFetcher
from server.pool.events import DownloadEnded, DownloadProgress, PoolEvent, StatusChanged, Subscription
from server.pool.state import Status
from server.routes.models import event_object
from server.settings import load_settings
from tests.api.conftest import Api, running, until
from tests.api.streams import posting
from tests.support.fake_hub import FakeHub, fake_hub
from tests.support.fakes import FakeLoader
from tests.support.pool_integrity import check_pool

REPOSITORY = "org/model-GGUF"
MODEL_ID = f"{REPOSITORY}:Q8_0"
GGUF = b"GGUF" + bytes(50_000)
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture
def remote() -> Iterator[FakeHub]:
    files = {"model-Q8_0.gguf": GGUF, "model-F16.gguf": GGUF + b"f16"}
    with fake_hub({REPOSITORY: files, "org/draft": {"draft-F16.gguf": GGUF + b"d"}}) as hub:
        yield hub


@asynccontextmanager
async def serve_hub(
    remote: FakeHub, folder: Path, *arguments: str, address: str = "127.0.0.1", **env: str
) -> AsyncIterator[Api]:
    """Run ``llamapool ARGUMENTS`` with a fake loader. Without arguments it serves the models of the cache."""
    variables = {"LLAMA_CACHE": str(folder / "cache"), "MODEL_ENDPOINT": remote.url, **env}
    config = [] if arguments else ["--models-preset", str(folder / "empty.ini")]
    (folder / "empty.ini").touch()
    reread = partial(load_settings, [*arguments, *config], variables)
    app = create_app(reread(), loader=FakeLoader(), reread=reread)
    async with running(app, FakeLoader(), address=address) as api:
        yield api
        check_pool(api.pool)


async def ids(api: Api, query: str = "") -> list[str]:
    return [model["id"] for model in (await api.expect("GET /models" + query)).json()["data"]]


async def until_download_ended(events: Subscription) -> list[PoolEvent]:
    """Collect the events until a download has ended."""
    seen: list[PoolEvent] = []
    async for event in events:
        seen.append(event)
        if isinstance(event, DownloadEnded):
            return seen
    raise AssertionError("the pool closed")


async def start_download(api: Api, name: str, events: Subscription) -> None:
    """Start a download and wait for its first bytes."""
    assert (await api.client.post("/models", json={"model": name})).status_code == 200
    async for event in events:
        if isinstance(event, DownloadProgress):
            return


async def download(api: Api, name: str = MODEL_ID) -> list[PoolEvent]:
    with api.pool.subscribe() as events:
        await api.expect("POST /models", {"model": name}, 200, {"success": True})
        return await until_download_ended(events)


async def chat(api: Api, model: str, status: int = 200, part: Any = "") -> httpx.Response:
    return await api.expect("POST /v1/chat/completions", {"model": model, **CHAT}, status, part)


async def remove(api: Api, model: str, status: int = 200, part: Any = "") -> httpx.Response:
    return await api.expect(f"DELETE /models?model={quote(model)}", None, status, part)


async def test_model_is_downloaded_served_and_removed(remote: FakeHub, tmp_path: Path) -> None:
    async with serve_hub(remote, tmp_path) as api:
        assert await ids(api) == []
        events = [event_object(event) for event in await download(api)]
        assert events[0] == {"model": MODEL_ID, "event": "model_status", "data": {"status": "downloading"}}
        ((url, file),) = events[1]["data"]["progress"].items()
        assert (events[1]["event"], url) == ("download_progress", remote.url + remote.content_requests()[0].path)
        assert file == {"done": 0, "total": len(GGUF)}
        assert {"model": "*", "event": "models_reload"} in events
        assert events[-1] == {"model": MODEL_ID, "event": "download_finished"}
        (listed,) = (await api.client.get("/models")).json()["data"]
        assert (listed["id"], listed["source"], listed["can_remove"]) == (MODEL_ID, "cache", True)
        assert listed["status"]["preset"] == f"[{MODEL_ID}]\nhf-repo = {MODEL_ID}\n"
        assert listed["status"]["args"] == ["llamapool", "--hf-repo", MODEL_ID]
        await chat(api, MODEL_ID)
        await api.expect("POST /models", {"model": MODEL_ID}, 400, "already exists")
        await remove(api, MODEL_ID, 200, {"success": True})
        assert await ids(api) == []
        assert not list(tmp_path.rglob("*.gguf"))  # noqa: ASYNC240 (no other task runs)
        await remove(api, MODEL_ID, 404)


async def test_downloaded_model_is_found_by_repository_and_by_quantization(remote: FakeHub, tmp_path: Path) -> None:
    """The quantization is not case-sensitive. Chat, model list and removal accept both, also after a restart."""
    async with serve_hub(remote, tmp_path) as api:
        await download(api, REPOSITORY)
        assert await ids(api) == [MODEL_ID]
        for name in (REPOSITORY, MODEL_ID.replace("Q8_0", "q8_0")):
            await chat(api, name, 200, {"model": MODEL_ID})
        loaded = api.pool.state(MODEL_ID).loaded
        await download(api, REPOSITORY + ":F16")
        assert api.pool.state(REPOSITORY).loaded is loaded  # another download does not reload it
    async with serve_hub(remote, tmp_path) as api:
        found = (await api.client.get(f"/v1/models/{REPOSITORY}")).json()
        assert (found["id"], found["aliases"]) == (MODEL_ID, [MODEL_ID, REPOSITORY])
        await remove(api, REPOSITORY, 400, f"one of several: {REPOSITORY}:F16, {MODEL_ID}")
        await remove(api, MODEL_ID)
        await remove(api, REPOSITORY)
        assert await ids(api) == []


async def test_pull_of_a_cached_model_needs_no_hub(remote: FakeHub, tmp_path: Path) -> None:
    """It accepts each name of the model, and a key that is limited to this model."""
    async with serve_hub(remote, tmp_path) as api:
        await download(api)
    del remote.repositories[REPOSITORY]
    names = (REPOSITORY, f"{REPOSITORY}:latest", f"hf.co/{REPOSITORY}", MODEL_ID)
    async with serve_hub(remote, tmp_path) as api:
        for name in names:
            assert await pull(api, model=name) == [{"status": "success"}], name
        assert (await api.client.post("/api/pull", json={"model": "org/none"})).status_code >= 400
    keys = tmp_path / "keys.yaml"
    digest = hashlib.sha256(b"secret").hexdigest()
    keys.write_text(f"keys:\n  - {{name: one, hash: 'sha256:{digest}', scopes: [models], models: ['{MODEL_ID}']}}\n")
    async with serve_hub(remote, tmp_path, LLAMAPOOL_SERVER__KEYS_FILE=str(keys)) as api:
        api.client.headers["Authorization"] = "Bearer secret"
        for name in names:
            assert await pull(api, model=name, stream=False) == [{"status": "success"}], name
        for name in (f"{REPOSITORY}:F16", "org/none"):
            assert (await api.client.post("/api/pull", json={"model": name})).status_code == 403, name


async def test_running_download_is_listed_and_can_be_cancelled(remote: FakeHub, tmp_path: Path) -> None:
    remote.hold = threading.Event()
    async with serve_hub(remote, tmp_path) as api:
        with api.pool.subscribe() as events:
            await start_download(api, REPOSITORY, events)
            (listed,) = (await api.client.get("/models")).json()["data"]
            assert listed["status"]["value"] == "downloading"
            assert len(listed["progress"]) == 1
            await chat(api, REPOSITORY, 503, "is being downloaded")
            await api.expect("POST /models/unload", {"model": REPOSITORY})
            assert (await until_download_ended(events))[-1] == DownloadEnded(REPOSITORY, ok=False)
        assert await ids(api) == []


async def test_removal_does_not_cancel_a_download_of_the_same_repository(remote: FakeHub, tmp_path: Path) -> None:
    async with serve_hub(remote, tmp_path) as api:
        await download(api, f"{REPOSITORY}:F16")
        remote.hold = threading.Event()
        with api.pool.subscribe() as events:
            await start_download(api, MODEL_ID, events)
            assert await asyncio.to_thread(remote.holding.wait, 60)
            n_requests = len(remote.content_requests())
            await remove(api, f"{REPOSITORY}:F16", 200, {"success": True})
            remote.hold.set()
            assert (await until_download_ended(events))[-1] == DownloadEnded(MODEL_ID, ok=True)
        assert len(remote.content_requests()) == n_requests
        assert await ids(api) == [MODEL_ID]


async def test_download_of_an_unknown_or_invalid_name_is_refused(remote: FakeHub, tmp_path: Path) -> None:
    remote.repositories |= {"org/plain": {"m.gguf": GGUF}, "org/folder": {"Q8_0/m-00001-of-00001.gguf": GGUF}}
    async with serve_hub(remote, tmp_path) as api:
        for name, status, message in (
            ("../../etc/passwd", 400, "owner/name"),
            ("http://127.0.0.1:1/x/y", 400, "owner/name"),
            ("", 400, "non-empty"),
            (5, 400, "non-empty"),
            ("org/none", 404, "is not on the hub"),
            (REPOSITORY + ":Q2_K", 404, "its GGUF files"),
            ("org/plain", 400, "'org/plain': m.gguf has no quantization in its name; serve it with -hf org/plain"),
            ("org/folder", 400, "'org/folder': Q8_0/m-00001-of-00001.gguf has no quantization"),
        ):
            await api.expect("POST /models", {"model": name}, status, message)
    async with serve_hub(remote, tmp_path, "-hf", MODEL_ID) as api:
        await api.expect("POST /models", {"model": f"{REPOSITORY}:F16"}, 501, "--models-cache")


async def test_failed_download_adds_no_model_and_can_be_retried(remote: FakeHub, tmp_path: Path) -> None:
    remote.wrong = GGUF[:-1] + b"x"
    async with serve_hub(remote, tmp_path) as api:
        assert (await download(api))[-1] == DownloadEnded(MODEL_ID, ok=False)
        assert await ids(api) == []
        assert "error" in (await pull(api, model=MODEL_ID))[-1]
        await api.expect("POST /api/pull", {"model": MODEL_ID, "stream": False}, 503, '{"error":')
        remote.wrong = b""
        assert (await download(api))[-1] == DownloadEnded(MODEL_ID, ok=True)


@pytest.mark.parametrize(
    ("address", "arguments", "rows"),
    [
        ("192.0.2.7", [], [({}, 403)]),
        ("::ffff:127.0.0.1", [], [({}, 200)]),
        (
            "127.0.0.1",
            [],
            [
                ({"sec-fetch-site": "cross-site"}, 403),
                ({"origin": "http://rebound.example:8080"}, 403),
                ({"origin": "null"}, 403),
                ({"sec-fetch-site": "same-origin"}, 200),
            ],
        ),
        ("192.0.2.7", ["--api-key", "key"], [({}, 401), ({"authorization": "Bearer key"}, 200)]),
    ],
)
async def test_downloads_and_removals_need_a_key_or_a_same_origin_loopback_client(
    remote: FakeHub, tmp_path: Path, address: str, arguments: list[str], rows: list[tuple[dict[str, str], int]]
) -> None:
    arguments = [*arguments, "--models-preset", str(tmp_path / "empty.ini")] if arguments else []
    async with serve_hub(remote, tmp_path, *arguments, address=address) as api:
        for headers, status in rows:
            client, body = api.client, {"model": MODEL_ID}
            replies = [await client.post("/models", json=body, headers=headers)]
            if status != 200:
                replies.append(await client.post("/api/pull", json=body, headers=headers))
                replies.append(await client.request("DELETE", "/models", params=body, headers=headers))
            assert {reply.status_code for reply in replies} == {status}, headers


async def test_offline_server_sends_no_requests_to_the_hub(remote: FakeHub, tmp_path: Path) -> None:
    async with serve_hub(remote, tmp_path) as api:
        await download(api)
    remote.requests.clear()
    async with serve_hub(remote, tmp_path, "-hf", MODEL_ID, "--offline") as api:
        await api.settled()
        assert (await api.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert remote.requests == []
    async with serve_hub(remote, tmp_path, "--offline", "--models-preset", str(tmp_path / "empty.ini")) as api:
        assert await ids(api, "?reload=1") == [MODEL_ID]
        assert remote.requests == []
        assert (await download(api, f"{REPOSITORY}:F16"))[-1] == DownloadEnded(f"{REPOSITORY}:F16", ok=True)
    remote.requests.clear()
    async with serve_hub(remote, tmp_path, "-hf", MODEL_ID, "--models-cache", HF_HUB_OFFLINE="1") as api:
        await api.expect("POST /models", {"model": f"{REPOSITORY}:Q2_K"}, 501, "HF_HUB_OFFLINE")
    assert remote.requests == []


async def test_hf_repo_flag_downloads_model_and_draft_before_loading(remote: FakeHub, tmp_path: Path) -> None:
    remote.hold = threading.Event()
    arguments = ("-hf", REPOSITORY, "-hfd", "org/draft", "-a", "mine")
    async with serve_hub(remote, tmp_path, *arguments, HF_TOKEN="hf_secret") as api:
        statuses: list[Status] = []
        with api.pool.subscribe() as events:
            assert (await api.client.get("/health")).status_code == 503
            remote.hold.set()
            async for event in events:
                if isinstance(event, StatusChanged):
                    statuses.append(event.status)
                if statuses[-1:] == [Status.READY]:
                    break
        assert statuses == [Status.UNLOADED, Status.LOADING, Status.READY]
        spec = api.pool.state("mine").spec
        assert spec.draft is not None
        assert (spec.path.name, spec.draft.path.name) == ("model-Q8_0.gguf", "draft-F16.gguf")
        assert (await api.client.get("/health")).status_code == 200
    assert {request.token for request in remote.requests} == {"hf_secret"}


async def test_reload_reads_preset_and_cache_and_keeps_unchanged_models(remote: FakeHub, tmp_path: Path) -> None:
    preset, file = tmp_path / "p.ini", tmp_path / "file.gguf"
    file.write_bytes(GGUF)
    preset.write_text(f"[a]\nhf-repo = {MODEL_ID}\n[b]\nmodel = {file}\n[none]\nhf-repo = org/none\n")
    async with serve_hub(remote, tmp_path, "--models-preset", str(preset)) as api:
        await api.expect("GET /props?model=a&autoload=false", None, 400, "not loaded")
        for path in ("/v1/chat/completions", "/tokenize"):
            body = {"model": "a", "content": "x", **CHAT}
            await api.expect(f"POST {path}?autoload=false", body, 400, "not loaded")
        assert remote.content_requests() == []
        await chat(api, "none", 503, "is not on the hub")
        with await api.pool.acquire("a"):
            pass
        preset.write_text(f"\n[a]\nhf-repo = {MODEL_ID}\n[c]\nmodel = {file}\n")
        assert await ids(api) == ["a", "b", "none"]
        assert await ids(api, "?reload=1") == [MODEL_ID, "a", "c"]
        assert api.pool.state("a").status is Status.READY  # unchanged, so not unloaded
        preset.write_text(f"[a]\nhf-repo = {MODEL_ID}\nctx-size = 64\n")
        await ids(api, "?reload=1")
        assert api.pool.state("a").status is Status.UNLOADED
        preset.write_text("[a]\nctx-sze = 64\n")
        await api.expect("GET /models?reload=1", None, 503, "did you mean 'ctx-size'")
        assert await ids(api) == [MODEL_ID, "a"]
        await remove(api, "a", 400, "not removable")
    preset.write_text(f"[*]\ndedup-cache-models = 1\n[a]\nhf-repo = {REPOSITORY}\n")
    async with serve_hub(remote, tmp_path, "--models-preset", str(preset)) as api:
        assert await ids(api) == ["a"]
        assert [model["name"] for model in (await api.expect("GET /api/tags")).json()["models"]] == ["a"]
        await chat(api, MODEL_ID)


async def test_repository_with_a_preset_serves_the_models_of_the_preset(remote: FakeHub, tmp_path: Path) -> None:
    remote.repositories["org/preset"] = {"preset.ini": f"[x]\nhf-repo = {MODEL_ID}\n".encode()}
    async with serve_hub(remote, tmp_path, "-hf", "org/preset") as api:
        assert await ids(api) == ["x"]
        await chat(api, "x")
        await api.expect("POST /models", {"model": "org/preset"}, 400, "is a preset")


@pytest.mark.parametrize("line", ["model = /m.gguf", "LLAMA_ARG_CHAT_TEMPLATE_FILE = /etc/passwd", "lora = a.gguf"])
def test_preset_of_a_repository_names_no_local_files(remote: FakeHub, tmp_path: Path, line: str) -> None:
    variables = {"LLAMA_CACHE": str(tmp_path), "MODEL_ENDPOINT": remote.url}
    harmless = f"[x]\nhf-repo = {MODEL_ID}\ntemp = 0.5\nload-on-startup = true\n"
    remote.repositories |= {"org/good": {"preset.ini": harmless.encode()}}
    remote.repositories |= {"org/bad": {"preset.ini": f"{harmless}{line}\n".encode()}}
    (warning,) = load_settings(["-hf", "org/good"], variables).skipped
    assert "the preset of 'org/good' chooses the models; use only presets that you trust" in warning
    with pytest.raises(ConfigError, match=r"preset.ini:5: \[x\] '.*' is a path on this machine"):
        load_settings(["-hf", "org/bad"], variables)


async def pull(api: Api, **fields: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await api.expect("POST /api/pull", fields)).text.splitlines()]


async def test_ollama_pull_and_delete(remote: FakeHub, tmp_path: Path) -> None:
    async with serve_hub(remote, tmp_path) as api:
        lines = await pull(api, model=f"hf.co/{MODEL_ID}")
        assert (lines[0], lines[-1]) == ({"status": "pulling manifest"}, {"status": "success"})
        assert lines[-2].items() >= {"total": len(GGUF), "completed": len(GGUF)}.items()
        assert await ids(api) == [MODEL_ID]
        assert await pull(api, model=f"{REPOSITORY}:F16", stream=False) == [{"status": "success"}]
        assert (await api.expect("DELETE /api/delete", {"model": f"hf.co/{MODEL_ID}"})).content == b""
        assert await ids(api) == [f"{REPOSITORY}:F16"]


async def test_configured_model_is_downloaded_by_a_pull(remote: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "p.ini").write_text(f"[a]\nhf-repo = {MODEL_ID}\n")
    async with serve_hub(remote, tmp_path, "--models-preset", str(tmp_path / "p.ini"), "--no-models-cache") as api:
        (listed,) = (await api.expect("GET /api/tags")).json()["models"]
        assert (listed["size"], listed["modified_at"]) == (0, "0001-01-01T00:00:00Z")
        await api.expect("POST /api/show", {"model": "a"}, 404, "model 'a' is not downloaded yet")
        remote.wrong = GGUF[:-1] + b"x"
        assert "error" in (await pull(api, model="a"))[-1]
        remote.wrong = b""
        lines = await pull(api, model="a")
        assert (lines[-2]["completed"], lines[-1]) == (len(GGUF), {"status": "success"})
        assert api.pool.state("a").status is Status.UNLOADED
        assert await pull(api, model="a") == [{"status": "success"}]
        (listed,) = (await api.expect("GET /api/tags")).json()["models"]
        assert listed["size"] == len(GGUF)
        await api.expect("POST /api/show", {"model": "a"})


@pytest.mark.parametrize("waits", [False, True])
async def test_pull_of_a_configured_model_ends_with_its_client_unless_a_request_waits_for_the_model(
    remote: FakeHub, tmp_path: Path, waits: bool
) -> None:
    (tmp_path / "p.ini").write_text(f"[a]\nhf-repo = {MODEL_ID}\n")
    remote.hold = threading.Event()
    async with serve_hub(remote, tmp_path, "--models-preset", str(tmp_path / "p.ini")) as api:
        pulling = asyncio.create_task(pull(api, model="a", stream=False))
        with api.pool.subscribe() as events:
            assert await asyncio.to_thread(remote.holding.wait, 60)
            requests = [asyncio.create_task(chat(api, "a"))] if waits else []
            await until(lambda: api.pool.state("a").n_waiting == len(requests))
            pulling.cancel()
            await asyncio.wait([pulling])
            if waits:
                remote.hold.set()
            assert (await until_download_ended(events))[-1] == DownloadEnded("a", ok=waits)
        for each in requests:
            await each


async def test_name_of_a_pull_is_accepted_afterwards(remote: FakeHub, tmp_path: Path) -> None:
    remote.repositories |= {"org/ud": {"m-UD-Q4_K_XL.gguf": GGUF, "m-Q8_0.gguf": GGUF}}
    async with serve_hub(remote, tmp_path) as api:
        await download(api)
        for name in ("org/ud:UD-Q4_K_XL", "hf.co/org/ud:q8_0", "hf.co/org/ud"):
            for _ in range(2):
                assert (await pull(api, model=name))[-1] == {"status": "success"}
            await api.expect("POST /api/show", {"model": name})
            await chat(api, name)
        assert await ids(api) == [MODEL_ID, "org/ud:Q4_K_XL", "org/ud:Q8_0"]
        await remove(api, "hf.co/org/ud", 400, "may be one of several")
        await remove(api, "org/ud:UD-Q4_K_XL")
        assert await ids(api) == [MODEL_ID, "org/ud:Q8_0"]


async def test_pulls_follow_a_download_that_began_while_they_asked_the_hub(
    remote: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checking, proceed = [], threading.Event()

    def check(*_: object) -> None:
        checking.append(True)
        proceed.wait()

    monkeypatch.setattr(HubFetcher, "check", check)
    remote.hold = threading.Event()
    async with serve_hub(remote, tmp_path) as api:
        names = (MODEL_ID, f"hf.co/{MODEL_ID.replace('Q', 'q')}", MODEL_ID)
        pulls = [asyncio.create_task(pull(api, model=name)) for name in names]
        await until(lambda: len(checking) == 3)
        proceed.set()
        assert await asyncio.to_thread(remote.holding.wait, 60)
        remote.hold.set()
        assert [(await each)[-1] for each in pulls] == [{"status": "success"}] * 3
        assert await pull(api, model=MODEL_ID.lower().replace("gguf", "GGUF")) == [{"status": "success"}]
    assert len(remote.content_requests()) == 1


async def test_pull_is_cancelled_on_disconnect(remote: FakeHub, tmp_path: Path) -> None:
    remote.hold = threading.Event()
    async with serve_hub(remote, tmp_path) as api:
        first = asyncio.create_task(pull(api, model=MODEL_ID, stream=False))
        with api.pool.subscribe() as events:
            assert await asyncio.to_thread(remote.holding.wait, 60)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert (await until_download_ended(events))[-1] == DownloadEnded(MODEL_ID, ok=False)
        assert await ids(api) == []


async def test_pull_downloads_nothing_after_a_disconnect_before_its_start(
    remote: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checking, proceed = threading.Event(), threading.Event()

    def check(*_: object) -> None:
        checking.set()
        proceed.wait()

    monkeypatch.setattr(HubFetcher, "check", check)
    async with serve_hub(remote, tmp_path) as api:
        try:
            async with posting(api.app, "/api/pull", {"model": MODEL_ID}):
                assert await asyncio.to_thread(checking.wait, 60)
        finally:
            proceed.set()
        assert await ids(api) == []
    assert remote.content_requests() == []
