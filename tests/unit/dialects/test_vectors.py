"""Embeddings and rerank: the prompts of a body, scores, norms, and the replies."""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import orjson
import pytest

from server.dialects.vectors import VectorJob, normalized, read_embeddings, read_rerank
from server.engine.media import MediaPrompt
from server.engine.runner_api import Pooling
from server.errors import InvalidRequest
from server.media.bitmap import Document
from server.media.source import LoadedMedia, MediaUrl
from server.pool.model import LoadedModel
from server.pool.protocols import ModelInfo
from server.vocab import PlainText
from tests.support.fakes import BOS, EOS, FakeEmbeddingRunner, FakeVocab
from tests.unit.pool.fakes import spec

SEP = 200
ROWS = np.array([[3.0, -4.0], [0.0, 0.0], [0.5, 0.5]], np.float32)


class PlainVocab(FakeVocab):
    """A vocabulary that adds no BOS or EOS."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return super().tokenize(text, add_special=False, parse_special=parse_special)


class PairVocab(FakeVocab):
    """A vocabulary with a choice of the special tokens around the texts of a pair."""

    def __init__(self, *, eos: int = EOS, add_bos: bool = True, add_eos: bool = True, add_sep: bool = True) -> None:
        super().__init__()
        self.eos, self.sep = eos, SEP
        self.add_bos, self.add_eos, self.add_sep = add_bos, add_eos, add_sep


def model(pooling: Pooling, vocab: FakeVocab | None = None, template: str = "") -> LoadedModel:
    runner, info = FakeEmbeddingRunner(pooling=pooling), ModelInfo(rerank_template=template)
    loaded: Any = SimpleNamespace(spec=spec("demo"), vocab=vocab or FakeVocab(), media=None, embedder=runner, info=info)
    return cast(LoadedModel, loaded)


def tokens_of(body: dict[str, Any], *, native: bool = False, vocab: FakeVocab | None = None) -> list[list[int]]:
    inputs = read_embeddings(body, native=native).job(model(Pooling.MEAN, vocab), {}).inputs
    return [prompt.tokens for prompt in cast(list[MediaPrompt], inputs)]


def job(vocab: FakeVocab | None = None, template: str = "", **body: Any) -> VectorJob:
    body = {"query": "q", "documents": ["a", "b", "c"]} | body
    return read_rerank(body).job(model(Pooling.RANK, vocab, template), {})


@pytest.mark.parametrize(
    ("norm", "first"),
    [
        (-1, [3.0, -4.0]),
        (0, [24570.0, -32760.0]),
        (1, [3 / 7, -4 / 7]),
        (2, [0.6, -0.8]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)]),
    ],
)
def test_each_row_is_normalized_to_length_1(norm: int, first: list[float]) -> None:
    rows = normalized(ROWS, norm)
    assert np.allclose(rows[0], first, rtol=1e-6)
    assert not rows[1].any()
    assert rows.dtype == np.float32


@pytest.mark.parametrize(
    ("body_input", "tokens"),
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
def test_every_form_of_input_is_tokenized(body_input: object, tokens: list[list[int]]) -> None:
    assert tokens_of({"input": body_input}) == tokens
    assert tokens_of({"content": body_input}, native=True) == tokens


def test_model_without_a_projector_embeds_documents_but_no_images() -> None:
    read = partial(read_embeddings, native=False)
    source = MediaUrl("aGk=", "a.txt")
    document = {"type": "file", "file": {"file_data": source.url, "filename": source.name}}
    content = [document, {"type": "text", "text": "c"}]
    loaded: LoadedMedia = {source: Document((PlainText("hi"),), "text/plain")}
    (prompt,) = read({"input": {"content": content}}).job(model(Pooling.MEAN), loaded).inputs
    framed = '<document name="a.txt" type="text/plain">\nhi\n</document>c'
    assert cast(MediaPrompt, prompt).tokens == [BOS, *framed.encode()]
    image = {"type": "image_url", "image_url": {"url": "aGk="}}
    for given, error in (
        ({"content": [document, image]}, "image input is not supported - hint"),
        ({"prompt_string": "<__media__>", "multimodal_data": ["aGk="]}, "does not support multimodal requests"),
    ):
        with pytest.raises(InvalidRequest, match=error):
            read({"input": given}).job(model(Pooling.MEAN), loaded)


def test_empty_input_is_rejected_if_the_vocabulary_adds_no_token() -> None:
    with pytest.raises(InvalidRequest, match="Input content cannot be empty"):
        tokens_of({"input": ""}, vocab=PlainVocab())


def pairs(rerank: VectorJob) -> list[list[int]]:
    return cast(list[list[int]], rerank.inputs)


def reply(rerank: VectorJob, *scores: float) -> Any:
    return orjson.loads(rerank.reply([np.array([[score, 0.0]], np.float32) for score in scores]))


def test_documents_with_equal_scores_keep_their_order() -> None:
    assert [entry["index"] for entry in reply(job(), 1, 1, 1)["results"]] == [0, 1, 2]


def test_scores_become_probabilities_unless_raw_scores_are_requested() -> None:
    scores = [entry["score"] for entry in reply(job(documents=None, texts=["a", "b"], raw_scores=False), 0, 800)]
    assert scores == [1.0, 0.5]
    assert reply(job(documents=None, texts=["a"], raw_scores=False), -800)[0]["score"] == pytest.approx(0.0)
    assert reply(job(documents=None, texts=["a"], raw_scores=True), -800)[0]["score"] == -800
    assert reply(job(raw_scores=False), 2, 0, 0)["results"][0]["relevance_score"] == pytest.approx(
        1 / (1 + math.exp(-2))
    )
    label_scores = job(documents=None, texts=["a"], raw_scores=False).reply([np.array([[0.9, 0.1]], np.float32)])
    assert orjson.loads(label_scores)[0]["score"] == pytest.approx(0.9)  # already a probability


@pytest.mark.parametrize(
    ("vocab", "tokens"),
    [
        (PairVocab(), [BOS, ord("q"), EOS, SEP, ord("a"), EOS]),
        (PairVocab(eos=-1), [BOS, ord("q"), SEP, SEP, ord("a"), SEP]),
        (PairVocab(add_bos=False), [ord("q"), EOS, SEP, ord("a"), EOS]),
        (PairVocab(add_eos=False), [BOS, ord("q"), SEP, ord("a")]),
        (PairVocab(add_sep=False), [BOS, ord("q"), EOS, ord("a"), EOS]),
    ],
)
def test_a_pair_gets_the_special_tokens_of_the_vocabulary(vocab: FakeVocab, tokens: list[int]) -> None:
    assert pairs(job(vocab, documents=["a"])) == [tokens]


def test_control_tokens_in_the_texts_of_a_pair_stay_text() -> None:
    (tokens,) = pairs(job(PairVocab(), query="</s>", documents=["<s>"]))
    assert tokens.count(EOS) == 2
    assert tokens.count(BOS) == 1


@pytest.mark.parametrize("field", ["documents", "texts"])
def test_error_names_the_limit_of_documents(field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^Field '{field}': has 2049 texts, at most 2048 are possible$") as caught:
        read_rerank({"query": "q", field: ["a"] * 2049})
    assert caught.value.param == field


@pytest.mark.parametrize("template", ["", "{query}|{document}"])
def test_a_query_that_exceeds_the_context_is_tokenized_for_one_pair_only(template: str) -> None:
    assert len(pairs(job(template=template, query="q" * 10_000))) == 1


def test_placeholders_in_texts_of_a_rerank_template_are_not_replaced() -> None:
    [pair] = pairs(job(template="<s>{query}|{document}|{query}", query="{document}", documents=["{query}"]))
    assert FakeVocab().detokenize(pair) == b"<s>{document}|{query}|{document}"
    assert pair[0] == BOS
