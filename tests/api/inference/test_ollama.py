"""Ollama's API over a fake model; every reply is one that the official client's own types take."""

from typing import Any

import httpx
import numpy as np
import ollama
import pytest

from tests.api.conftest import Api, Serve, until
from tests.support.fakes import FakeLoader

DEMO = {"path": "demo.gguf", "aliases": ["gpt-4o-mini"], "load": "startup"}
EMBED = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
BOTH = {"demo": DEMO, "embedder": EMBED}


async def get(api: Api, path: str) -> Any:
    reply = await api.client.get(path)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def post(api: Api, path: str, **body: object) -> Any:
    reply = await api.client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def loaded(api: Api, model: str) -> bool:
    return api.pool.state(model).loaded is not None


# ---- models


async def test_what_a_client_looks_for_before_anything_else(client: httpx.AsyncClient) -> None:
    assert (await client.head("/")).status_code == 200
    version = (await client.get("/api/version")).json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13)  # editors refuse older ones


async def test_the_root_is_open_and_the_api_is_not(serve: Serve) -> None:
    async with serve(server={"api_keys": ["secret"]}) as api:
        assert (await api.client.get("/")).status_code == 200
        refused = await api.client.get("/api/tags")
        assert (refused.status_code, refused.json()) == (401, {"error": "Invalid API Key"})


async def test_every_configured_model_is_listed(serve: Serve) -> None:
    models = {**BOTH, "other": {"path": "other.gguf"}}
    async with serve(models=models) as api:
        listed = ollama.ListResponse.model_validate(await get(api, "/api/tags"))
        raw = (await get(api, "/api/tags"))["models"]
    assert [model.model for model in listed.models] == ["demo", "embedder", "other"]
    assert all(len(model.digest or "") == 64 for model in listed.models)
    details = listed.models[0].details
    assert details is not None
    assert (details.family, details.parameter_size, details.quantization_level) == ("fake", "1.00K", "F32")
    assert [set(model["capabilities"]) for model in raw] == [
        {"completion", "insert"},
        {"embedding"},
        {"completion"},
    ]


async def test_only_models_in_memory_run_and_say_until_when(serve: Serve) -> None:
    models = {"demo": DEMO | {"sleep_idle_seconds": 60}, "stays": DEMO | {"aliases": []}, "other": {"path": "o.gguf"}}
    async with serve(models=models) as api:
        running = ollama.ProcessResponse.model_validate(await get(api, "/api/ps")).models
    assert [model.model for model in running] == ["stays", "demo"]
    stays, sleeps = (model.expires_at for model in running)
    assert stays is not None
    assert sleeps is not None
    assert stays.year > sleeps.year + 200
    assert running[0].context_length == 256


@pytest.mark.parametrize("name", ["demo", "demo:latest", "gpt-4o-mini", "gpt-4o-mini:latest"])
async def test_a_model_is_shown_by_every_name_it_has(serve: Serve, name: str) -> None:
    async with serve(models=BOTH) as api:
        shown = ollama.ShowResponse.model_validate(await post(api, "/api/show", model=name))
        old = await post(api, "/api/show", name=name)
    assert shown.template is not None
    assert "<|im_start|>" in shown.template
    assert shown.modelinfo == {"general.architecture": "fake", "general.parameter_count": 1000}
    assert shown.capabilities == ["completion", "insert"]
    assert old["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "fake",
        "families": ["fake"],
        "parameter_size": "1.00K",
        "quantization_level": "F32",
    }


async def test_showing_loads_nothing_and_reads_the_file(serve: Serve) -> None:
    models = {**BOTH, "other": {"path": "other.gguf", "chat_template": "chatml"}, "gone": {"path": "gone.gguf"}}
    async with serve(FakeLoader(failing={"gone": "gone.gguf does not exist"}), models=models) as api:
        shown = await post(api, "/api/show", model="other")
        again = await post(api, "/api/show", model="other")
        gone = await api.client.post("/api/show", json={"model": "gone"})
        assert not loaded(api, "other")
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["model_info"]["general.parameter_count"] == 1000
    assert "<tool_call>" in shown["template"]
    assert shown == again
    assert (gone.status_code, gone.json()["error"]) == (503, "model 'gone' failed to load: gone.gguf does not exist")


async def test_an_unknown_model_and_what_a_body_may_not_be_are_said_in_ollamas_shape(serve: Serve) -> None:
    async with serve(models={**BOTH, "other": {"path": "other.gguf"}}) as api:
        missing = await api.client.post("/api/show", json={"model": "llama3"})
        wrong = await api.client.post("/api/show", json={"model": 5})
        broken = await api.client.post("/api/show", content=b"{")
    assert missing.status_code == 404
    assert missing.json()["error"].startswith("model 'llama3' not found")
    assert (wrong.status_code, wrong.json()) == (400, {"error": "model: must be a string"})
    assert broken.status_code == 400
    assert isinstance(broken.json()["error"], str)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("POST", "/api/blobs/sha256:00"),
        ("HEAD", "/api/blobs/sha256:00"),
    ],
)
async def test_ollamas_store_is_refused_in_its_shape(client: httpx.AsyncClient, method: str, path: str) -> None:
    reply = await client.request(method, path, json={"model": "demo"})
    assert reply.status_code == 501
    if method != "HEAD":
        assert reply.json()["error"].startswith(f"{path.removeprefix('/api/')}: this server's models")


async def test_a_model_that_is_there_needs_no_pull(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        assert await post(api, "/api/pull", model="demo:latest") == {"status": "success"}
        assert await post(api, "/api/pull", name="demo", stream=False) == {"status": "success"}
        other = await api.client.post("/api/pull", json={"model": "llama3"})
        wrong = await api.client.post("/api/pull", json={"model": "demo", "stream": "no"})
        nameless = await api.client.post("/api/pull", json={})
    assert (other.status_code, other.json()["error"].startswith("model: should be owner/name")) == (400, True)
    assert (wrong.status_code, wrong.json()) == (400, {"error": "stream: must be a boolean"})
    assert (nameless.status_code, nameless.json()) == (400, {"error": "model: is required"})


async def test_what_is_configured_is_not_deleted(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        kept = await api.client.request("DELETE", "/api/delete", json={"model": "demo"})
        gone = await api.client.request("DELETE", "/api/delete", json={"model": "llama3"})
    assert (kept.status_code, "not removable" in kept.json()["error"]) == (400, True)
    assert (gone.status_code, gone.json()["error"].startswith("model 'llama3' not found")) == (404, True)


async def test_errors_behind_a_prefix_keep_their_apis_shape(serve: Serve) -> None:
    async with serve(server={"api_prefix": "/api"}) as api:
        ollamas = await api.client.post("/api/api/show", content=b"{")
        native = await api.client.post("/api/embeddings", content=b"{")
    assert isinstance(ollamas.json()["error"], str)
    assert native.json()["error"]["type"] == "invalid_request_error"


# ---- vectors


async def test_vectors_have_the_length_of_one_and_counts(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        body = await post(api, "/api/embed", model="embedder", input=["ab", "c"])
        one = await post(api, "/api/embed", model="embedder:latest", input="ab")
    reply = ollama.EmbedResponse.model_validate(body)
    assert np.linalg.norm(np.array(reply.embeddings), axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert one["embeddings"] == body["embeddings"][:1]
    assert (one["model"], reply.prompt_eval_count) == ("embedder:latest", 5)
    assert reply.total_duration is not None
    assert reply.load_duration is not None
    assert reply.total_duration >= reply.load_duration >= 0


async def test_the_older_endpoint_gives_one_vector_as_it_is(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        old = await post(api, "/api/embeddings", model="embedder", prompt="ab")
        new = await post(api, "/api/embed", model="embedder", input="ab")
        empty = await post(api, "/api/embeddings", model="embedder", prompt="")
    vector = np.array(ollama.EmbeddingsResponse.model_validate(old).embedding)
    assert vector / np.linalg.norm(vector) == pytest.approx(new["embeddings"][0], abs=1e-5)
    assert empty == {"embedding": []}


async def test_vectors_can_be_shorter_and_texts_are_cut_unless_they_may_not_be(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        short = await post(api, "/api/embed", model="embedder", input="ab", dimensions=2)
        long = await post(api, "/api/embed", model="embedder", input="x" * 5000)
        refused = await api.client.post(
            "/api/embed", json={"model": "embedder", "input": "x" * 5000, "truncate": False}
        )
        wide = await api.client.post("/api/embed", json={"model": "embedder", "input": "x", "dimensions": 5})
    assert np.shape(short["embeddings"]) == (1, 2)
    assert np.linalg.norm(short["embeddings"][0]) == pytest.approx(1, abs=1e-5)
    assert 0 < long["prompt_eval_count"] < 5000
    assert refused.status_code == 400
    assert "5001 tokens" in refused.json()["error"]
    assert (wide.status_code, "4" in wide.json()["error"]) == (400, True)


async def test_options_of_a_load_are_named_in_the_warning(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        body = {"model": "embedder", "input": "a", "options": {"num_ctx": 4096, "num_gpu": None, "temperature": 0}}
        reply = await api.client.post("/api/embed", json=body)
        plain = await api.client.post("/api/embed", json={"model": "embedder", "input": "a", "options": {}})
    assert reply.headers["x-llamapool-warning"] == "options num_ctx: are set where the server's models are configured"
    assert "x-llamapool-warning" not in plain.headers


# ---- how long a model stays


async def test_nothing_to_embed_loads_the_model_and_keeps_it(serve: Serve) -> None:
    async with serve(models={"demo": DEMO, "embedder": EMBED | {"load": "on_demand"}}) as api:
        assert (await post(api, "/api/embed", model="embedder", keep_alive="1h30m"))["embeddings"] == []
        assert loaded(api, "embedder")
        left_s = api.pool.state("embedder").sleeps_in_s
        assert left_s is not None
        assert 5300 < left_s <= 5400
        await post(api, "/api/embed", model="embedder", input="a", keep_alive=-1)
        assert api.pool.state("embedder").sleeps_in_s is None


async def test_a_model_is_freed_behind_the_request_that_wants_it(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        await post(api, "/api/embed", model="embedder", input="a", keep_alive=0)
        await until(lambda: not loaded(api, "embedder"))
        assert loaded(api, "demo")
        await post(api, "/api/embed", model="embedder", input="a")
        assert api.pool.state("embedder").sleeps_in_s is None  # what was wanted has ended with the model's stay
