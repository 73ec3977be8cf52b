"""The embeddings and rerank endpoints over fake models: routing, batches across requests, what is refused."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError

from server.engine.runner_api import Pooling
from tests.api.conftest import TIMEOUT_S, Api, GoLive, Serve, idle, until
from tests.support.fakes import FakeEmbeddingRunner, FakeLoader

DEMO = {"path": "demo.gguf", "load": "startup"}
EMBED = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
BOTH = {"demo": DEMO, "embedder": EMBED}
HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def embedding_of(api: Api, model: str = "embedder") -> Any:
    loaded = api.loaded(model)
    return loaded.embedder


async def test_vectors_beside_a_model_that_generates(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        chat, vectors = await asyncio.gather(
            api.client.post("/v1/chat/completions", json=HELLO | {"model": "demo"}),
            api.client.post("/v1/embeddings", json={"input": "hi", "model": "embedder"}),
        )
    assert (chat.status_code, vectors.status_code) == (200, 200)
    assert vectors.json()["model"] == "embedder"
    assert vectors.headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.parametrize("path", ["/embedding", "/v1/embeddings"])
async def test_images_of_older_clients_are_said_to_be_ignored(serve: Serve, path: str) -> None:
    async with serve(models={"embedder": EMBED}) as api:
        reply = await api.client.post(path, json={"input": "hi", "image_data": [{"data": "aGk=", "id": 1}]})
        without = await api.client.post(path, json={"input": "hi", "image_data": []})
    assert (reply.status_code, reply.content) == (200, without.content)
    assert reply.headers["x-llamapool-warning"].startswith("image_data is ignored")
    assert "x-llamapool-warning" not in without.headers


@pytest.mark.parametrize("name", [None, "", "gpt-4o", "text-embedding-ada-002"])
async def test_each_endpoint_finds_the_only_model_for_it(serve: Serve, name: str | None) -> None:
    async with serve(models=BOTH) as api:
        chat = await api.client.post("/v1/chat/completions", json=HELLO | {"model": name})
        vectors = await api.client.post("/v1/embeddings", json={"input": "hi", "model": name})
        native = await api.client.post("/embedding", json={"content": "hi", "model": name})
    assert chat.json()["model"] == "demo"
    assert vectors.json()["model"] == (name or "embedder")
    assert np.shape(native.json()[0]["embedding"]) == (1, 4)


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
async def test_the_native_endpoints(serve: Serve, path: str) -> None:
    async with serve(models={"e": EMBED | {"pooling": "none"}}) as api:
        reply = await api.client.post(path, json={"input": ["ab", "c"]})
        openai = await api.client.post("/v1/embeddings", json={"input": "ab"})
    assert [np.shape(entry["embedding"]) for entry in reply.json()] == [(3, 4), (2, 4)]
    assert openai.status_code == 400
    assert openai.json()["error"]["message"].startswith("Pooling type 'none' is not OAI compatible")


async def test_a_model_that_generates_says_how_to_make_it_embed(serve: Serve) -> None:
    async with serve() as api:
        for path in ("/embedding", "/embeddings", "/v1/embeddings"):
            for body in ({"input": "hi"}, {"input": "hi", "model": "demo"}):
                reply = await api.client.post(path, json=body)
                error = reply.json()["error"]
                assert (reply.status_code, error["type"]) == (501, "not_supported_error")
                assert error["message"].startswith(
                    "This server does not support embeddings. Start it with `--embeddings`"
                )
                assert "`embedding: true` for model 'demo'" in error["message"]


async def test_a_model_that_is_not_loaded_yet_says_so_too(serve: Serve) -> None:
    async with serve(models={"demo": DEMO | {"load": "on_demand"}}) as api:
        reply = await api.client.post("/v1/embeddings", json={"input": "hi"})
    assert reply.status_code == 501


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", HELLO),
        ("/v1/chat/completions", HELLO | {"stream": True}),
        ("/v1/completions", {"prompt": "x"}),
        ("/completion", {"prompt": "x"}),
        ("/infill", {"input_prefix": "x", "input_suffix": "y"}),
    ],
)
async def test_an_embedding_model_does_not_generate(serve: Serve, path: str, body: dict[str, Any]) -> None:
    async with serve(models={"e": EMBED}) as api:
        reply = await api.client.post(path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (501, "not_supported_error")
    assert error["message"].startswith("This server does not support completions. Start it without `--embeddings`")


async def test_a_model_may_do_both(serve: Serve) -> None:
    async with serve(models={"m": DEMO | {"embedding": True}}) as api:
        chat = await api.client.post("/v1/chat/completions", json=HELLO)
        vectors = await api.client.post("/v1/embeddings", json={"input": "hi"})
        assert (chat.status_code, vectors.status_code) == (200, 200)
        listed = (await api.client.get("/models")).json()["models"][0]
        assert listed["capabilities"] == ["completion", "embedding"]
        assert len((await api.client.get("/slots")).json()) == 4


async def test_monitoring_knows_embedding_models(serve: Serve) -> None:
    async with serve(models=BOTH, server={"metrics": True}) as api:
        await api.client.post("/v1/embeddings", json={"input": ["hi", "you"]})
        metrics = (await api.client.get("/metrics")).text
        assert 'llamapool_prompt_tokens_total{model="embedder"} 7\n' in metrics
        assert 'llamapool_n_decode_total{model="embedder"} 1\n' in metrics
        health = (await api.client.get("/health")).json()
        assert (health["slots_idle"], health["slots_processing"]) == (4 + 8, 0)
        slots = (await api.client.get("/slots", params={"model": "embedder"})).json()
        assert [slot["is_processing"] for slot in slots] == [False] * 8
        props = (await api.client.get("/props", params={"model": "embedder"})).json()
        assert props["total_slots"] == 8
        assert (await api.client.get("/props")).json()["model_alias"] == "demo"
        listed = (await api.client.get("/models")).json()["models"]
        assert [entry["capabilities"] for entry in listed] == [["completion"], ["embedding"]]


async def test_an_embedding_model_is_loaded_on_demand_and_freed(serve: Serve) -> None:
    async with serve(models={"demo": DEMO, "e": EMBED | {"load": "on_demand"}}) as api:
        assert (await api.client.post("/v1/embeddings", json={"input": "hi"})).status_code == 200
        await api.pool.unload("e", wait=True)
        assert [weights.closed for weights in api.loader.loaded] == [False, True]
        assert (await api.client.post("/v1/embeddings", json={"input": "hi"})).status_code == 200


async def test_200_requests_at_once_share_decodes(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    loader = FakeLoader(embedder=lambda: FakeEmbeddingRunner(steps=steps))
    async with serve(loader, models=BOTH) as api:
        requests = [
            asyncio.create_task(api.client.post("/v1/embeddings", json={"input": f"{i:04}"})) for i in range(200)
        ]
        engine = embedding_of(api)
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


async def test_a_client_that_leaves_takes_its_inputs_along(live: GoLive) -> None:
    steps, entered = threading.Semaphore(0), threading.Semaphore(0)
    loader = FakeLoader(
        embedder=lambda: FakeEmbeddingRunner(steps=steps, n_seq=1, on_embed=lambda _: entered.release())
    )
    async with live(loader, models={"e": EMBED}) as server:
        body = b'{"input": [%b]}' % b",".join([b'"text"'] * 1000)
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        _, writer = await server.connect(head + body)
        assert await asyncio.to_thread(entered.acquire, timeout=TIMEOUT_S)
        engine = embedding_of(server.api, "e")
        writer.close()
        await until(lambda: not server.api.pool.state("e").n_leases)
        steps.release(2)
        await idle(engine)
        (runner,) = loader.loaded[0].embedders
    assert len(runner.batches) <= 2


async def test_a_full_queue_is_a_429(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    loader = FakeLoader(embedder=lambda: FakeEmbeddingRunner(steps=steps, n_seq=1))
    async with serve(loader, models={"e": EMBED | {"max_queue": 1}}) as api:
        running = [asyncio.create_task(api.client.post("/embedding", json={"content": "x"})) for _ in range(2)]
        engine = embedding_of(api, "e")
        await until(lambda: engine.n_load == 2)
        refused = await api.client.post("/embedding", json={"content": "x"})
        steps.release(1000)
        replies = await asyncio.gather(*running)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert [reply.status_code for reply in replies] == [200, 200]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, '"input" or "content" must be provided'),
        ({"input": []}, 400, '"input" must not be empty'),
        ({"input": [[]]}, 400, "Input content cannot be empty"),
        ({"input": "x", "encoding_format": "hex"}, 400, "The format to return the embeddings in."),
        ({"input": "x" * 200}, 400, "input (201 tokens) is too large to process. increase the physical batch size"),
        ({"input": "x", "model": ["e"]}, 400, "Field 'model'"),
        ({"input": [1, 2, 300]}, 400, "token id 300 is outside of the vocabulary"),
    ],
)
async def test_mistakes_are_the_clients(serve: Serve, body: dict[str, Any], status: int, message: str) -> None:
    async with serve(models={"e": EMBED}) as api:
        reply = await api.client.post("/v1/embeddings", json=body)
        assert (reply.status_code, reply.json()["error"]["type"]) == (status, "invalid_request_error")
        assert message in reply.json()["error"]["message"]
        assert not api.pool.states()[0].n_leases


async def test_a_text_longer_than_the_context(serve: Serve) -> None:
    loader = FakeLoader(embedder=lambda: FakeEmbeddingRunner(pooling=Pooling.LAST))
    async with serve(loader, models={"e": EMBED}) as api:
        error = (await api.client.post("/v1/embeddings", json={"input": "x" * 300})).json()["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 301, 256)


async def test_the_official_client_asks_for_base64_and_decodes_it(serve: Serve) -> None:
    async with serve(models={"e": EMBED}) as api:
        http: Any = api.client
        client = AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http, max_retries=0)
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


async def test_an_unknown_name_among_several_embedders(serve: Serve) -> None:
    async with serve(models={"e": EMBED, "f": EMBED}) as api:
        unknown = await api.client.post("/v1/embeddings", json={"input": "x", "model": "g"})
        none = await api.client.post("/v1/embeddings", json={"input": "x"})
    assert (unknown.status_code, none.json()["model"]) == (404, "e")


@pytest.mark.parametrize("instances", [1, 2])
async def test_instances_share_weights(serve: Serve, instances: int) -> None:
    async with serve(models={"e": EMBED | {"instances": instances}}) as api:
        await asyncio.gather(*(api.client.post("/embedding", json={"content": "x"}) for _ in range(20)))
        (weights,) = api.loader.loaded
        assert len(weights.embedders) == instances
        assert len(embedding_of(api, "e").slots()) == 8 * instances


RANKER = {"path": "r.gguf", "load": "startup", "reranking": True}
ASK: dict[str, Any] = {"query": "q", "documents": ["b", "a", "c"]}


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
async def test_all_names_of_the_endpoint(serve: Serve, path: str) -> None:
    async with serve(models={"demo": DEMO, "ranker": RANKER}) as api:
        jina = (await api.client.post(path, json=ASK)).json()
        tei = (await api.client.post(path, json={"query": "q", "texts": ["b", "a", "c"], "return_text": True})).json()
    scores = [entry["relevance_score"] for entry in jina["results"]]
    assert scores == sorted(scores, reverse=True)
    assert {entry["index"] for entry in jina["results"]} == {0, 1, 2}
    assert jina["model"] == "ranker"
    assert [entry["index"] for entry in tei] == [entry["index"] for entry in jina["results"]]
    assert [entry["text"] for entry in tei] == [["b", "a", "c"][entry["index"]] for entry in tei]


async def test_coheres_endpoint_has_its_shape_of_replies_and_errors(serve: Serve) -> None:
    body = {**ASK, "top_n": 2, "return_documents": True, "max_tokens_per_doc": 9}
    async with serve(models={"demo": DEMO, "ranker": RANKER}) as api:
        reply = await api.client.post("/v2/rerank", json=body)
        jina = (await api.client.post("/v1/rerank", json={**ASK, "raw_scores": False})).json()
        wrong = await api.client.post("/v2/rerank", json={"query": "q", "texts": ["b"]})
    found = reply.json()
    assert found["results"] == [
        {**each, "document": {"text": ASK["documents"][each["index"]]}} for each in jina["results"][:2]
    ]
    assert all(0 <= each["relevance_score"] <= 1 for each in found["results"])
    assert found["meta"]["tokens"] == {"input_tokens": jina["usage"]["prompt_tokens"]}
    assert reply.headers["x-llamapool-warning"] == "'max_tokens_per_doc' is ignored: unknown field"
    assert (wrong.status_code, list(wrong.json())) == (400, ["message"])


async def test_moderations_say_what_is_missing(serve: Serve) -> None:
    async with serve() as api:
        reply = await api.client.post("/v1/moderations", json={"input": "x"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (501, "not_supported")
    assert "guard model" in reply.json()["error"]["message"]
    assert reply.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("models", [{"demo": DEMO}, {"e": EMBED}, {"demo": DEMO, "e": EMBED}])
async def test_without_a_reranker_the_reply_says_what_to_configure(serve: Serve, models: dict[str, Any]) -> None:
    async with serve(models=models) as api:
        reply = await api.client.post("/v1/rerank", json=ASK)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (501, "not_supported_error")
    assert error["message"].startswith("This server does not support reranking. Start it with `--reranking`")


async def test_a_reranker_does_not_generate_but_embeds_its_scores(serve: Serve) -> None:
    async with serve(models={"r": RANKER}) as api:
        assert (await api.client.post("/v1/completions", json={"prompt": "x"})).status_code == 501
        reply = await api.client.post("/embedding", json={"content": "x"})
    assert len(reply.json()[0]["embedding"][0]) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, '"query" must be provided'),
        ({"query": "q"}, '"documents" must be a non-empty string array'),
        ({"query": "q", "documents": []}, '"documents" must be a non-empty string array'),
        ({"query": "q", "documents": [1]}, '"documents" must be a non-empty string array'),
        ({"query": "q", "documents": ["x" * 600]}, "exceeds the available context size"),
        ({"query": "q", "documents": ["a"], "top_n": -1}, "Field 'top_n'"),
    ],
)
async def test_mistakes_in_a_ranking_are_the_clients(serve: Serve, body: dict[str, Any], message: str) -> None:
    async with serve(models={"r": RANKER}) as api:
        reply = await api.client.post("/rerank", json=body)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]
