"""The rerank endpoints over a fake reranker."""

from typing import Any

import pytest

from tests.api.conftest import Serve

DEMO = {"path": "demo.gguf", "load": "startup"}
RANKER = {"path": "r.gguf", "load": "startup", "reranking": True}
EMBED = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
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
async def test_mistakes_are_the_clients(serve: Serve, body: dict[str, Any], message: str) -> None:
    async with serve(models={"r": RANKER}) as api:
        reply = await api.client.post("/rerank", json=body)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]
