"""Bodies of the embeddings endpoints, what is computed for them, and their replies."""

from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from server.dialects.vectors import VectorJob, read_embeddings
from server.engine.media import MediaPrompt
from server.engine.runner_api import Pooling
from server.errors import InvalidRequest
from server.pool.model import LoadedModel
from tests.support.fakes import BOS, FakeEmbeddingRunner, FakeVocab
from tests.unit.pool.fakes import spec


class FreeVocab(FakeVocab):
    """Adds nothing to a text."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return super().tokenize(text, add_special=False, parse_special=parse_special)


def model(pooling: Pooling = Pooling.MEAN, *, vocab: FakeVocab | None = None) -> LoadedModel:
    runner = FakeEmbeddingRunner(pooling=pooling)
    return cast(
        LoadedModel, SimpleNamespace(spec=spec("demo"), vocab=vocab or FakeVocab(), media=None, embedder=runner)
    )


def job(body: dict[str, Any], *, openai: bool = True, of: LoadedModel | None = None) -> VectorJob:
    return read_embeddings(body, native=not openai).job(of or model(), {})


def tokens_of(made: VectorJob) -> list[list[int]]:
    return [prompt.tokens for prompt in cast(list[MediaPrompt], made.inputs)]


def reply(made: VectorJob, pooling: Pooling = Pooling.MEAN) -> Any:
    runner = FakeEmbeddingRunner(pooling=pooling)
    return orjson.loads(made.reply([runner.vectors(tokens) for tokens in tokens_of(made)]))


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("ab", [[BOS, 97, 98]]),
        ("", [[BOS]]),
        ([12, 34], [[12, 34]]),
        ([12, "a", 56], [[12, 97, 56]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        (["a", [12, 34]], [[BOS, 97], [12, 34]]),
        ([[1, 2], ["a", 3]], [[1, 2], [BOS, 97, 3]]),
        ({"prompt_string": "a"}, [[BOS, 97]]),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, [[BOS, 97, 98]]),
        (
            ["a", {"prompt_string": "b"}, {"content": [{"type": "text", "text": "c"}]}],
            [[BOS, 97], [BOS, 98], [BOS, 99]],
        ),
    ],
)
def test_every_form_of_input(given: object, tokens: list[list[int]]) -> None:
    assert tokens_of(job({"input": given})) == tokens
    assert tokens_of(job({"content": given}, openai=False)) == tokens


def test_a_vocabulary_that_adds_nothing_leaves_an_empty_text_empty() -> None:
    with pytest.raises(InvalidRequest, match="Input content cannot be empty"):
        job({"input": ""}, of=model(vocab=FreeVocab()))
