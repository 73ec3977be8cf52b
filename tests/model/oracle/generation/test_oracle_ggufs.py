"""The generated models work in the real llama-server too: what is compared there later rests on this."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.model.oracle.conftest import WAIT_QUIETLY
from tests.support.ggufs import MODELS, gguf_file
from tests.support.oracle import Value, oracle
from tests.support.real_server import RealServer

RANK = 4  # enum llama_pooling_type
OF_KIND = {
    "embeds": [name for name, model in MODELS.items() if model.pooling not in (None, "rank")],
    "ranks": [name for name, model in MODELS.items() if model.pooling == "rank"],
    "writes": [name for name, model in MODELS.items() if model.pooling is None],
}


@contextmanager
def theirs(folder: Path, name: str, **params: Value) -> Iterator[RealServer]:
    path = gguf_file(folder, MODELS[name])
    with oracle(path, n_ctx=1024, n_parallel=2, n_threads=1, params=params, environment=WAIT_QUIETLY) as server:
        yield server


@pytest.mark.parametrize("name", OF_KIND["writes"])
def test_the_oracle_writes(gguf_folder: Path, name: str) -> None:
    body = {"prompt": "the quick brown fox", "n_predict": 8, "temperature": 0, "return_tokens": True}
    with theirs(gguf_folder, name) as server:
        tokens = server.post("/completion", {**body, "ignore_eos": True})["tokens"]
        assert len(tokens) == 8
        assert len(set(tokens)) > 4
        infill = server.request("POST", "/infill", {"input_prefix": "the", "input_suffix": "fox", "n_predict": 1})
        assert (infill.status == 501) == (name == "no-fim")


@pytest.mark.parametrize("name", OF_KIND["embeds"])
def test_the_oracle_embeds(gguf_folder: Path, name: str) -> None:
    with theirs(gguf_folder, name, embedding=True) as server:
        (reply,) = server.post("/embedding", {"content": "the quick brown fox"})
    assert all(len(vector) == 64 for vector in reply["embedding"])
    assert (len(reply["embedding"]) > 1) == (MODELS[name].pooling == "none")


@pytest.mark.parametrize("name", OF_KIND["ranks"])
def test_the_oracle_ranks(gguf_folder: Path, name: str) -> None:
    body = {"query": "the fox", "documents": ["the dog", "a stream of tokens", "x"]}
    with theirs(gguf_folder, name, embedding=True, pooling_type=RANK) as server:
        results = server.post("/rerank", body)["results"]
    assert len({round(result["relevance_score"], 3) for result in results}) == 3
