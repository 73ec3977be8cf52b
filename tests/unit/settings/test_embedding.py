"""What settings and llama-server's flags make of a model that embeds."""

import pytest

from server.errors import ConfigError
from server.pool.spec import Task
from tests.unit.settings.builders import spec


@pytest.mark.parametrize(
    ("argv", "embedding", "pooling", "task"),
    [
        ([], None, "", "generate"),
        (["--embedding"], True, "", "embed"),
        (["--embeddings", "--pooling", "mean"], True, "mean", "embed"),
        (["--pooling", "last"], None, "last", "embed"),
        (["--rerank"], True, "rank", "rerank"),
        (["--reranking", "--embedding"], True, "rank", "rerank"),
        (["--embedding", "--pooling", "rank"], True, "rank", "rerank"),
    ],
)
def test_flags_say_what_a_model_is_for(argv: list[str], embedding: bool | None, pooling: str, task: Task) -> None:
    found = spec(*argv)
    assert (found.native.embedding, found.native.pooling) == (embedding, pooling)
    tasks: list[Task] = ["generate", "embed", "rerank"]
    assert [each for each in tasks if found.configured_for(each)] == [task]


def test_llama_servers_variables() -> None:
    assert spec(env={"LLAMA_ARG_EMBEDDINGS": "1", "LLAMA_ARG_POOLING": "cls"}).native.pooling == "cls"
    assert spec(env={"LLAMA_ARG_RERANKING": "1"}).configured_for("rerank")


def test_the_norm_is_euclidean_unless_set() -> None:
    assert spec().embd_normalize == 2
    assert spec("--embd-normalize", "-1").embd_normalize == -1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rerank", "--pooling", "mean"], "reranking needs pooling rank"),
        (["--pooling", "max"], "pooling"),
        (["--embd-normalize", "-2"], "--embd-normalize: invalid value"),
    ],
)
def test_contradictions_stop_the_start(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(*argv)


def test_a_pooling_of_a_model_that_shall_not_embed_is_a_contradiction() -> None:
    with pytest.raises(ConfigError, match="embedding is false"):
        spec("--pooling", "mean", env={"LLAMA_ARG_EMBEDDINGS": "0"})
