"""API keys: scopes, models, rate limits, priorities, budgets and usage; reload of the key file."""

import asyncio
import csv
import io
import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import yaml

from server.transport.keys import hash_of, plain_key
from tests.api.conftest import Api, GoLive, Serve, chat_request, until
from tests.api.management.test_models import TWO_MODELS
from tests.api.streams import posting
from tests.support.fakes import FakeLoader

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


def key_file(folder: Path, **entries: dict[str, Any]) -> Path:
    """Write a key file. Each key equals the name of its entry; `name` in the fields replaces the name."""
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
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.reload.EVERY_S", 0.005)


async def test_only_keys_that_may_load_models_see_file_paths(serve: Serve, tmp_path: Path) -> None:
    """The error of a failed load, which quotes the library, shows a path to no key."""
    file = key_file(tmp_path, ada={}, ops={"scopes": ["infer", "models"]})
    folder = tmp_path / "private folder"
    failing = {"broken": f"{folder}/broken.gguf: not a GGUF file"}
    models = {
        "demo": {"path": f"{folder}/demo.gguf", "lora": [f"{folder}/pirate.gguf"]},
        "broken": {"path": f"{folder}/broken.gguf"},
    }
    paths = {"/props?model=demo": "demo.gguf", "/lora-adapters?model=demo": "pirate.gguf", "/v1/models": "demo"}
    async with serve(FakeLoader(failing=failing), models=models, server=server(file)) as api:
        for name, visible in (("ada", False), ("ops", True)):
            failed = await chat(api, name, model="broken")
            assert failed.json()["error"]["message"] == "model 'broken' failed to load: broken.gguf: not a GGUF file"
            for path, file_name in paths.items():
                text = (await api.expect(f"GET {path}", None, 200, file_name, bearer(name))).text
                assert (str(folder) in text) is visible


async def test_lora_of_a_request_needs_the_scope_lora(serve: Serve, tmp_path: Path) -> None:
    file = key_file(tmp_path, ada={"scopes": ["infer"]}, bert={"scopes": ["infer", "lora"]})
    models = {"demo": {"path": "demo.gguf", "lora": ["pirate.gguf"]}}
    async with serve(models=models, server=server(file)) as api:
        lora, path = {"lora": [{"id": 0, "scale": 0.5}]}, "POST /v1/chat/completions"
        lacks = ({"error": {"type": "permission_error"}}, "lacks the scope 'lora'")
        await api.expect(path, CHAT | lora, 403, lacks, bearer("ada"))
        await api.expect(path, CHAT | {"lora": []}, headers=bearer("ada"))  # the configured scales
        await api.expect(path, CHAT | lora, headers=bearer("bert"))
        await api.expect(path, CHAT, headers=bearer("ada"))


async def test_api_keys_besides_a_key_file_and_open_metrics(serve: Serve, tmp_path: Path) -> None:
    """A key file without keys refuses every request. `test_paths` tests each scope."""
    settings = server(key_file(tmp_path, ada={}), api_keys=["master"], metrics=True, metrics_open=True)
    async with serve(server=settings) as api:
        await api.expect("GET /metrics")
        await api.expect("GET /slots", None, 401)
        await api.expect("POST /v1/completions", b"{not json", 401)  # the body of a refused request is not parsed
        assert (await chat(api, "master", priority=-9)).status_code == 200  # keys of `--api-key` have all scopes
    async with serve(server=server(key_file(tmp_path))) as api:
        for headers in ({}, bearer("ada"), bearer("")):
            await api.expect("GET /v1/models", None, 401, headers=headers)
            await api.expect("POST /v1/chat/completions", CHAT, 401, headers=headers)


async def test_key_sees_only_its_own_models(serve: Serve, tmp_path: Path) -> None:
    scopes = ["infer", "models", "slots"]
    file = key_file(tmp_path, ada={"models": ["first"], "scopes": scopes}, all={"scopes": scopes})
    async with serve(models=TWO_MODELS, server=server(file)) as api:
        lists = [(await api.expect("GET /v1/models", headers=bearer(name))).json()["data"] for name in ("ada", "all")]
        assert [[model["id"] for model in models] for models in lists] == [["org/a:Q8"], ["org/a:Q8", "b"]]
        assert (await chat(api, "ada")).status_code == 200  # without a name: the key's only model
        for request, body in (
            ("POST /v1/chat/completions", CHAT | {"model": "b"}),
            ("GET /v1/models/b", None),
            ("GET /props?model=b", None),
            ("GET /slots?model=b", None),
            ("POST /models/load", {"model": "b"}),
            ("POST /api/show", {"model": "b"}),
        ):
            await api.expect(request, body, 404, 'known models: org/a:Q8"', bearer("ada"))
        await api.expect("POST /models", {"model": "o/n"}, 403, headers=bearer("ada"))
        await api.expect("GET /models?reload=1", None, 403, headers=bearer("ada"))
        await api.expect("POST /models/load", {"model": "b"}, headers=bearer("all"))


@pytest.mark.parametrize(
    "request_",
    [
        "GET /props?model=b",
        "GET /lora-adapters?model=b",
        "GET /tokenizer_info?model=b",
        "POST /lora-adapters?model=b",
        "POST /slots/0?action=erase&model=b",
    ],
)
async def test_key_without_scopes_for_models_does_not_load_any(serve: Serve, tmp_path: Path, request_: str) -> None:
    viewer = ["slots", "lora", "props", "metrics"]
    scopes = {"viewer": viewer, "ops": [*viewer, "models"], "ada": [*viewer, "infer"]}
    file = key_file(tmp_path, **{name: {"scopes": each} for name, each in scopes.items()})
    body: Any = None if request_.startswith("GET") else [] if "lora" in request_ else {}
    async with serve(models=TWO_MODELS, server=server(file, models_max=1, slot_save_path=str(tmp_path))) as api:
        first = request_.replace("=b", "=first")
        await api.expect(first, body, headers=bearer("viewer"))
        await api.expect(request_, body, 403, "lacks the scope 'infer'", bearer("viewer"))
        assert [state.loaded is not None for state in api.pool.states()] == [True, False]  # nothing was evicted
        await api.expect(request_, body, headers=bearer("ops"))
        await api.expect(first, body, headers=bearer("ada"))


async def test_keys_with_the_same_name_share_stored_responses_and_streams(serve: Serve, tmp_path: Path) -> None:
    """While a key is rotated, the old and the new key are valid."""
    file = key_file(tmp_path, old={"name": "ada"}, new={"name": "ada"}, other={"name": "bert"})
    async with serve(server=server(file)) as api:
        body = {"input": "Hi", "max_output_tokens": 3}
        first = (await api.expect("POST /v1/responses", body, headers=bearer("old"))).json()["id"]
        resumable = {**bearer("old"), "X-Conversation-Id": "a"}
        assert (await api.expect("POST /v1/chat/completions", CHAT | {"stream": True}, headers=resumable)).text
        for key, found in (("old", True), ("new", True), ("other", False)):
            follow_up = body | {"previous_response_id": first}
            await api.expect(f"GET /v1/responses/{first}", None, 200 if found else 404, headers=bearer(key))
            await api.expect("POST /v1/responses", follow_up, 200 if found else 400, headers=bearer(key))
            await api.expect("GET /v1/stream?conv_id=a", None, 200 if found else 404, headers=bearer(key))


async def test_name_in_the_key_file_gives_no_access_to_objects_of_an_unnamed_key(serve: Serve, tmp_path: Path) -> None:
    """Logs identify an unnamed key by a prefix of its hash, and an entry of the file may have this name."""
    file = key_file(tmp_path, thief={"name": plain_key("master").name})
    async with serve(server=server(file, api_keys=["master", "second"])) as api:
        body = {"input": "Hi", "max_output_tokens": 3}
        response = (await api.expect("POST /v1/responses", body, headers=bearer("master"))).json()["id"]
        for key, status in (("thief", 404), ("second", 404), ("master", 200)):
            await api.expect(f"GET /v1/responses/{response}", None, status, headers=bearer(key))


async def test_requests_per_minute_are_limited_and_the_remainder_is_reported(serve: Serve, tmp_path: Path) -> None:
    async with serve(server=server(key_file(tmp_path, ada={"requests_per_minute": 2}, bert={}))) as api:
        first = await chat(api, "ada")
        assert (first.status_code, first.headers["x-ratelimit-remaining-requests"]) == (200, "1")
        for _ in range(3):  # only generation counts
            assert (await api.client.get("/v1/models", headers=bearer("ada"))).status_code == 200
        message = await api.client.post("/v1/messages", json=CHAT, headers={"x-api-key": "ada"})
        assert message.headers["anthropic-ratelimit-requests-remaining"] == "0"
        error = {"error": {"type": "rate_limit_error"}}
        refused = await api.expect("POST /v1/chat/completions", CHAT, 429, error, bearer("ada"))
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert "x-ratelimit-remaining-requests" not in (await chat(api, "bert")).headers
        await api.expect("POST /v1/messages", CHAT, 429, error, {"x-api-key": "ada"})


@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_and_completion_tokens_count_towards_the_limit(serve: Serve, tmp_path: Path, stream: bool) -> None:
    loader = FakeLoader(replies={"assistant\n": "Hello there"})
    async with serve(loader, server=server(key_file(tmp_path, ada={"tokens_per_minute": 1000}))) as api:
        reply = await chat(api, "ada", stream=stream, stream_options={"include_usage": True} if stream else None)
        usage = json.loads(reply.text.split("data: ")[-2])["usage"] if stream else reply.json()["usage"]
        left = int((await chat(api, "ada")).headers["x-ratelimit-remaining-tokens"])
        assert left == 1000 - usage["total_tokens"]  # before the second request's tokens


async def test_embedding_tokens_count_towards_the_limit(serve: Serve, tmp_path: Path) -> None:
    models = {"demo": {"path": "demo.gguf", "load": "startup", "embedding": True}}
    async with serve(models=models, server=server(key_file(tmp_path, ada={"tokens_per_minute": 2}))) as api:
        body = {"input": "some text to embed"}
        await api.expect("POST /v1/embeddings", body, headers=bearer("ada"))
        await api.expect("POST /v1/embeddings", body, 429, "tokens per minute", bearer("ada"))


@pytest.mark.parametrize(
    ("path", "body", "headers", "outlives_client"),
    [
        ("/v1/chat/completions", CHAT | {"stream": True}, {}, False),
        ("/v1/chat/completions", CHAT | {"stream": True}, {"X-Conversation-Id": "a"}, True),
        ("/v1/responses", {"input": "Hi", "background": True, "max_output_tokens": 5}, {}, True),
    ],
    ids=["stream", "resumable stream", "background response"],
)
async def test_concurrent_requests_of_a_key_are_limited(
    serve: Serve, tmp_path: Path, path: str, body: dict[str, Any], headers: dict[str, str], outlives_client: bool
) -> None:
    steps = threading.Semaphore(0)
    limits = key_file(tmp_path, ada={"max_concurrent_requests": 1}, bert={})
    async with serve(FakeLoader(n_seq=4, steps=steps), server=server(limits)) as api:
        async with posting(api.app, path, body, bearer("ada") | headers) as exchange:
            steps.release(2)
            assert await exchange.start() == 200
            await api.expect("POST /v1/chat/completions", CHAT, 429, "1 concurrent requests", bearer("ada"))
        assert bool(api.app.state.services.rates._running) is outlives_client
        steps.release(1000)
        await until(lambda: not api.app.state.services.rates._running)
        assert (await chat(api, "ada")).status_code == 200


@pytest.mark.parametrize(
    ("ceiling", "priorities"), [(0, {-1: None, 0: 0}), (-5, {-5: -5, -6: None}), (3, {0: 3, 2: 3, 4: 4})]
)
async def test_priority_of_a_request_is_limited_by_its_key(
    serve: Serve, tmp_path: Path, ceiling: int, priorities: dict[int, int | None]
) -> None:
    """`priorities`: the priority that the engine receives for each requested one, or None for a refusal with 403."""
    async with serve(server=server(key_file(tmp_path, ada={"priority": ceiling}))) as api:
        received: list[int] = []
        engine = api.loaded().engine
        submit = engine.submit
        engine.submit = (  # type: ignore[method-assign]
            lambda request, sink: received.append(request.priority) or submit(request, sink)  # type: ignore[func-returns-value]
        )
        for requested, expected in priorities.items():
            assert (await chat(api, "ada", priority=requested)).status_code == (403 if expected is None else 200)
        assert received == [expected for expected in priorities.values() if expected is not None]


async def test_changed_key_file_is_reloaded(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        key_file(tmp_path)  # without keys every request is refused
        await until(lambda: "there are 0" in caplog.text)
        assert (await chat(api, "bert")).status_code == 401
        assert (await api.client.get("/v1/models")).status_code == 401


@pytest.mark.parametrize("allowed", ["ada", "ops"])
async def test_only_the_same_key_or_an_administrator_cancels_a_request(
    live: GoLive, tmp_path: Path, allowed: str
) -> None:
    steps = threading.Semaphore(1)
    loader = FakeLoader(n_seq=2, steps=steps)
    file = key_file(tmp_path, ada={}, bert={}, ops={"scopes": ["infer", "metrics"]})
    async with live(loader, server=server(file)) as running:
        request = chat_request(max_tokens=50).replace(b"Host: test", b"Host: test\r\nAuthorization: Bearer ada")
        reader, writer = await running.connect(request)
        completion = json.loads((await reader.readuntil(b"}\n\n")).rpartition(b"data: ")[2])["id"]
        body = {"id": completion, "action": "cancel"}
        for name in ("bert", allowed):
            path = "/v1/chat/completions/control"
            reply = await running.api.client.post(path, json=body, headers=bearer(name))
            assert reply.json()["success"] is (name == allowed)
        steps.release(1000)
        writer.close()


KEYS = {"server": {"api_keys": ["secret", "other"]}}
UNAUTHORIZED = {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}


async def test_requests_without_a_key_are_refused(serve: Serve) -> None:
    async with serve(**KEYS) as api:
        for path in ("/v1/models", "/models", "/props", "/slots", "/metrics", "/docs/nope", "/nope"):
            reply = await api.client.get(path)
            code = {"code": "invalid_api_key", "param": None} if path.startswith("/v1/") else {}
            assert (reply.status_code, reply.json()) == (401, {"error": {**UNAUTHORIZED["error"], **code}}), path
            assert reply.headers["www-authenticate"] == "Bearer"


async def test_keys_are_read_from_api_key_file(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team\nfrom-file\n\n")
    async with serve(server={"api_keys": ["secret"], "api_key_file": str(file)}) as api:
        for key, status in (("from-file", 200), ("secret", 200), ("# team", 401), ("", 401)):
            await api.expect("GET /v1/models", None, status, headers={"X-Api-Key": key})


REPLIES = {"assistant\n": "Hello there"}


async def get_usage(api: Api, caller: str, **params: str) -> Any:
    return (await api.expect(f"GET /v1/usage?{urlencode(params)}", headers=bearer(caller))).json()


async def test_key_sees_its_own_usage_and_an_administrator_all(serve: Serve, tmp_path: Path) -> None:
    keys = key_file(tmp_path, ada={"tokens_per_day": 5000}, bert={}, admin={"scopes": ["metrics"]})
    async with serve(FakeLoader(replies=REPLIES), server=server(keys)) as api:
        replies = [await chat(api, key) for key in ("ada", "ada", "bert")]
        counts = [reply.json()["usage"] for reply in replies]
        own = await get_usage(api, "ada")
        (row,) = own["data"]
        assert (row["key"], row["model"], row["requests"]) == ("ada", "demo", 2)
        assert row["prompt_tokens"] == sum(each["prompt_tokens"] for each in counts[:2])
        assert row["completion_tokens"] == sum(each["completion_tokens"] for each in counts[:2])
        n_used = row["prompt_tokens"] + row["completion_tokens"]
        assert own["budget"] == {"day": {"used": n_used, "limit": 5000}, "month": {"used": n_used, "limit": None}}
        assert (await get_usage(api, "ada", key="bert"))["data"] == own["data"]
        every = await get_usage(api, "admin")
        assert [row["key"] for row in every["data"]] == ["ada", "bert"]
        assert [row["key"] for row in (await get_usage(api, "admin", key="bert"))["data"]] == ["bert"]
        assert (await get_usage(api, "admin", end="2026-01-01"))["data"] == []
        table = await api.client.get("/v1/usage?format=csv", headers=bearer("admin"))
        assert table.headers["content-type"].startswith("text/csv")
        assert [{key: str(value) for key, value in row.items()} for row in every["data"]] == list(
            csv.DictReader(io.StringIO(table.text))
        )


async def test_request_refused_by_a_full_queue_counts_no_tokens(serve: Serve, tmp_path: Path) -> None:
    steps = threading.Semaphore(0)
    models = {"demo": {"path": "a.gguf", "n_parallel": 1, "max_queue": 1}}
    async with serve(FakeLoader(n_seq=1, steps=steps), models=models, server=server(key_file(tmp_path, ada={}))) as api:
        running = [asyncio.create_task(chat(api, "ada")) for _ in range(2)]
        await until(lambda: len(api.app.state.services.running) == 2)
        await api.expect("POST /v1/chat/completions", CHAT, 429, "queue is full", bearer("ada"))
        assert b'reason="queue_full"' in api.app.state.services.metrics.render("")[0]
        steps.release(1000)
        counts = [(await request).json()["usage"] for request in running]
        (row,) = (await get_usage(api, "ada"))["data"]
        assert row["prompt_tokens"] == sum(each["prompt_tokens"] for each in counts)


@pytest.mark.parametrize("period", ["day", "month"])
async def test_key_without_budget_is_refused_until_the_next_period(serve: Serve, tmp_path: Path, period: str) -> None:
    keys = key_file(tmp_path, ada={f"tokens_per_{period}": 1}, bert={}, admin={"scopes": ["metrics"]})
    async with serve(FakeLoader(replies=REPLIES), server=server(keys, metrics=True)) as api:
        assert (await chat(api, "ada")).status_code == 200
        refused = await api.expect("POST /v1/chat/completions", CHAT, 429, f"1 tokens per {period}", bearer("ada"))
        assert 1 <= int(refused.headers["retry-after"]) <= 31 * 86_400
        assert (await chat(api, "bert")).status_code == 200
        n_used = (await get_usage(api, "ada"))["budget"][period]["used"]
        metrics = (await api.client.get("/metrics", headers=bearer("admin"))).text
        assert f'request_errors_total{{reason="rate_limited_tokens_per_{period}"}} 1\n' in metrics
        assert f'llamapool_key_budget_used_tokens{{key="ada",period="{period}"}} {n_used}' in metrics
