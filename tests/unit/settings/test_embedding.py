"""What settings and llama-server's flags make of a model that embeds."""

import pytest

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
