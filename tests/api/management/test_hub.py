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
from server.hub.process import DownloadProcess
from server.pool.events import DownloadEnded, DownloadProgress, PoolEvent, StatusChanged, Subscription
from server.pool.state import Status
from server.settings import load_settings
from tests.api.conftest import Api, run_app, until
from tests.support.fakes import FakeLoader
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
    transport = httpx.ASGITransport(app, client=(address, 1))
    async with run_app(app), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        api = Api(app, client, FakeLoader())
        yield api
        api.pool.check_integrity()


async def ids(api: Api, query: str = "") -> list[str]:
    reply = await api.client.get("/models" + query)
    assert reply.status_code == 200, reply.text
    return [model["id"] for model in reply.json()["data"]]


async def ended(events: Subscription) -> list[PoolEvent]:
    """The events until a download has ended."""
    seen: list[PoolEvent] = []
    async for event in events:
        seen.append(event)
        if isinstance(event, DownloadEnded):
            return seen
    raise AssertionError("the pool closed")


async def download(api: Api, name: str = MODEL_ID) -> list[PoolEvent]:
    with api.pool.subscribe() as events:
        reply = await api.client.post("/models", json={"model": name})
        assert (reply.status_code, reply.json()) == (200, {"success": True})
        return await ended(events)


async def test_a_model_is_downloaded_served_and_removed(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path) as api:
        assert await ids(api) == []
        events = await download(api)
        assert events[-1] == DownloadEnded(MODEL_ID, ok=True)
        progress = [event for event in events if isinstance(event, DownloadProgress)]
        assert (progress[-1].done, progress[-1].total) == (len(GGUF), len(GGUF))
        (shown,) = (await api.client.get("/models")).json()["data"]
        assert (shown["id"], shown["source"], shown["can_remove"]) == (MODEL_ID, "cache", True)
        assert shown["status"]["preset"] == f"[{MODEL_ID}]\nhf-repo = {MODEL_ID}\n"
        assert shown["status"]["args"] == ["llamapool", "--hf-repo", MODEL_ID]
        assert (await api.client.post("/v1/chat/completions", json={"model": MODEL_ID, **CHAT})).status_code == 200
        again = await api.client.post("/models", json={"model": MODEL_ID})
        assert (again.status_code, "already exists" in again.text) == (400, True)
        removed = await api.client.request("DELETE", "/models", params={"model": MODEL_ID})
        assert removed.json() == {"success": True}
        assert await ids(api) == []
        assert not list(tmp_path.rglob("*.gguf"))  # noqa: ASYNC240 (nobody waits)
        gone = await api.client.request("DELETE", "/models", params={"model": MODEL_ID})
        assert gone.status_code == 404


async def test_a_model_answers_to_the_name_that_it_was_asked_for_by(remote: StandInHub, tmp_path: Path) -> None:
    """Its repository alone, and its quantization in any case; also after the next start, and for all that is done."""
    async with serving(remote, tmp_path) as api:
        await download(api, REPOSITORY)
        assert await ids(api) == [MODEL_ID]
        small = MODEL_ID.replace("Q8_0", "q8_0")
        for name in (REPOSITORY, small):
            chat = await api.client.post("/v1/chat/completions", json={"model": name, **CHAT})
            assert (chat.status_code, chat.json()["model"]) == (200, MODEL_ID)
        again = await api.client.post("/models", json={"model": small})
        assert (again.status_code, "already exists" in again.text) == (400, True)
        loaded = api.pool.state(MODEL_ID).loaded
        await download(api, REPOSITORY + ":F16")
        assert api.pool.state(REPOSITORY).loaded is loaded  # it is not configured anew because another one came
    async with serving(remote, tmp_path) as api:
        shown = (await api.client.get(f"/v1/models/{REPOSITORY}")).json()
        assert (shown["id"], shown["aliases"]) == (MODEL_ID, [MODEL_ID, REPOSITORY])
        unclear = await api.client.request("DELETE", "/models", params={"model": REPOSITORY})
        assert (unclear.status_code, f"one of several: {REPOSITORY}:F16, {MODEL_ID}" in unclear.text) == (400, True)
        assert (await api.client.request("DELETE", "/models", params={"model": MODEL_ID})).status_code == 200
        assert await ids(api) == [REPOSITORY + ":F16"]
        assert (await api.client.request("DELETE", "/models", params={"model": REPOSITORY})).status_code == 200
        assert await ids(api) == []


async def test_a_repository_is_what_its_hub_would_choose(remote: StandInHub, tmp_path: Path) -> None:
    """Whatever the cache has of it, as in llama-server; who is served meanwhile goes on with what is there."""
    async with serving(remote, tmp_path) as api:
        await download(api, f"{REPOSITORY}:F16")
        assert (await api.client.post("/v1/chat/completions", json={"model": REPOSITORY, **CHAT})).status_code == 200
        remote.hold = threading.Event()
        with api.pool.subscribe() as events:
            assert (await api.client.post("/models", json={"model": REPOSITORY})).status_code == 200
            second = await api.client.post("/models", json={"model": REPOSITORY})
            assert (second.status_code, "already exists" in second.text) == (400, True)
            chat = await api.client.post("/v1/chat/completions", json={"model": REPOSITORY, **CHAT})
            assert (chat.status_code, chat.json()["model"]) == (200, f"{REPOSITORY}:F16")
            remote.hold.set()
            assert (await ended(events))[-1] == DownloadEnded(REPOSITORY, ok=True)
        assert await ids(api) == [f"{REPOSITORY}:F16", MODEL_ID]
        assert api.pool.resolve(REPOSITORY).id == MODEL_ID
        n_asked = len(remote.contents_asked())
        assert (await download(api, REPOSITORY))[-1] == DownloadEnded(REPOSITORY, ok=True)  # it is the newest
        assert len(remote.contents_asked()) == n_asked


async def test_a_newer_commit_takes_no_other_quantization_away(remote: StandInHub, tmp_path: Path) -> None:
    """It stays as it is, loaded or not, also after the next start; and what is listed can be removed."""
    other = f"{REPOSITORY}:F16"
    async with serving(remote, tmp_path) as api:
        await download(api, other)
        assert (await api.client.post("/v1/chat/completions", json={"model": other, **CHAT})).status_code == 200
        remote.commit = "b" * 40
        await download(api, REPOSITORY)
        assert await ids(api) == [other, MODEL_ID]
        assert api.pool.state(other).status is Status.READY
        assert api.pool.resolve(REPOSITORY).id == MODEL_ID
    async with serving(remote, tmp_path, HF_HUB_OFFLINE="1") as api:
        assert await ids(api) == [other, MODEL_ID]
        assert (await api.client.post("/v1/chat/completions", json={"model": other, **CHAT})).status_code == 200
        assert (await api.client.request("DELETE", "/models", params={"model": other})).json() == {"success": True}
        assert await ids(api) == [MODEL_ID]
    assert [path.name for path in tmp_path.rglob("*.gguf")] == ["model-Q8_0.gguf"]  # noqa: ASYNC240 (nobody waits)


async def test_ollamas_tag_for_none_is_none(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path) as api:
        await download(api, f"{REPOSITORY}:F16")
        with api.pool.subscribe() as events:
            assert (await api.client.post("/models", json={"model": f"{REPOSITORY}:latest"})).status_code == 200
            assert (await ended(events))[-1] == DownloadEnded(REPOSITORY, ok=True)
        assert await ids(api) == [f"{REPOSITORY}:F16", MODEL_ID]


@pytest.mark.parametrize("trouble", ["offline", "gone", "gated"])
async def test_a_pull_of_what_is_there_needs_no_hub(remote: StandInHub, tmp_path: Path, trouble: str) -> None:
    """By any of its names; of what is not there it fails."""
    async with serving(remote, tmp_path) as api:
        await download(api)
    env = {"HF_HUB_OFFLINE": "1"} if trouble == "offline" else {}
    if trouble == "gone":
        del remote.repositories[REPOSITORY]
    remote.gated = trouble == "gated"
    async with serving(remote, tmp_path, **env) as api:
        for name in (REPOSITORY, f"{REPOSITORY}:latest", f"hf.co/{REPOSITORY}", MODEL_ID):
            streamed = await api.client.post("/api/pull", json={"model": name})
            assert (streamed.status_code, json.loads(streamed.text)) == (200, {"status": "success"}), name
            whole = await api.client.post("/api/pull", json={"model": name, "stream": False})
            assert (whole.status_code, whole.json()) == (200, {"status": "success"})
        missing = await api.client.post("/api/pull", json={"model": "org/none"})
        assert missing.status_code >= 400
        assert await ids(api) == [MODEL_ID]


async def test_a_key_for_some_models_pulls_these_by_any_name(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path) as api:
        await download(api)
    keys = tmp_path / "keys.yaml"
    digest = hashlib.sha256(b"secret").hexdigest()
    keys.write_text(f"keys:\n  - {{name: one, hash: 'sha256:{digest}', scopes: [models], models: ['{MODEL_ID}']}}\n")
    async with serving(remote, tmp_path, LLAMAPOOL_SERVER__KEYS_FILE=str(keys)) as api:
        api.client.headers["Authorization"] = "Bearer secret"
        for name in (REPOSITORY, f"{REPOSITORY}:latest", f"hf.co/{REPOSITORY}", MODEL_ID):
            reply = await api.client.post("/api/pull", json={"model": name, "stream": False})
            assert (reply.status_code, reply.json()) == (200, {"status": "success"}), name
        for name in (f"{REPOSITORY}:F16", "org/none"):
            assert (await api.client.post("/api/pull", json={"model": name})).status_code == 403, name


async def test_a_better_match_takes_the_short_name_over(remote: StandInHub, tmp_path: Path) -> None:
    """The one that it means by llama.cpp's rule, of those that are there; the other one stays loaded."""
    async with serving(remote, tmp_path) as api:
        await download(api, REPOSITORY + ":F16")
        assert (await api.client.post("/v1/chat/completions", json={"model": REPOSITORY, **CHAT})).status_code == 200
        await download(api)
        states = {state.spec.id: state for state in api.pool.states()}
        assert {name: state.spec.aliases for name, state in states.items()} == {
            MODEL_ID: (REPOSITORY,),
            REPOSITORY + ":F16": (),
        }
        assert states[REPOSITORY + ":F16"].status is Status.READY


async def test_a_name_that_somebody_has_is_his(remote: StandInHub, tmp_path: Path) -> None:
    model = tmp_path / "mine.gguf"
    model.write_bytes(GGUF)
    (tmp_path / "preset.ini").write_text(f"[mine]\nmodel = {model}\nalias = {REPOSITORY}\n")
    async with serving(remote, tmp_path, "--models-preset", str(tmp_path / "preset.ini")) as api:
        await download(api)
        assert api.pool.resolve(REPOSITORY).id == "mine"


async def test_events_have_llama_servers_shapes(remote: StandInHub, tmp_path: Path) -> None:
    from server.routes.models import event_object

    async with serving(remote, tmp_path) as api:
        seen = [event_object(event) for event in await download(api)]
    assert seen[0] == {"model": MODEL_ID, "event": "model_status", "data": {"status": "downloading"}}
    ((url, file),) = seen[1]["data"]["progress"].items()
    assert (seen[1]["event"], url) == ("download_progress", remote.url + remote.contents_asked()[0].path)
    assert file == {"done": 0, "total": len(GGUF)}
    assert {"model": "*", "event": "models_reload"} in seen
    assert seen[-1] == {"model": MODEL_ID, "event": "download_finished"}


async def test_a_download_under_way_is_shown_and_can_be_stopped(remote: StandInHub, tmp_path: Path) -> None:
    remote.hold = threading.Event()
    async with serving(remote, tmp_path) as api:
        with api.pool.subscribe() as events:
            await api.client.post("/models", json={"model": REPOSITORY})
            async for event in events:
                if isinstance(event, DownloadProgress):
                    break
            (shown,) = (await api.client.get("/models")).json()["data"]
            assert shown["status"]["value"] == "downloading"
            assert len(shown["progress"]) == 1
            early = await api.client.post("/v1/chat/completions", json={"model": REPOSITORY, **CHAT})
            assert (early.status_code, "is being downloaded" in early.text) == (503, True)
            assert (await api.client.post("/models/unload", json={"model": REPOSITORY})).status_code == 200
            remote.hold.set()
            assert (await ended(events))[-1] == DownloadEnded(REPOSITORY, ok=False)
        assert await ids(api) == []


async def test_a_stopped_download_takes_no_other_model_with_it(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path) as api:
        remote.hold = held = threading.Event()
        with api.pool.subscribe() as events:
            await api.client.post("/models", json={"model": REPOSITORY})  # the other quantization
            async for event in events:
                if isinstance(event, DownloadProgress):
                    break
        assert await asyncio.to_thread(remote.holding.wait, 60)
        remote.hold = None
        await download(api, f"{REPOSITORY}:F16")
        removed = await api.client.request("DELETE", "/models", params={"model": REPOSITORY})
        held.set()
        assert removed.json() == {"success": True}
        assert await ids(api, "?reload=1") == [f"{REPOSITORY}:F16"]
        assert [path.name for path in tmp_path.rglob("*.gguf")] == ["model-F16.gguf"]  # noqa: ASYNC240 (nobody waits)
        assert not list(tmp_path.rglob("*.incomplete"))  # noqa: ASYNC240


async def test_a_removed_model_stops_no_download_of_its_repository(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path) as api:
        await download(api, f"{REPOSITORY}:F16")
        remote.hold = threading.Event()
        with api.pool.subscribe() as events:
            await api.client.post("/models", json={"model": MODEL_ID})
            async for event in events:
                if isinstance(event, DownloadProgress):
                    break
            assert await asyncio.to_thread(remote.holding.wait, 60)
            n_asked = len(remote.contents_asked())
            removed = await api.client.request("DELETE", "/models", params={"model": f"{REPOSITORY}:F16"})
            assert removed.json() == {"success": True}
            remote.hold.set()
            assert (await ended(events))[-1] == DownloadEnded(MODEL_ID, ok=True)
        assert len(remote.contents_asked()) == n_asked
        assert await ids(api) == [MODEL_ID]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "../../etc/passwd"}, 400, "owner/name"),
        ({"model": "http://127.0.0.1:1/x/y"}, 400, "owner/name"),
        ({"model": "a/b@127.0.0.1"}, 400, "owner/name"),
        ({"model": ""}, 400, "non-empty"),
        ({"model": 5}, 400, "non-empty"),
        ({}, 400, "non-empty"),
        ({"model": "org/none"}, 404, "is not on the hub"),
        ({"model": REPOSITORY + ":Q2_K"}, 404, "its GGUF files"),
    ],
)
async def test_what_is_no_model_is_refused(
    remote: StandInHub, tmp_path: Path, body: dict[str, Any], status: int, said: str
) -> None:
    async with serving(remote, tmp_path) as api:
        reply = await api.client.post("/models", json=body)
        assert (reply.status_code, said in reply.text) == (status, True), reply.text


async def test_a_server_that_would_not_serve_it_downloads_nothing(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path, "-hf", MODEL_ID) as api:
        reply = await api.client.post("/models", json={"model": f"{REPOSITORY}:F16"})
        assert (reply.status_code, "--models-cache" in reply.text) == (501, True)


async def test_a_failed_download_leaves_nothing_and_may_be_tried_again(remote: StandInHub, tmp_path: Path) -> None:
    remote.wrong = GGUF[:-1] + b"x"
    async with serving(remote, tmp_path) as api:
        assert (await download(api))[-1] == DownloadEnded(MODEL_ID, ok=False)
        assert await ids(api) == []
        remote.wrong = b""
        assert (await download(api))[-1] == DownloadEnded(MODEL_ID, ok=True)


@pytest.mark.parametrize(
    ("address", "headers", "words", "status"),
    [
        ("192.0.2.7", {}, [], 403),
        ("::ffff:127.0.0.1", {}, [], 200),
        ("127.0.0.1", {"sec-fetch-site": "cross-site"}, [], 403),
        ("127.0.0.1", {"sec-fetch-site": "same-origin"}, [], 200),
        ("127.0.0.1", {"origin": "http://localhost:8080"}, [], 200),
        ("127.0.0.1", {"origin": "http://rebound.example:8080"}, [], 403),
        ("127.0.0.1", {"origin": "null"}, [], 403),
        ("192.0.2.7", {"authorization": "Bearer key"}, ["--api-key", "key"], 200),
        ("127.0.0.1", {}, ["--api-key", "key"], 401),
    ],
)
async def test_who_may_change_the_disk(
    remote: StandInHub, tmp_path: Path, address: str, headers: dict[str, str], words: list[str], status: int
) -> None:
    words = [*words, "--models-preset", str(tmp_path / "empty.ini")] if words else []
    async with serving(remote, tmp_path, *words, address=address) as api:
        reply = await api.client.post("/models", json={"model": MODEL_ID}, headers=headers)
        assert reply.status_code == status, reply.text
        if status != 200:
            removed = await api.client.request("DELETE", "/models", params={"model": MODEL_ID}, headers=headers)
            assert removed.status_code == status


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
        last = (await download(api, f"{REPOSITORY}:F16"))[-1]
        assert isinstance(last, DownloadEnded)
        assert last.ok  # whoever asks for it means it, as in llama-server
    remote.asked.clear()
    async with serving(remote, tmp_path, "-hf", MODEL_ID, "--models-cache", HF_HUB_OFFLINE="1") as api:
        reply = await api.client.post("/models", json={"model": f"{REPOSITORY}:Q2_K"})
        assert (reply.status_code, "HF_HUB_OFFLINE" in reply.text) == (501, True)
    assert remote.asked == []


async def test_hf_downloads_before_it_loads(remote: StandInHub, tmp_path: Path) -> None:
    remote.hold = threading.Event()
    words = ("-hf", REPOSITORY, "-hfd", "org/draft", "-a", "mine")
    async with serving(remote, tmp_path, *words, HF_TOKEN="hf_secret") as api:
        with api.pool.subscribe() as events:
            assert (await api.client.get("/health")).status_code == 503
            remote.hold.set()
            seen = [event.status async for event in _until_ready(events)]
        assert seen == [Status.UNLOADED, Status.LOADING, Status.READY]
        spec = api.pool.state("mine").spec
        assert spec.path.name == "model-Q8_0.gguf"
        assert spec.draft is not None
        assert spec.draft.path.name == "draft-F16.gguf"
        assert (await api.client.get("/health")).status_code == 200
    assert {asked.token for asked in remote.asked} == {"hf_secret"}


async def _until_ready(events: Subscription) -> AsyncIterator[StatusChanged]:
    async for event in events:
        if isinstance(event, StatusChanged):
            yield event
            if event.status is Status.READY:
                return


async def test_a_model_that_can_not_be_downloaded_says_why(remote: StandInHub, tmp_path: Path) -> None:
    preset = tmp_path / "p.ini"
    preset.write_text("[here]\nhf-repo = org/none\n")
    async with serving(remote, tmp_path, "--models-preset", str(preset)) as api:
        reply = await api.client.post("/v1/chat/completions", json={"model": "here", **CHAT})
        assert (reply.status_code, "is not on the hub" in reply.text) == (503, True)


async def test_a_reload_reads_preset_folder_and_cache_again(remote: StandInHub, tmp_path: Path) -> None:
    preset, file = tmp_path / "p.ini", tmp_path / "file.gguf"
    file.write_bytes(GGUF)
    preset.write_text(f"[a]\nhf-repo = {MODEL_ID}\n[b]\nmodel = {file}\n")
    async with serving(remote, tmp_path, "--models-preset", str(preset)) as api:
        with await api.pool.acquire("a"):
            pass
        assert await ids(api) == ["a", "b"]
        preset.write_text(f"\n[a]\nhf-repo = {MODEL_ID}\n[c]\nmodel = {file}\n")
        assert await ids(api) == ["a", "b"]
        assert await ids(api, "?reload=1") == [MODEL_ID, "a", "c"]
        assert api.pool.state("a").status is Status.READY  # as it was: nothing about it has changed
        preset.write_text(f"[a]\nhf-repo = {MODEL_ID}\nctx-size = 64\n")
        await ids(api, "?reload=1")
        assert api.pool.state("a").status is Status.UNLOADED
        preset.write_text("[a]\nctx-sze = 64\n")
        broken = await api.client.get("/models?reload=1")
        assert (broken.status_code, "did you mean 'ctx-size'" in broken.text) == (503, True)
        assert await ids(api) == [MODEL_ID, "a"]
        refused = await api.client.request("DELETE", "/models", params={"model": "a"})
        assert (refused.status_code, "not removable" in refused.text) == (400, True)


async def test_a_preset_hides_what_it_has_of_the_cache(remote: StandInHub, tmp_path: Path) -> None:
    preset = tmp_path / "p.ini"
    async with serving(remote, tmp_path) as api:
        await download(api)
    preset.write_text(f"[*]\ndedup-cache-models = 1\n[a]\nhf-repo = {REPOSITORY}\n")
    async with serving(remote, tmp_path, "--models-preset", str(preset)) as api:
        assert await ids(api) == ["a"]
        assert (await api.client.post("/v1/chat/completions", json={"model": MODEL_ID, **CHAT})).status_code == 200


async def test_a_repository_with_a_preset_serves_its_models(remote: StandInHub, tmp_path: Path) -> None:
    remote.repositories["org/preset"] = {"preset.ini": f"[x]\nhf-repo = {MODEL_ID}\n".encode()}
    async with serving(remote, tmp_path, "-hf", "org/preset") as api:
        assert await ids(api) == ["x"]
        assert (await api.client.post("/v1/chat/completions", json={"model": "x", **CHAT})).status_code == 200
        reply = await api.client.post("/models", json={"model": "org/preset"})
        assert (reply.status_code, "is a preset" in reply.text) == (400, True)


async def test_without_autoload_nothing_is_downloaded(remote: StandInHub, tmp_path: Path) -> None:
    preset = tmp_path / "p.ini"
    preset.write_text(f"[a]\nhf-repo = {MODEL_ID}\n")
    async with serving(remote, tmp_path, "--models-preset", str(preset)) as api:
        for method, path in (("GET", "/props?model=a"), ("POST", "/v1/chat/completions?"), ("POST", "/tokenize?")):
            body = {"model": "a", "content": "x", **CHAT}
            reply = await api.client.request(method, f"{path}&autoload=false", json=body if method == "POST" else None)
            assert (reply.status_code, "not loaded" in reply.text) == (400, True), path
        assert remote.contents_asked() == []


async def pulled(api: Api, **fields: Any) -> list[dict[str, Any]]:
    reply = await api.client.post("/api/pull", json=fields)
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


async def test_ollamas_clients_pull_and_delete(remote: StandInHub, tmp_path: Path) -> None:
    async with serving(remote, tmp_path) as api:
        lines = await pulled(api, model=f"hf.co/{MODEL_ID}")
        assert (lines[0], lines[-1]) == ({"status": "pulling manifest"}, {"status": "success"})
        assert lines[-2].items() >= {"total": len(GGUF), "completed": len(GGUF)}.items()
        assert await ids(api) == [MODEL_ID]
        assert await pulled(api, model=MODEL_ID) == [{"status": "success"}]
        assert await pulled(api, model=f"{REPOSITORY}:F16", stream=False) == [{"status": "success"}]
        deleted = await api.client.request("DELETE", "/api/delete", json={"model": f"hf.co/{MODEL_ID}"})
        assert (deleted.status_code, deleted.content) == (200, b"")
        assert await ids(api) == [f"{REPOSITORY}:F16"]
        unknown = await api.client.post("/api/pull", json={"model": "llama3"})
        assert (unknown.status_code, unknown.json()["error"].startswith("model: should be owner/name")) == (400, True)


async def test_a_pull_that_fails_says_why(remote: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.hub.hub.DownloadProcess", lambda url, token, _: DownloadProcess(url, token, 0))
    remote.repositories["org/broken"] = {"model-Q8_0.gguf": GGUF}
    remote.wrong = b"no model"
    async with serving(remote, tmp_path) as api:
        assert "error" in (await pulled(api, model="org/broken"))[-1]
        whole = await api.client.post("/api/pull", json={"model": "org/broken", "stream": False})
        assert (whole.status_code, list(whole.json())) == (503, ["error"])
    async with serving(remote, tmp_path, address="192.0.2.7") as api:
        for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
            reply = await api.client.request(method, path, json={"model": MODEL_ID})
            assert (reply.status_code, "API key" in reply.json()["error"]) == (403, True)


async def test_a_pull_whose_client_leaves_stops_and_another_follows(remote: StandInHub, tmp_path: Path) -> None:
    remote.hold = threading.Event()
    async with serving(remote, tmp_path) as api:
        first = asyncio.create_task(pulled(api, model=MODEL_ID, stream=False))
        with api.pool.subscribe() as events:
            assert await asyncio.to_thread(remote.holding.wait, 60)
            listeners = api.pool._fan_out._subscriptions
            n_before = len(listeners)
            second = asyncio.create_task(pulled(api, model=MODEL_ID))
            await until(lambda: len(listeners) > n_before)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            remote.hold.set()
            assert (await ended(events))[-1] == DownloadEnded(MODEL_ID, ok=False)
        assert (await second)[-1] == {"error": f"the download of '{MODEL_ID}' was stopped"}
        assert await ids(api) == []
