"""The rerank endpoints over a fake reranker."""

from typing import Any

import pytest

from tests.api.conftest import Serve

DEMO = {"path": "demo.gguf", "load": "startup"}
RANKER = {"path": "r.gguf", "load": "startup", "reranking": True}
EMBED = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
ASK = {"query": "q", "documents": ["b", "a", "c"]}


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
