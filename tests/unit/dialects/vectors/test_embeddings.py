"""Bodies of the embeddings endpoints, what is computed for them, and their replies."""

import base64
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import orjson
import pytest

from server.dialects.vectors.embeddings import EmbeddingsJob, embeddings_job, read_embeddings
from server.engine.runner_api import Pooling
from server.errors import InvalidRequest
from server.pool.model import LoadedModel
from tests.support.fakes import BOS, FakeEmbeddingRunner, FakeVocab
from tests.unit.pool.fakes import spec


class FreeVocab(FakeVocab):
    """Adds nothing to a text."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return super().tokenize(text, add_special=False, parse_special=parse_special)


def model(pooling: Pooling = Pooling.MEAN, *, norm: int = 2, vocab: FakeVocab | None = None) -> LoadedModel:
    runner = FakeEmbeddingRunner(pooling=pooling)
    chosen = replace(spec("demo"), embd_normalize=norm)
    return cast(LoadedModel, SimpleNamespace(spec=chosen, vocab=vocab or FakeVocab(), media=None, embedder=runner))


def job(body: dict[str, Any], *, openai: bool = True, of: LoadedModel | None = None) -> EmbeddingsJob:
    return embeddings_job(read_embeddings(body, native=not openai), of or model(), openai=openai)


def tokens_of(made: EmbeddingsJob) -> list[list[int]]:
    return [prompt.tokens for prompt in made.inputs]


def reply(made: EmbeddingsJob, pooling: Pooling = Pooling.MEAN) -> Any:
    runner = FakeEmbeddingRunner(pooling=pooling)
    return orjson.loads(made.reply([runner.vectors(prompt.tokens) for prompt in made.inputs]))


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


def test_openais_reply() -> None:
    found = reply(job({"input": ["ab", "c"], "model": "text-embedding-3-small", "user": "u"}))
    assert {key: found[key] for key in ("model", "object", "usage")} == {
        "model": "text-embedding-3-small",
        "object": "list",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    assert [(entry["index"], entry["object"]) for entry in found["data"]] == [(0, "embedding"), (1, "embedding")]
    assert np.linalg.norm(found["data"][0]["embedding"]) == pytest.approx(1.0)
    assert reply(job({"input": "a"}))["model"] == "demo"


def test_base64_holds_the_same_numbers() -> None:
    (entry,) = reply(job({"input": "ab", "encoding_format": "base64"}))["data"]
    (plain,) = reply(job({"input": "ab", "encoding_format": "float"}))["data"]
    assert entry["encoding_format"] == "base64"
    assert np.allclose(np.frombuffer(base64.b64decode(entry["embedding"]), "<f4"), plain["embedding"])


def test_content_gets_the_native_reply_everywhere() -> None:
    assert isinstance(reply(job({"content": "a"})), list)


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({}, '"input" or "content" must be provided', "input"),
        ({"input": None}, '"input" or "content" must be provided', "input"),
        ({"input": []}, '"input" must not be empty', "input"),
        ({"input": 5}, "elements must be a string", "input"),
        ({"input": {"text": "a"}}, "elements must be a string", "input"),
        ({"input": [True]}, "input.0: must be a token id or a string", "input.0"),
        ({"input": [1.5]}, "input.0: must be a token id or a string", "input.0"),
        ({"input": ["a", None]}, "elements must be a string", "input.1"),
        ({"input": [[1, 300]]}, "token id 300 is outside of the vocabulary", "input.1"),
        ({"input": [-1]}, "token id -1 is outside of the vocabulary", "input.0"),
        ({"input": [[]]}, "Input content cannot be empty", "input"),
        ({"input": {"content": "a"}}, '"content" must be an array', "input.content"),
        ({"input": {"content": [{"type": "x"}]}}, "unsupported content", "input.content.0.type"),
        ({"input": {"content": [5]}}, "unsupported content", "input.content.0.type"),
        ({"input": {"content": [{"type": "text"}]}}, "must be a string", "input.content.0.text"),
        ({"input": {"content": [{"type": "image_url"}]}}, "image input is not supported", "input.content.0"),
        ({"input": {"prompt_string": "a", "multimodal_data": ["x"]}}, "Multimodal data", "input"),
        ({"input": "a", "encoding_format": "hex"}, "Can be either float or base64", "encoding_format"),
        ({"input": "a", "encoding_format": []}, "Can be either float or base64", "encoding_format"),
        ({"input": "a", "dimensions": 0}, "'dimensions'", "dimensions"),
        ({"input": "a", "dimensions": 5}, "the model's vectors have 4", "dimensions"),
        ({"input": "a", "dimensions": "4"}, "'dimensions'", "dimensions"),
        ({"input": "a", "embd_normalize": -2}, "'embd_normalize'", "embd_normalize"),
        ({"input": "a", "embd_normalize": 10**9}, "'embd_normalize'", "embd_normalize"),
        ({"input": "a", "model": 5}, "'model'", "model"),
        ({"input": ["a"] * 2049}, "at most 2048", "input"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], message: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        job(body)
    assert message in caught.value.message
    if "vocabulary" not in message:
        assert caught.value.param == param


def test_a_vocabulary_that_adds_nothing_leaves_an_empty_text_empty() -> None:
    with pytest.raises(InvalidRequest, match="Input content cannot be empty"):
        job({"input": ""}, of=model(vocab=FreeVocab()))


def test_openais_reply_has_no_place_for_a_vector_of_each_token() -> None:
    with pytest.raises(InvalidRequest, match="Pooling type 'none' is not OAI compatible"):
        job({"input": "a"}, of=model(Pooling.NONE))
    with pytest.raises(InvalidRequest, match="Pooling type 'none' is not OAI compatible"):
        job({"content": "a"}, of=model(Pooling.NONE))
