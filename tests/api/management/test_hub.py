"""Models of a hub behind the API: downloads that are seen, stopped and removed, and what is served of the cache."""

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.app import create_app
from server.hub.hub import HubFetcher
from server.pool.events import DownloadEnded, DownloadProgress, PoolEvent, StatusChanged, Subscription
from server.pool.state import Status
from server.routes.models import event_object
from server.settings import load_settings
from tests.api.conftest import Api, running
from tests.api.streams import posting
from tests.support.fakes import FakeLoader
from tests.support.pool_integrity import check_pool
from tests.support.stand_in_hub import StandInHub, stand_in_hub

REPOSITORY = "org/model-GGUF"
MODEL_ID = f"{REPOSITORY}:Q8_0"
GGUF = b"GGUF" + bytes(50_000)
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture
def remote() -> Iterator[StandInHub]:
    files = {"model-Q8_0.gguf": GGUF, "model-F16.gguf": GGUF + b"f16"}
    with stand_in_hub({REPOSITORY: files, "org/draft": {"draft-F16.gguf": GGUF + b"d"}}) as hub:
        yield hub


@asynccontextmanager
async def serving(
    remote: StandInHub, folder: Path, *words: str, address: str = "127.0.0.1", **env: str
) -> AsyncIterator[Api]:
    """As ``llamapool WORDS`` over a fake library; without words the models of the cache are served."""
    variables = {"LLAMA_CACHE": str(folder / "cache"), "MODEL_ENDPOINT": remote.url, **env}
    config = [] if words else ["--models-preset", str(folder / "empty.ini")]
    (folder / "empty.ini").touch()
    reread = partial(load_settings, [*words, *config], variables)
    app = create_app(reread(), loader=FakeLoader(), reread=reread)
    async with running(app, FakeLoader(), address=address) as api:
        yield api
        check_pool(api.pool)


async def ids(api: Api, query: str = "") -> list[str]:
    return [model["id"] for model in (await api.expect("GET /models" + query)).json()["data"]]


async def ended(events: Subscription) -> list[PoolEvent]:
    """The events until a download has ended."""
    seen: list[PoolEvent] = []
    async for event in events:
        seen.append(event)
        if isinstance(event, DownloadEnded):
            return seen
    raise AssertionError("the pool closed")


async def begun(api: Api, name: str, events: Subscription) -> None:
    """Start a download and wait for its first bytes."""
    assert (await api.client.post("/models", json={"model": name})).status_code == 200
    async for event in events:
        if isinstance(event, DownloadProgress):
            return


async def download(api: Api, name: str = MODEL_ID) -> list[PoolEvent]:
    with api.pool.subscribe() as events:
        await api.expect("POST /models", {"model": name}, 200, {"success": True})
        return await ended(events)


async def chat(api: Api, model: str) -> httpx.Response:
    return await api.client.post("/v1/chat/completions", json={"model": model, **CHAT})


async def remove(api: Api, model: str) -> httpx.Response:
    return await api.client.request("DELETE", "/models", params={"model": model})


async def test_a_model_is_downloaded_served_and_removed(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path) as api:
        assert await ids(api) == []
        seen = [event_object(event) for event in await download(api)]
        assert seen[0] == {"model": MODEL_ID, "event": "model_status", "data": {"status": "downloading"}}
        ((url, file),) = seen[1]["data"]["progress"].items()
        assert (seen[1]["event"], url) == ("download_progress", remote.url + remote.contents_asked()[0].path)
        assert file == {"done": 0, "total": len(GGUF)}
        assert {"model": "*", "event": "models_reload"} in seen
        assert seen[-1] == {"model": MODEL_ID, "event": "download_finished"}
        (shown,) = (await api.client.get("/models")).json()["data"]
        assert (shown["id"], shown["source"], shown["can_remove"]) == (MODEL_ID, "cache", True)
        assert shown["status"]["preset"] == f"[{MODEL_ID}]\nhf-repo = {MODEL_ID}\n"
        assert shown["status"]["args"] == ["llamapool", "--hf-repo", MODEL_ID]
        assert (await chat(api, MODEL_ID)).status_code == 200
        await api.expect("POST /models", {"model": MODEL_ID}, 400, "already exists")
        assert (await remove(api, MODEL_ID)).json() == {"success": True}
        assert await ids(api) == []
        assert not list(tmp_path.rglob("*.gguf"))  # noqa: ASYNC240 (nobody waits)
        assert (await remove(api, MODEL_ID)).status_code == 404


async def test_a_model_answers_to_the_name_that_it_was_asked_for_by(remote: StandInHub, tmp_path: Path) -> None:
    """Its repository alone, and its quantization in any case; also after the next start, and for all that is done."""
    async with serving(remote, tmp_path) as api:
        await download(api, REPOSITORY)
        assert await ids(api) == [MODEL_ID]
        for name in (REPOSITORY, MODEL_ID.replace("Q8_0", "q8_0")):
            reply = await chat(api, name)
            assert (reply.status_code, reply.json()["model"]) == (200, MODEL_ID)
        loaded = api.pool.state(MODEL_ID).loaded
        await download(api, REPOSITORY + ":F16")
        assert api.pool.state(REPOSITORY).loaded is loaded  # it is not configured anew because another one came
    async with serving(remote, tmp_path) as api:
        shown = (await api.client.get(f"/v1/models/{REPOSITORY}")).json()
        assert (shown["id"], shown["aliases"]) == (MODEL_ID, [MODEL_ID, REPOSITORY])
        unclear = await remove(api, REPOSITORY)
        assert (unclear.status_code, f"one of several: {REPOSITORY}:F16, {MODEL_ID}" in unclear.text) == (400, True)
        assert (await remove(api, MODEL_ID)).status_code == 200
        assert (await remove(api, REPOSITORY)).status_code == 200
        assert await ids(api) == []


async def test_a_pull_of_what_is_there_needs_no_hub(remote: StandInHub, tmp_path: Path) -> None:
    """By any of its names, also with a key for this model only; of what is not there it fails."""
    async with serving(remote, tmp_path) as api:
        await download(api)
    del remote.repositories[REPOSITORY]
    names = (REPOSITORY, f"{REPOSITORY}:latest", f"hf.co/{REPOSITORY}", MODEL_ID)
    async with serving(remote, tmp_path) as api:
        for name in names:
            assert await pulled(api, model=name) == [{"status": "success"}], name
        assert (await api.client.post("/api/pull", json={"model": "org/none"})).status_code >= 400
    keys = tmp_path / "keys.yaml"
    digest = hashlib.sha256(b"secret").hexdigest()
    keys.write_text(f"keys:\n  - {{name: one, hash: 'sha256:{digest}', scopes: [models], models: ['{MODEL_ID}']}}\n")
    async with serving(remote, tmp_path, LLAMAPOOL_SERVER__KEYS_FILE=str(keys)) as api:
        api.client.headers["Authorization"] = "Bearer secret"
        for name in names:
            assert await pulled(api, model=name, stream=False) == [{"status": "success"}], name
        for name in (f"{REPOSITORY}:F16", "org/none"):
            assert (await api.client.post("/api/pull", json={"model": name})).status_code == 403, name


async def test_a_download_under_way_is_shown_and_can_be_stopped(remote: StandInHub, tmp_path: Path) -> None:
    remote.hold = threading.Event()
    async with serving(remote, tmp_path) as api:
        with api.pool.subscribe() as events:
            await begun(api, REPOSITORY, events)
            (shown,) = (await api.client.get("/models")).json()["data"]
            assert shown["status"]["value"] == "downloading"
            assert len(shown["progress"]) == 1
            early = await chat(api, REPOSITORY)
            assert (early.status_code, "is being downloaded" in early.text) == (503, True)
            assert (await api.client.post("/models/unload", json={"model": REPOSITORY})).status_code == 200
            assert (await ended(events))[-1] == DownloadEnded(REPOSITORY, ok=False)
        assert await ids(api) == []


async def test_a_removed_model_stops_no_download_of_its_repository(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path) as api:
        await download(api, f"{REPOSITORY}:F16")
        remote.hold = threading.Event()
        with api.pool.subscribe() as events:
            await begun(api, MODEL_ID, events)
            assert await asyncio.to_thread(remote.holding.wait, 60)
            n_asked = len(remote.contents_asked())
            assert (await remove(api, f"{REPOSITORY}:F16")).json() == {"success": True}
            remote.hold.set()
            assert (await ended(events))[-1] == DownloadEnded(MODEL_ID, ok=True)
        assert len(remote.contents_asked()) == n_asked
        assert await ids(api) == [MODEL_ID]


async def test_what_is_no_model_is_refused(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path) as api:
        for name, status, said in (
            ("../../etc/passwd", 400, "owner/name"),
            ("http://127.0.0.1:1/x/y", 400, "owner/name"),
            ("", 400, "non-empty"),
            (5, 400, "non-empty"),
            ("org/none", 404, "is not on the hub"),
            (REPOSITORY + ":Q2_K", 404, "its GGUF files"),
        ):
            await api.expect("POST /models", {"model": name}, status, said)
    async with serving(remote, tmp_path, "-hf", MODEL_ID) as api:
        await api.expect("POST /models", {"model": f"{REPOSITORY}:F16"}, 501, "--models-cache")


async def test_a_failed_download_leaves_nothing_and_may_be_tried_again(remote: StandInHub, tmp_path: Path) -> None:
    remote.wrong = GGUF[:-1] + b"x"
    async with serving(remote, tmp_path) as api:
        assert (await download(api))[-1] == DownloadEnded(MODEL_ID, ok=False)
        assert await ids(api) == []
        assert "error" in (await pulled(api, model=MODEL_ID))[-1]
        await api.expect("POST /api/pull", {"model": MODEL_ID, "stream": False}, 503, '{"error":')
        remote.wrong = b""
        assert (await download(api))[-1] == DownloadEnded(MODEL_ID, ok=True)


@pytest.mark.parametrize(
    ("address", "words", "rows"),
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
async def test_who_may_change_the_disk(
    remote: StandInHub, tmp_path: Path, address: str, words: list[str], rows: list[tuple[dict[str, str], int]]
) -> None:
    words = [*words, "--models-preset", str(tmp_path / "empty.ini")] if words else []
    async with serving(remote, tmp_path, *words, address=address) as api:
        for headers, status in rows:
            client, body = api.client, {"model": MODEL_ID}
            replies = [await client.post("/models", json=body, headers=headers)]
            if status != 200:
                replies.append(await client.post("/api/pull", json=body, headers=headers))
                replies.append(await client.request("DELETE", "/models", params=body, headers=headers))
            assert {reply.status_code for reply in replies} == {status}, headers


async def test_offline_downloads_nothing_and_asks_nothing(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path) as api:
        await download(api)
    remote.asked.clear()
    async with serving(remote, tmp_path, "-hf", MODEL_ID, "--offline") as api:
        await api.settled()
        assert (await api.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert remote.asked == []
    async with serving(remote, tmp_path, "--offline", "--models-preset", str(tmp_path / "empty.ini")) as api:
        assert await ids(api, "?reload=1") == [MODEL_ID]
        assert remote.asked == []
        assert (await download(api, f"{REPOSITORY}:F16"))[-1] == DownloadEnded(f"{REPOSITORY}:F16", ok=True)
    remote.asked.clear()
    async with serving(remote, tmp_path, "-hf", MODEL_ID, "--models-cache", HF_HUB_OFFLINE="1") as api:
        await api.expect("POST /models", {"model": f"{REPOSITORY}:Q2_K"}, 501, "HF_HUB_OFFLINE")
    assert remote.asked == []


async def test_hf_downloads_before_it_loads(remote: StandInHub, tmp_path: Path) -> None:
    remote.hold = threading.Event()
    words = ("-hf", REPOSITORY, "-hfd", "org/draft", "-a", "mine")
    async with serving(remote, tmp_path, *words, HF_TOKEN="hf_secret") as api:
        seen: list[Status] = []
        with api.pool.subscribe() as events:
            assert (await api.client.get("/health")).status_code == 503
            remote.hold.set()
            async for event in events:
                if isinstance(event, StatusChanged):
                    seen.append(event.status)
                if seen[-1:] == [Status.READY]:
                    break
        assert seen == [Status.UNLOADED, Status.LOADING, Status.READY]
        spec = api.pool.state("mine").spec
        assert spec.draft is not None
        assert (spec.path.name, spec.draft.path.name) == ("model-Q8_0.gguf", "draft-F16.gguf")
        assert (await api.client.get("/health")).status_code == 200
    assert {asked.token for asked in remote.asked} == {"hf_secret"}


async def test_a_reload_reads_preset_folder_and_cache_again(remote: StandInHub, tmp_path: Path) -> None:
    preset, file = tmp_path / "p.ini", tmp_path / "file.gguf"
    file.write_bytes(GGUF)
    preset.write_text(f"[a]\nhf-repo = {MODEL_ID}\n[b]\nmodel = {file}\n[none]\nhf-repo = org/none\n")
    async with serving(remote, tmp_path, "--models-preset", str(preset)) as api:
        await api.expect("GET /props?model=a&autoload=false", None, 400, "not loaded")
        for path in ("/v1/chat/completions", "/tokenize"):
            body = {"model": "a", "content": "x", **CHAT}
            await api.expect(f"POST {path}?autoload=false", body, 400, "not loaded")
        assert remote.contents_asked() == []
        reply = await chat(api, "none")
        assert (reply.status_code, "is not on the hub" in reply.text) == (503, True)
        with await api.pool.acquire("a"):
            pass
        preset.write_text(f"\n[a]\nhf-repo = {MODEL_ID}\n[c]\nmodel = {file}\n")
        assert await ids(api) == ["a", "b", "none"]
        assert await ids(api, "?reload=1") == [MODEL_ID, "a", "c"]
        assert api.pool.state("a").status is Status.READY  # as it was: nothing about it has changed
        preset.write_text(f"[a]\nhf-repo = {MODEL_ID}\nctx-size = 64\n")
        await ids(api, "?reload=1")
        assert api.pool.state("a").status is Status.UNLOADED
        preset.write_text("[a]\nctx-sze = 64\n")
        await api.expect("GET /models?reload=1", None, 503, "did you mean 'ctx-size'")
        assert await ids(api) == [MODEL_ID, "a"]
        refused = await remove(api, "a")
        assert (refused.status_code, "not removable" in refused.text) == (400, True)
    preset.write_text(f"[*]\ndedup-cache-models = 1\n[a]\nhf-repo = {REPOSITORY}\n")
    async with serving(remote, tmp_path, "--models-preset", str(preset)) as api:
        assert await ids(api) == ["a"]
        assert [model["name"] for model in (await api.expect("GET /api/tags")).json()["models"]] == ["a"]
        assert (await chat(api, MODEL_ID)).status_code == 200


async def test_a_repository_with_a_preset_serves_its_models(remote: StandInHub, tmp_path: Path) -> None:
    remote.repositories["org/preset"] = {"preset.ini": f"[x]\nhf-repo = {MODEL_ID}\n".encode()}
    async with serving(remote, tmp_path, "-hf", "org/preset") as api:
        assert await ids(api) == ["x"]
        assert (await chat(api, "x")).status_code == 200
        await api.expect("POST /models", {"model": "org/preset"}, 400, "is a preset")


async def pulled(api: Api, **fields: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await api.expect("POST /api/pull", fields)).text.splitlines()]


async def test_ollamas_clients_pull_and_delete(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path) as api:
        lines = await pulled(api, model=f"hf.co/{MODEL_ID}")
        assert (lines[0], lines[-1]) == ({"status": "pulling manifest"}, {"status": "success"})
        assert lines[-2].items() >= {"total": len(GGUF), "completed": len(GGUF)}.items()
        assert await ids(api) == [MODEL_ID]
        assert await pulled(api, model=f"{REPOSITORY}:F16", stream=False) == [{"status": "success"}]
        deleted = await api.expect("DELETE /api/delete", {"model": f"hf.co/{MODEL_ID}"})
        assert deleted.content == b""
        assert await ids(api) == [f"{REPOSITORY}:F16"]
        await api.expect("POST /api/pull", {"model": "llama3"}, 400, '{"error":"model: should be owner/name')


async def test_a_pull_whose_client_leaves_is_stopped(remote: StandInHub, tmp_path: Path) -> None:
    remote.hold = threading.Event()
    async with serving(remote, tmp_path) as api:
        first = asyncio.create_task(pulled(api, model=MODEL_ID, stream=False))
        with api.pool.subscribe() as events:
            assert await asyncio.to_thread(remote.holding.wait, 60)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert (await ended(events))[-1] == DownloadEnded(MODEL_ID, ok=False)
        assert await ids(api) == []


async def test_a_pull_whose_client_leaves_before_it_begins_downloads_nothing(
    remote: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def check(*_: object) -> None:
        asked.set()
        go_on.wait()

    monkeypatch.setattr(HubFetcher, "check", check)
    async with serving(remote, tmp_path) as api:
        try:
            async with posting(api.app, "/api/pull", {"model": MODEL_ID}):
                assert await asyncio.to_thread(asked.wait, 60)
        finally:
            go_on.set()
        assert await ids(api) == []
    assert remote.contents_asked() == []
