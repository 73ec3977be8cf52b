"""API keys: what each may do, how much, where a request has it, and that their file is followed."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from server.transport.keys import hash_of, plain_key
from tests.api.conftest import Api, GoLive, Serve, chat_request, until
from tests.api.management.test_models import TWO
from tests.api.streams import posting
from tests.support.fakes import FakeLoader, FakeRunner

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


def key_file(folder: Path, **entries: dict[str, Any]) -> Path:
    """Of keys whose names are the keys."""
    file = folder / "keys.yaml"
    keys = [{"name": name, "hash": hash_of(name), **fields} for name, fields in entries.items()]
    part = folder / "part"
    part.write_text(yaml.safe_dump({"keys": keys}))
    part.replace(file)
    return file


def server(file: Path, **more: Any) -> dict[str, Any]:
    return {"keys_file": str(file), **more}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def chat(api: Api, name: str, **body: Any) -> httpx.Response:
    return await api.client.post("/v1/chat/completions", json=CHAT | body, headers=bearer(name))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.reload.EVERY_S", 0.005)


async def test_each_key_may_what_its_scopes_say(serve: Serve, tmp_path: Path) -> None:
    file = key_file(tmp_path, ada={"scopes": ["infer"]}, ops={"scopes": ["models", "metrics", "slots"]})
    async with serve(models=TWO, server=server(file, metrics=True)) as api:
        assert (await chat(api, "ada", model="first")).status_code == 200
        refused = await chat(api, "ops", model="first")
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        for path, allowed in (("/metrics", "ops"), ("/slots?model=first", "ops")):
            for name in ("ada", "ops"):
                reply = await api.client.get(path, headers=bearer(name))
                assert reply.status_code == (200 if name == allowed else 403)
        unload = {"model": "first"}
        assert (await api.client.post("/models/unload", json=unload, headers=bearer("ada"))).status_code == 403
        assert (await api.client.post("/models/unload", json=unload, headers=bearer("ops"))).status_code == 200
        assert (await api.client.get("/v1/models")).status_code == 401


async def test_where_files_lie_is_for_who_may_load_models(serve: Serve, tmp_path: Path) -> None:
    """Also where a load has failed, whose reason quotes the library."""
    file = key_file(tmp_path, ada={}, ops={"scopes": ["infer", "models"]})
    folder = tmp_path / "private folder"
    failing = {"broken": f"{folder}/broken.gguf: not a GGUF file"}
    models = {
        "demo": {"path": f"{folder}/demo.gguf", "lora": [f"{folder}/pirate.gguf"]},
        "broken": {"path": f"{folder}/broken.gguf"},
    }
    async with serve(FakeLoader(failing=failing), models=models, server=server(file)) as api:
        for name, seen in (("ada", False), ("ops", True)):
            failed = await chat(api, name, model="broken")
            assert failed.json()["error"]["message"] == "model 'broken' failed to load: broken.gguf: not a GGUF file"
            for path, said in (
                ("/props?model=demo", "demo.gguf"),
                ("/lora-adapters?model=demo", "pirate.gguf"),
                ("/v1/models", "demo"),
            ):
                text = (await api.client.get(path, headers=bearer(name))).text
                assert said in text
                assert (str(folder) in text) is seen


async def test_a_request_has_adapters_of_its_own_with_their_scope_alone(serve: Serve, tmp_path: Path) -> None:
    file = key_file(tmp_path, ada={"scopes": ["infer"]}, bert={"scopes": ["infer", "lora"]})
    models = {"demo": {"path": "demo.gguf", "lora": ["pirate.gguf"]}}
    async with serve(models=models, server=server(file)) as api:
        lora = [{"id": 0, "scale": 0.5}]
        refused = await chat(api, "ada", lora=lora)
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        assert "lacks the scope 'lora'" in refused.json()["error"]["message"]
        assert (await chat(api, "ada", lora=[])).status_code == 200  # what is set for all
        assert (await chat(api, "bert", lora=lora)).status_code == 200
        assert (await chat(api, "ada")).status_code == 200


async def test_metrics_may_be_open_where_all_else_needs_a_key(serve: Serve, tmp_path: Path) -> None:
    file = key_file(tmp_path, ada={})
    async with serve(server=server(file, metrics=True, metrics_open=True)) as api:
        assert (await api.client.get("/metrics")).status_code == 200
        assert (await api.client.get("/slots")).status_code == 401
        assert (await api.client.get("/v1/models")).status_code == 401


async def test_a_file_without_any_key_opens_nothing(serve: Serve, tmp_path: Path) -> None:
    async with serve(server=server(key_file(tmp_path))) as api:
        for given in ({}, bearer("ada"), bearer("")):
            assert (await api.client.get("/v1/models", headers=given)).status_code == 401
            assert (await api.client.post("/v1/chat/completions", json=CHAT, headers=given)).status_code == 401


async def test_a_key_knows_of_no_models_but_its_own(serve: Serve, tmp_path: Path) -> None:
    scopes = ["infer", "models", "slots"]
    file = key_file(tmp_path, ada={"models": ["first"], "scopes": scopes}, all={"scopes": scopes})
    async with serve(models=TWO, server=server(file)) as api:
        get, post = api.client.get, api.client.post
        shown = (await get("/v1/models", headers=bearer("ada"))).json()["data"]
        assert [model["id"] for model in shown] == ["org/a:Q8"]
        assert len((await get("/v1/models", headers=bearer("all"))).json()["data"]) == 2
        assert (await chat(api, "ada")).status_code == 200  # its only one
        for reply in (
            await chat(api, "ada", model="b"),
            await get("/v1/models/b", headers=bearer("ada")),
            await get("/props?model=b", headers=bearer("ada")),
            await get("/slots?model=b", headers=bearer("ada")),
            await post("/models/load", json={"model": "b"}, headers=bearer("ada")),
            await post("/api/show", json={"model": "b"}, headers=bearer("ada")),
        ):
            assert reply.status_code == 404
            assert said_of(reply).endswith("known models: org/a:Q8")
        assert (await post("/models", json={"model": "o/n"}, headers=bearer("ada"))).status_code == 403
        assert (await get("/models?reload=1", headers=bearer("ada"))).status_code == 403
        assert (await post("/models/load", json={"model": "b"}, headers=bearer("all"))).status_code == 200


def said_of(reply: httpx.Response) -> str:
    """An error's message, of llama-server's shape or of Ollama's."""
    error = reply.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/props?model=b"),
        ("GET", "/lora-adapters?model=b"),
        ("GET", "/tokenizer_info?model=b"),
        ("POST", "/lora-adapters?model=b"),
        ("POST", "/slots/0?action=erase&model=b"),
    ],
)
async def test_a_key_that_may_not_use_models_loads_none(serve: Serve, tmp_path: Path, method: str, path: str) -> None:
    look = ["slots", "lora", "props", "metrics"]
    scopes = {"look": look, "ops": [*look, "models"], "ada": [*look, "infer"]}
    file = key_file(tmp_path, **{name: {"scopes": each} for name, each in scopes.items()})
    settings = server(file, models_max=1, slot_save_path=str(tmp_path))
    body: Any = None if method == "GET" else [] if "lora" in path else {}
    async with serve(models=TWO, server=settings) as api:
        first = path.replace("=b", "=first")
        assert (await api.client.request(method, first, json=body, headers=bearer("look"))).status_code == 200
        refused = await api.client.request(method, path, json=body, headers=bearer("look"))
        assert (refused.status_code, "lacks the scope 'infer'" in refused.text) == (403, True)
        assert [state.loaded is not None for state in api.pool.states()] == [True, False]  # nothing was evicted
        for name, at in (("ops", path), ("ada", first)):
            assert (await api.client.request(method, at, json=body, headers=bearer(name))).status_code == 200


async def test_a_keys_successor_of_the_same_name_has_its_conversations(serve: Serve, tmp_path: Path) -> None:
    """A key is changed for another: both are valid for a while, then the old one goes."""
    file = file_of(tmp_path, {"old": "ada", "new": "ada", "other": "bert"})
    async with serve(server=server(file)) as api:
        asked = {"input": "Hi", "max_output_tokens": 3}
        first = (await api.client.post("/v1/responses", json=asked, headers=bearer("old"))).json()["id"]
        kept = {**bearer("old"), "X-Conversation-Id": "a"}
        assert (await api.client.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers=kept)).text
        for key, found in (("old", True), ("new", True), ("other", False)):
            reply = await api.client.get(f"/v1/responses/{first}", headers=bearer(key))
            assert reply.status_code == (200 if found else 404)
            more = asked | {"previous_response_id": first}
            assert (
                (await api.client.post("/v1/responses", json=more, headers=bearer(key))).status_code == 200
            ) is found
            stream = await api.client.get("/v1/stream?conv_id=a", headers=bearer(key))
            assert stream.status_code == (200 if found else 404)


def file_of(folder: Path, names: dict[str, str]) -> Path:
    """A file of keys, each with a name."""
    file = folder / "keys.yaml"
    file.write_text(yaml.safe_dump({"keys": [{"name": name, "hash": hash_of(key)} for key, name in names.items()]}))
    return file


async def test_no_name_of_a_file_owns_what_a_key_without_a_name_has(serve: Serve, tmp_path: Path) -> None:
    """The log calls a key without a name by the beginning of its hash; a file may hold that name, too."""
    file = file_of(tmp_path, {"thief": plain_key("master").name})
    async with serve(server=server(file, api_keys=["master", "second"])) as api:
        asked = {"input": "Hi", "max_output_tokens": 3}
        made = (await api.client.post("/v1/responses", json=asked, headers=bearer("master"))).json()["id"]
        for key, status in (("thief", 404), ("second", 404), ("master", 200)):
            assert (await api.client.get(f"/v1/responses/{made}", headers=bearer(key))).status_code == status


async def test_requests_a_minute_and_what_is_left_of_them(serve: Serve, tmp_path: Path) -> None:
    async with serve(server=server(key_file(tmp_path, ada={"requests_per_minute": 2}, bert={}))) as api:
        first = await chat(api, "ada")
        assert (first.status_code, first.headers["x-ratelimit-remaining-requests"]) == (200, "1")
        for _ in range(3):  # others don't count
            assert (await api.client.get("/v1/models", headers=bearer("ada"))).status_code == 200
        message = await api.client.post("/v1/messages", json=CHAT, headers={"x-api-key": "ada"})
        assert message.headers["anthropic-ratelimit-requests-remaining"] == "0"
        refused = await chat(api, "ada")
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert "x-ratelimit-remaining-requests" not in (await chat(api, "bert")).headers
        as_anthropic = await api.client.post("/v1/messages", json=CHAT, headers={"x-api-key": "ada"})
        assert (as_anthropic.status_code, as_anthropic.json()["error"]["type"]) == (429, "rate_limit_error")


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_prompts_and_replies_count(serve: Serve, tmp_path: Path, stream: bool) -> None:
    loader = FakeLoader(replies={"assistant\n": "Hello there"})
    async with serve(loader, server=server(key_file(tmp_path, ada={"tokens_per_minute": 1000}))) as api:
        reply = await chat(api, "ada", stream=stream, stream_options={"include_usage": True} if stream else None)
        usage = json.loads(reply.text.split("data: ")[-2])["usage"] if stream else reply.json()["usage"]
        left = int((await chat(api, "ada")).headers["x-ratelimit-remaining-tokens"])
        assert left == 1000 - usage["total_tokens"]  # as the second request begins


async def test_tokens_of_embeddings_count_and_who_has_none_left_is_refused(serve: Serve, tmp_path: Path) -> None:
    models = {"demo": {"path": "demo.gguf", "load": "startup", "embedding": True}}
    async with serve(models=models, server=server(key_file(tmp_path, ada={"tokens_per_minute": 2}))) as api:
        asked: dict[str, Any] = {"json": {"input": "some text to embed"}, "headers": bearer("ada")}
        assert (await api.client.post("/v1/embeddings", **asked)).status_code == 200
        refused = await api.client.post("/v1/embeddings", **asked)
        assert (refused.status_code, "tokens per minute" in refused.text) == (429, True)


async def test_so_many_at_once(live: GoLive, tmp_path: Path) -> None:
    steps = threading.Semaphore(1)
    loader = FakeLoader(runner=lambda: FakeRunner(n_seq=4, steps=steps))
    async with live(loader, server=server(key_file(tmp_path, ada={"max_concurrent_requests": 1}, bert={}))) as running:
        request = chat_request(max_tokens=5).replace(b"Host: test", b"Host: test\r\nAuthorization: Bearer ada")
        reader, writer = await running.connect(request)
        await reader.readuntil(b"data: ")
        refused = await chat(running.api, "ada")
        assert (refused.status_code, "1 concurrent requests" in refused.text) == (429, True)
        for _ in range(100):
            steps.release()
        await reader.readuntil(b"[DONE]")
        writer.close()
        await until(lambda: not running.api.app.state.services.rates._running)
        assert (await chat(running.api, "ada")).status_code == 200


async def test_a_stream_that_goes_on_alone_is_one_of_those_at_once(serve: Serve, tmp_path: Path) -> None:
    steps = threading.Semaphore(0)
    loader = FakeLoader(runner=lambda: FakeRunner(n_seq=4, steps=steps))
    async with serve(loader, server=server(key_file(tmp_path, ada={"max_concurrent_requests": 1}))) as api:
        kept = {**bearer("ada"), "X-Conversation-Id": "a"}
        async with posting(api.app, "/v1/chat/completions", CHAT | {"stream": True}, kept) as exchange:
            steps.release(2)
            assert await exchange.start() == 200
        assert (await chat(api, "ada")).status_code == 429
        looked_up = await api.client.post("/v1/streams/lookup", json={"conversation_ids": ["a"]}, headers=bearer("ada"))
        assert [found["is_done"] for found in looked_up.json()] == [False]
        stopping = asyncio.create_task(api.client.delete("/v1/stream?conv_id=a", headers=bearer("ada")))
        steps.release(1000)
        assert (await stopping).status_code == 204
        await until(lambda: not api.app.state.services.rates._running)
        assert (await chat(api, "ada")).status_code == 200


@pytest.mark.parametrize(("ceiling", "asked", "status"), [(0, -1, 403), (0, 0, 200), (-5, -5, 200), (-5, -6, 403)])
async def test_nobody_is_more_urgent_than_his_key(
    serve: Serve, tmp_path: Path, ceiling: int, asked: int, status: int
) -> None:
    async with serve(server=server(key_file(tmp_path, ada={"priority": ceiling}))) as api:
        assert (await chat(api, "ada", priority=asked)).status_code == status


async def test_who_asks_for_no_priority_gets_his_keys(serve: Serve, tmp_path: Path) -> None:
    async with serve(server=server(key_file(tmp_path, ada={"priority": 3}))) as api:
        seen: list[int] = []
        engine = api.loaded().engine
        submit = engine.submit
        engine.submit = (  # type: ignore[method-assign]
            lambda request, sink: seen.append(request.priority) or submit(request, sink)  # type: ignore[func-returns-value]
        )
        for asked in (0, 2, 4):
            assert (await chat(api, "ada", priority=asked)).status_code == 200
        assert seen == [3, 3, 4]


async def test_the_file_is_followed(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    file = key_file(tmp_path, ada={})
    async with serve(server=server(file)) as api:
        assert (await chat(api, "bert")).status_code == 401
        key_file(tmp_path, ada={"scopes": ["metrics"]}, bert={})
        await until(lambda: "there are 2" in caplog.text)
        assert (await chat(api, "bert")).status_code == 200
        assert (await chat(api, "ada")).status_code == 403
        file.write_text("keys: [{name: eve}]")
        await until(lambda: "the API keys are as they were" in caplog.text)
        assert (await chat(api, "bert")).status_code == 200
        key_file(tmp_path)  # the last one goes: nobody gets in
        await until(lambda: "there are 0" in caplog.text)
        assert (await chat(api, "bert")).status_code == 401
        assert (await api.client.get("/v1/models")).status_code == 401


async def test_llama_servers_keys_may_do_everything_beside_them(serve: Serve, tmp_path: Path) -> None:
    settings = server(key_file(tmp_path, ada={}), api_keys=["master"], metrics=True)
    async with serve(server=settings) as api:
        assert (await api.client.get("/metrics", headers=bearer("master"))).status_code == 200
        assert (await chat(api, "master", priority=-9)).status_code == 200


async def test_the_log_says_whose_request_it_was(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="server.access")
    async with serve(server=server(key_file(tmp_path, ada={}))) as api:
        await chat(api, "ada")
        assert "POST '/v1/chat/completions' 200" in caplog.text
        record: Any = caplog.records[-1]
        assert record.key == "ada"
        reply = await api.client.post("/lora-adapters", json=[], headers=bearer("ada"))
        assert reply.status_code == 403
        record = caplog.records[-1]
        assert record.key == "ada"  # also what it may not do


@pytest.mark.parametrize("by", ["ada", "ops"])
async def test_nobody_ends_the_requests_of_others(live: GoLive, tmp_path: Path, by: str) -> None:
    steps = threading.Semaphore(1)
    loader = FakeLoader(runner=lambda: FakeRunner(n_seq=2, steps=steps))
    file = key_file(tmp_path, ada={}, bert={}, ops={"scopes": ["infer", "metrics"]})
    async with live(loader, server=server(file)) as running:
        request = chat_request(max_tokens=50).replace(b"Host: test", b"Host: test\r\nAuthorization: Bearer ada")
        reader, writer = await running.connect(request)
        completion = json.loads((await reader.readuntil(b"}\n\n")).rpartition(b"data: ")[2])["id"]
        asked = {"id": completion, "action": "cancel"}
        for name in ("bert", by):
            path = "/v1/chat/completions/control"
            reply = await running.api.client.post(path, json=asked, headers=bearer(name))
            assert reply.json()["success"] is (name == by)
        steps.release(1000)
        writer.close()


KEYS = {"server": {"api_keys": ["secret", "other"]}}
UNAUTHORIZED = {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}


async def test_without_a_key_nothing_is_told(serve: Serve) -> None:
    async with serve(**KEYS) as api:
        for path in ("/v1/models", "/models", "/props", "/slots", "/metrics", "/docs/nope", "/nope"):
            reply = await api.client.get(path)
            code = {"code": "invalid_api_key", "param": None} if path.startswith("/v1/") else {}
            assert (reply.status_code, reply.json()) == (401, {"error": {**UNAUTHORIZED["error"], **code}}), path
            assert reply.headers["www-authenticate"] == "Bearer"


async def test_a_refused_request_is_not_read(serve: Serve) -> None:
    async with serve(**KEYS) as api:
        reply = await api.client.post("/v1/completions", content=b"{not json")
        assert reply.status_code == 401


async def test_keys_come_from_a_file_too(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team\nfrom-file\n\n")
    async with serve(server={"api_keys": ["secret"], "api_key_file": str(file)}) as api:
        for key, status in (("from-file", 200), ("secret", 200), ("# team", 401), ("", 401)):
            reply = await api.client.get("/v1/models", headers={"X-Api-Key": key})
            assert reply.status_code == status
