"""The embeddings and rerank endpoints over fake models: model selection, batching, cancellation, errors."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from openai import BadRequestError

from server.engine.runner_api import Pooling
from tests.api.conftest import TIMEOUT_S, GoLive, Serve, idle, until
from tests.api.scripted import openai_client
from tests.support.fakes import FakeEmbeddingRunner, FakeLoader

DEMO = {"path": "demo.gguf", "load": "startup"}
EMBED = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
BOTH = {"demo": DEMO, "embedder": EMBED}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


@pytest.mark.parametrize("path", ["/embedding", "/v1/embeddings"])
async def test_legacy_image_data_is_ignored_with_a_warning(serve: Serve, path: str) -> None:
    async with serve(models={"embedder": EMBED}) as api:
        reply = await api.expect(f"POST {path}", {"input": "hi", "image_data": [{"data": "aGk=", "id": 1}]})
        without = await api.expect(f"POST {path}", {"input": "hi", "image_data": []})
    assert reply.content == without.content
    assert reply.headers["x-llamapool-warning"].startswith("image_data is ignored")
    assert "x-llamapool-warning" not in without.headers


@pytest.mark.parametrize("name", [None, "", "gpt-4o", "text-embedding-ada-002"])
async def test_endpoint_selects_the_only_suitable_model_for_unknown_names(serve: Serve, name: str | None) -> None:
    async with serve(models=BOTH) as api:
        chat = await api.client.post("/v1/chat/completions", json=CHAT | {"model": name})
        vectors = await api.client.post("/v1/embeddings", json={"input": "hi", "model": name})
        native = await api.client.post("/embedding", json={"content": "hi", "model": name})
    assert chat.json()["model"] == "demo"
    assert vectors.headers["content-type"] == "application/json; charset=utf-8"
    assert vectors.json()["model"] == (name or "embedder")
    assert np.shape(native.json()[0]["embedding"]) == (1, 4)


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
async def test_pooling_none_returns_token_embeddings_from_native_endpoints_only(serve: Serve, path: str) -> None:
    async with serve(models={"e": EMBED | {"pooling": "none"}}) as api:
        reply = await api.client.post(path, json={"input": ["ab", "c"]})
        openai = await api.client.post("/v1/embeddings", json={"input": "ab"})
    assert [np.shape(entry["embedding"]) for entry in reply.json()] == [(3, 4), (2, 4)]
    assert openai.status_code == 400
    assert openai.json()["error"]["message"].startswith("Pooling type 'none' is not OAI compatible")


async def test_one_model_may_serve_chat_and_embeddings(serve: Serve) -> None:
    async with serve(models={"m": DEMO | {"embedding": True}}) as api:
        await api.expect("POST /v1/chat/completions", CHAT)
        await api.expect("POST /v1/embeddings", {"input": "hi"})
        await api.expect("GET /models", part='"capabilities":["completion","embedding"]')
        assert len((await api.client.get("/slots")).json()) == 4


async def test_metrics_slots_props_and_health_include_embedding_models(serve: Serve) -> None:
    async with serve(models=BOTH, server={"metrics": True}) as api:
        await api.expect("POST /v1/embeddings", {"input": ["hi", "you"]})
        counts = ("prompt_tokens_total", 7), ("n_decode_total", 1)
        samples = tuple(f'llamapool_{name}{{model="embedder"}} {n}\n' for name, n in counts)
        await api.expect("GET /metrics", part=samples)
        await api.expect("GET /health", part={"slots_idle": 4 + 8, "slots_processing": 0})
        slots = (await api.client.get("/slots", params={"model": "embedder"})).json()
        assert [slot["is_processing"] for slot in slots] == [False] * 8
        await api.expect("GET /props?model=embedder", part={"total_slots": 8})
        await api.expect("GET /props", part={"model_alias": "demo"})
        listed = (await api.client.get("/models")).json()["models"]
        assert [entry["capabilities"] for entry in listed] == [["completion"], ["embedding"]]


async def test_concurrent_requests_share_decodes(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    loader = FakeLoader(embedder=lambda: FakeEmbeddingRunner(steps=steps))
    async with serve(loader, models=BOTH) as api:
        requests = [
            asyncio.create_task(api.client.post("/v1/embeddings", json={"input": f"{i:04}"})) for i in range(200)
        ]
        engine: Any = api.loaded("embedder").embedder
        await until(lambda: engine.n_load == 200)
        steps.release(1000)
        replies = await asyncio.gather(*requests)
        (runner,) = next(weights.embedders for weights in api.loader.loaded if weights.spec.id == "embedder")
    assert {reply.status_code for reply in replies} == {200}
    assert sum(map(len, runner.batches)) == 200
    assert len(runner.batches) <= 26
    first = np.array(replies[0].json()["data"][0]["embedding"])
    last = np.array(replies[199].json()["data"][0]["embedding"])
    assert not np.allclose(first, last)


async def test_disconnect_removes_the_queued_inputs_of_the_request(live: GoLive) -> None:
    steps, entered = threading.Semaphore(0), threading.Semaphore(0)
    runner = FakeEmbeddingRunner(steps=steps, n_seq=1, on_embed=lambda _: entered.release())
    async with live(FakeLoader(embedder=lambda: runner), models={"e": EMBED}) as server:
        body = b'{"input": [%b]}' % b",".join([b'"text"'] * 1000)
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        _, writer = await server.connect(head + body)
        assert await asyncio.to_thread(entered.acquire, timeout=TIMEOUT_S)
        writer.close()
        await until(lambda: not server.api.pool.state("e").n_leases)
        steps.release(2)
        await idle(server.api.loaded("e").embedder)
    assert len(runner.batches) <= 2


async def test_full_embedding_queue_is_a_429_with_retry_after(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    loader = FakeLoader(embedder=lambda: FakeEmbeddingRunner(steps=steps, n_seq=1))
    async with serve(loader, models={"e": EMBED | {"max_queue": 1}}) as api:
        running = [asyncio.create_task(api.client.post("/embedding", json={"content": "x"})) for _ in range(2)]
        engine: Any = api.loaded("e").embedder
        await until(lambda: engine.n_load == 2)
        refused = await api.client.post("/embedding", json={"content": "x"})
        steps.release(1000)
        replies = await asyncio.gather(*running)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert [reply.status_code for reply in replies] == [200, 200]


async def test_text_longer_than_the_context_is_a_400(serve: Serve) -> None:
    loader = FakeLoader(embedder=lambda: FakeEmbeddingRunner(pooling=Pooling.LAST))
    async with serve(loader, models={"e": EMBED}) as api:
        error = {"type": "exceed_context_size_error", "n_prompt_tokens": 301, "n_ctx": 256}
        await api.expect("POST /v1/embeddings", {"input": "x" * 300}, 400, {"error": error})


async def test_official_client_decodes_base64_embeddings(serve: Serve) -> None:
    async with serve(models={"e": EMBED}) as api:
        client = openai_client(api)
        decoded = await client.embeddings.create(model="e", input=[[5, 6], [7]], user="somebody")
        plain = (await api.client.post("/v1/embeddings", json={"input": [[5, 6], [7]]})).json()
        shorter = await client.embeddings.create(model="e", input="x", dimensions=2)
        with pytest.raises(BadRequestError, match="dimensions"):
            await client.embeddings.create(model="e", input="x", dimensions=5)
    assert [entry.embedding for entry in decoded.data] == [
        pytest.approx(entry["embedding"], abs=1e-6) for entry in plain["data"]
    ]
    assert decoded.usage.prompt_tokens == decoded.usage.total_tokens == 3
    assert len(shorter.data[0].embedding) == 2


@pytest.mark.parametrize("instances", [1, 2])
async def test_embedding_instances_share_weights(serve: Serve, instances: int) -> None:
    async with serve(models={"e": EMBED | {"instances": instances}}) as api:
        await asyncio.gather(*(api.client.post("/embedding", json={"content": "x"}) for _ in range(20)))
        (weights,) = api.loader.loaded
        assert len(weights.embedders) == instances
        engine: Any = api.loaded("e").embedder
        assert len(engine.slots()) == 8 * instances


RANKER = {"path": "r.gguf", "load": "startup", "reranking": True}
RERANK: dict[str, Any] = {"query": "q", "documents": ["b", "a", "c"]}


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
async def test_rerank_replies_in_the_format_of_jina_or_tei(serve: Serve, path: str) -> None:
    async with serve(models={"demo": DEMO, "ranker": RANKER}) as api:
        jina = (await api.expect(f"POST {path}", RERANK, 200, {"model": "ranker"})).json()["results"]
        tei = await api.expect(f"POST {path}", {"query": "q", "texts": RERANK["documents"], "return_text": True})
    scores = [entry["relevance_score"] for entry in jina]
    assert scores == sorted(scores, reverse=True)
    assert {entry["index"] for entry in jina} == {0, 1, 2}
    assert [(entry["index"], entry["text"]) for entry in tei.json()] == [
        (entry["index"], RERANK["documents"][entry["index"]]) for entry in jina
    ]


async def test_v2_rerank_replies_and_fails_in_the_format_of_cohere(serve: Serve) -> None:
    body = {**RERANK, "top_n": 2, "return_documents": True, "max_tokens_per_doc": 9}
    async with serve(models={"demo": DEMO, "ranker": RANKER}) as api:
        reply = await api.client.post("/v2/rerank", json=body)
        jina = (await api.client.post("/v1/rerank", json={**RERANK, "raw_scores": False})).json()
        wrong = await api.client.post("/v2/rerank", json={"query": "q", "texts": ["b"]})
    cohere = reply.json()
    assert cohere["results"] == [
        {**each, "document": {"text": RERANK["documents"][each["index"]]}} for each in jina["results"][:2]
    ]
    assert all(0 <= each["relevance_score"] <= 1 for each in cohere["results"])
    assert cohere["meta"]["tokens"] == {"input_tokens": jina["usage"]["prompt_tokens"]}
    assert reply.headers["x-llamapool-warning"] == "'max_tokens_per_doc' is ignored: unknown field"
    assert (wrong.status_code, list(wrong.json())) == (400, ["message"])
