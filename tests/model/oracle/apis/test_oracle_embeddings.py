"""Vectors, scores and refusals of the embedding and rerank endpoints against llama-server's, for each pooling.

Without flash attention, whose rounding depends on how a batch is cut, and with F32 caches.
"""

import base64
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from tests.model.oracle.comparison import Pair, shape_differences
from tests.model.oracle.conftest import start_pair
from tests.support.closeness import same_vectors
from tests.support.ggufs import BERT, MODELS, TinyModel, gguf_file
from tests.support.sampling import sample

POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
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
EMBEDDERS = [name for name, model in MODELS.items() if model.pooling not in (None, "rank")]
RERANKERS = [name for name, model in MODELS.items() if model.pooling == "rank"]

Start = Callable[..., Pair]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts both servers on a model, once for each choice of model and flags."""
    folder = tmp_path_factory.mktemp("gguf")
    started: dict[object, Pair] = {}
    with ExitStack() as stack:

        def pair(model: TinyModel, pooling: str = "", *, embeds: bool = True) -> Pair:
            key = (model, pooling, embeds)
            if key in started:
                return started[key]
            path = gguf_file(folder, model)
            params: dict[str, Any] = {"embedding": embeds} | ({"pooling_type": POOLING[pooling]} if pooling else {})
            flags = ["--embeddings"] * embeds + (["--pooling", pooling] if pooling else [])
            started[key] = start_pair(stack, path, n_ctx=1024, n_parallel=2, flags=flags, params=params)
            return started[key]

        yield pair


@pytest.mark.parametrize("name", sample(EMBEDDERS, 2))
def test_vectors_of_every_pooling(start: Start, name: str) -> None:
    pair = start(MODELS[name])
    for text in TEXTS:
        (ours,), (theirs,) = pair.post("/embedding", {"content": text})
        assert same_vectors(ours["embedding"], theirs["embedding"]), text
        assert not shape_differences(ours, theirs)
    ours, theirs = pair.post("/embeddings", {"input": TEXTS})
    assert [entry["index"] for entry in ours] == [entry["index"] for entry in theirs]
    assert [np.shape(entry["embedding"]) for entry in ours] == [np.shape(entry["embedding"]) for entry in theirs]


@pytest.mark.parametrize("pooling", sample(["none", "mean", "cls", "last"], 4, 3))
def test_the_flag_overrides_the_models_pooling(start: Start, pooling: str) -> None:
    pair = start(BERT, pooling)
    ours, theirs = pair.post("/embedding", {"content": TEXTS[0]})
    assert same_vectors(ours[0]["embedding"], theirs[0]["embedding"])


@pytest.mark.parametrize("norm", [-1, 0, 1, 2, 3, 7])
def test_every_norm(start: Start, norm: int) -> None:
    pair = start(BERT)
    ours, theirs = pair.post("/v1/embeddings", {"input": TEXTS[0], "embd_normalize": norm})
    one, other = (np.array(reply["data"][0]["embedding"]) for reply in (ours, theirs))
    assert same_vectors(one / np.abs(other).max(), other / np.abs(other).max())


def test_openais_reply(start: Start) -> None:
    pair = start(BERT)
    for body in ({"input": TEXTS}, {"input": "x", "model": "text-embedding-3-small"}, {"content": "x"}):
        ours, theirs = pair.post("/v1/embeddings", body)
        assert not shape_differences(ours, theirs)
        if isinstance(theirs, dict):
            assert [ours[key] for key in ("model", "object", "usage")] == [
                theirs[key] for key in ("model", "object", "usage")
            ]
    ours, theirs = pair.post("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64"})
    assert not shape_differences(ours, theirs)
    for one, other in zip(ours["data"], theirs["data"], strict=True):
        numbers = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in (one, other)]
        assert same_vectors(numbers[0], numbers[1])


@pytest.mark.parametrize("name", RERANKERS)
def test_scores(start: Start, name: str) -> None:
    pair = start(MODELS[name], "rank")
    for path in ("/rerank", "/v1/rerank", "/reranking", "/v1/reranking"):
        ours, theirs = pair.post(path, {"query": "the fox", "documents": DOCUMENTS})
        assert ours["usage"] == theirs["usage"]
        assert not shape_differences(ours, theirs)
        assert [entry["index"] for entry in ours["results"]] == [entry["index"] for entry in theirs["results"]]
        scores = [[entry["relevance_score"] for entry in reply["results"]] for reply in (ours, theirs)]
        assert same_vectors(scores[0], scores[1])
    for body in ({"texts": DOCUMENTS, "return_text": True, "top_n": 3}, {"texts": DOCUMENTS, "top_n": 0}):
        ours, theirs = pair.post("/rerank", {"query": "the fox", **body})
        assert [(entry["index"], entry["text"]) for entry in ours] == [(e["index"], e["text"]) for e in theirs]
        assert same_vectors([e["score"] for e in ours], [e["score"] for e in theirs])


SAME_ERRORS: list[tuple[str, Any]] = [
    ("/v1/embeddings", {}),
    ("/v1/embeddings", {"input": []}),
    ("/embedding", {"content": [[]]}),
    ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}),
    ("/v1/embeddings", {"input": 5}),
    ("/v1/embeddings", {"input": {"content": "string"}}),
    ("/rerank", {"query": "x", "documents": ["a"]}),
    ("/v1/embeddings", b"{broken"),
]


@pytest.mark.parametrize(("path", "body"), SAME_ERRORS, ids=str)
def test_errors_are_the_references(start: Start, path: str, body: Any) -> None:
    ours, theirs = start(BERT).request("POST", path, body)
    assert (ours.status, ours.json()["error"]["type"]) == (theirs.status, theirs.json()["error"]["type"])
    if not isinstance(body, bytes):
        assert ours.json()["error"]["message"].startswith(theirs.json()["error"]["message"])


RERANK_ERRORS: list[Any] = [
    {"documents": ["a"]},
    {"query": 5, "documents": ["a"]},
    {"query": "x"},
    {"query": "x", "documents": []},
    {"query": "x", "documents": "a"},
    {"query": "x", "documents": [1]},
]


@pytest.mark.parametrize("body", RERANK_ERRORS, ids=str)
def test_rerank_errors_are_the_references(start: Start, body: Any) -> None:
    ours, theirs = start(MODELS["bert-reranker"], "rank").request("POST", "/rerank", body)
    assert (ours.status, theirs.status) == (400, 400)
    assert ours.json()["error"]["message"] == theirs.json()["error"]["message"]


def test_pooling_none_is_not_openais(start: Start) -> None:
    ours, theirs = start(MODELS["embed-none"]).request("POST", "/v1/embeddings", {"input": "x"})
    mine, other = ours.json()["error"], theirs.json()["error"]
    assert (ours.status, mine["message"], mine["type"]) == (theirs.status, other["message"], other["type"])


@pytest.mark.parametrize("path", ["/embedding", "/embeddings", "/v1/embeddings", "/rerank"])
@pytest.mark.parametrize("body", [{}, {"input": "x", "query": "x", "documents": ["a"]}], ids=["empty", "whole"])
def test_a_model_that_generates_refuses_in_the_references_words(start: Start, path: str, body: Any) -> None:
    ours, theirs = start(MODELS["plain"], embeds=False).request("POST", path, body)
    assert (ours.status, theirs.status) == (501, 501)
    assert ours.json()["error"]["message"].startswith(theirs.json()["error"]["message"])


def test_a_plain_model_generates_beside_embedding(start: Start) -> None:
    pair = start(MODELS["plain"], "mean")
    ours, theirs = pair.post("/embedding", {"content": TEXTS[0]})
    assert same_vectors(ours[0]["embedding"], theirs[0]["embedding"])
    body = {"prompt": "the quick", "max_tokens": 4, "temperature": 0}
    ours, theirs = pair.post("/v1/completions", body)
    assert ours["choices"][0]["text"] == theirs["choices"][0]["text"]


DIFFERENT: list[tuple[Any, int, int]] = [
    ({"input": "x", "embd_normalize": -3}, 400, 200),
    ({"input": "x", "dimensions": 0}, 400, 200),
    ({"input": "word " * 700}, 400, 500),
]
"""On purpose: a norm that is none, fields that llama-server does not read, and a client's mistake that is no 500."""


@pytest.mark.parametrize(("body", "ours", "theirs"), DIFFERENT, ids=lambda value: str(value)[:40])
def test_differences_on_purpose(start: Start, body: Any, ours: int, theirs: int) -> None:
    replies = start(BERT).request("POST", "/v1/embeddings", body)
    assert (replies[0].status, replies[1].status) == (ours, theirs)


def test_a_text_past_the_batch_has_the_references_message(start: Start) -> None:
    """A text must fit the physical batch, which is 512 there and ``n_batch`` here."""
    ours, theirs = start(MODELS["embed-mean"]).request("POST", "/embedding", {"content": [5] * 3000})
    message = "input (3000 tokens) is too large to process. increase the physical batch size (current batch size: {})"
    assert theirs.json()["error"]["message"] == message.format(512)
    assert ours.json()["error"]["message"] == message.format(1024)
    fits, does_not = start(MODELS["embed-mean"]).request("POST", "/embedding", {"content": [5] * 600})
    assert (fits.status, does_not.status) == (200, 500)
