"""Embeddings, rerank scores and errors compared with llama-server.

`test_oracle_compatibility` covers the formats of each endpoint, `library/test_llama_embedding.py` the pooling types.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model.oracle.comparison import Pair, shape_differences
from tests.model.oracle.conftest import Start
from tests.support.closeness import same_vectors
from tests.support.ggufs import MODELS, gguf_file

TEXTS: list[Any] = [
    "the quick brown fox",
    "",
    "jumps over the lazy dog and then the other animals of the forest come together to see",
    [5, 6, 7],
    [5, "the fox", 7],
    {"prompt_string": "a stream of tokens"},
    {"content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]},
]
DOCUMENTS = ["the dog", "a stream of tokens", "", "the quick brown fox jumps over the lazy dog", "x"]


def start_embedder(start: Start, name: str, folder: Path, pooling: str = "") -> Pair:
    params: dict[str, Any] = {"embedding": True} | ({"pooling_type": 4} if pooling else {})
    flags = ("--embeddings", *(["--pooling", pooling] if pooling else []))
    return start(gguf_file(folder, MODELS[name]), n_ctx=1024, n_parallel=2, flags=flags, params=params)


@pytest.fixture(scope="module", params=["bert", "embed-none"])
def embedding(request: pytest.FixtureRequest, start: Start, gguf_folder: Path) -> Pair:
    return start_embedder(start, request.param, gguf_folder)


@pytest.fixture(scope="module")
def reranking(start: Start, gguf_folder: Path) -> Pair:
    return start_embedder(start, "template-reranker", gguf_folder, "rank")


def test_embeddings_are_equal(embedding: Pair) -> None:
    for text in TEXTS:
        (ours,), (theirs,) = embedding.post("/embedding", {"content": text})
        assert same_vectors(ours["embedding"], theirs["embedding"]), text
        assert not shape_differences(ours, theirs)
    ours, theirs = embedding.post("/embeddings", {"input": TEXTS})
    assert [np.shape(entry["embedding"]) for entry in ours] == [np.shape(entry["embedding"]) for entry in theirs]


@pytest.mark.parametrize("embedding", ["bert"], indirect=True)
@pytest.mark.parametrize("norm", [-1, 0, 1, 2, 3, 7])
def test_embeddings_are_equal_with_every_norm(embedding: Pair, norm: int) -> None:
    ours, theirs = embedding.post("/v1/embeddings", {"input": TEXTS[0], "embd_normalize": norm})
    one, other = (np.array(reply["data"][0]["embedding"]) for reply in (ours, theirs))
    assert same_vectors(one / np.abs(other).max(), other / np.abs(other).max())
    assert ours["usage"] == theirs["usage"]


def test_rerank_scores_are_equal(reranking: Pair) -> None:
    ours, theirs = reranking.post("/rerank", {"query": "the fox", "documents": DOCUMENTS})
    assert ours["usage"] == theirs["usage"]
    assert [entry["index"] for entry in ours["results"]] == [entry["index"] for entry in theirs["results"]]
    scores = [[entry["relevance_score"] for entry in reply["results"]] for reply in (ours, theirs)]
    assert same_vectors(scores[0], scores[1])
    for body in ({"texts": DOCUMENTS, "return_text": True, "top_n": 3}, {"texts": DOCUMENTS, "top_n": 0}):
        ours, theirs = reranking.post("/rerank", {"query": "the fox", **body})
        assert [(entry["index"], entry["text"]) for entry in ours] == [(e["index"], e["text"]) for e in theirs]
        assert same_vectors([e["score"] for e in ours], [e["score"] for e in theirs])


@pytest.mark.parametrize("embedding", ["bert"], indirect=True)
@pytest.mark.parametrize(
    "body", [{}, {"input": []}, {"input": "x", "encoding_format": "hex"}, {"input": 5}, b"{broken"], ids=str
)
def test_errors_have_the_same_status_and_type(embedding: Pair, body: Any) -> None:
    ours, theirs = embedding.request("POST", "/v1/embeddings", body)
    assert (ours.status, ours.json()["error"]["type"]) == (theirs.status, theirs.json()["error"]["type"])
