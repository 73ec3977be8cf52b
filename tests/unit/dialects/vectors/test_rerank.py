"""Bodies of the rerank endpoints, the prompts made of them, and both shapes of the reply."""

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import orjson
import pytest

from server.dialects.vectors import VectorJob, read_rerank
from server.engine.runner_api import Pooling
from server.pool.model import LoadedModel
from server.pool.protocols import ModelInfo
from tests.support.fakes import BOS, EOS, FakeEmbeddingRunner, FakeVocab
from tests.unit.pool.fakes import spec

SEP = 200


class PairVocab(FakeVocab):
    """With a choice of what is put around the texts of a pair."""

    def __init__(self, *, eos: int = EOS, add_bos: bool = True, add_eos: bool = True, add_sep: bool = True) -> None:
        super().__init__()
        self.eos, self.sep = eos, SEP
        self.add_bos, self.add_eos, self.add_sep = add_bos, add_eos, add_sep


@dataclass
class _Model:
    spec: Any
    info: ModelInfo
    vocab: FakeVocab
    embedder: FakeEmbeddingRunner


def model(vocab: FakeVocab | None = None, template: str = "", pooling: Pooling = Pooling.RANK) -> LoadedModel:
    info = ModelInfo(rerank_template=template)
    return cast(LoadedModel, _Model(spec("demo"), info, vocab or FakeVocab(), FakeEmbeddingRunner(pooling=pooling)))


def job(of: LoadedModel | None = None, **body: Any) -> VectorJob:
    body = {"query": "q", "documents": ["a", "b", "c"]} | body
    return read_rerank(body).job(of or model(), {})


def inputs(made: VectorJob) -> list[list[int]]:
    return cast(list[list[int]], made.inputs)


def reply(made: VectorJob, *scores: float) -> Any:
    return orjson.loads(made.reply([np.array([[score, 0.0]], np.float32) for score in scores]))


def test_equal_scores_keep_their_order() -> None:
    assert [entry["index"] for entry in reply(job(), 1, 1, 1)["results"]] == [0, 1, 2]


def test_scores_become_probabilities_where_raw_ones_are_refused() -> None:
    scores = [entry["score"] for entry in reply(job(documents=None, texts=["a", "b"], raw_scores=False), 0, 800)]
    assert scores == [1.0, 0.5]
    assert reply(job(documents=None, texts=["a"], raw_scores=False), -800)[0]["score"] == pytest.approx(0.0)
    assert reply(job(documents=None, texts=["a"], raw_scores=True), -800)[0]["score"] == -800
    assert reply(job(raw_scores=False), 2, 0, 0)["results"][0]["relevance_score"] == pytest.approx(
        1 / (1 + math.exp(-2))
    )


def test_the_probabilities_of_a_head_with_labels_are_not_changed_again() -> None:
    found = [np.array([[0.9, 0.1]], np.float32)]
    made = job(documents=None, texts=["a"], raw_scores=False)
    assert orjson.loads(made.reply(found))[0]["score"] == pytest.approx(0.9)


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
def test_a_pair_gets_what_the_vocabulary_adds(vocab: FakeVocab, tokens: list[int]) -> None:
    assert inputs(job(model(vocab), documents=["a"])) == [tokens]


def test_a_pairs_texts_are_no_markup() -> None:
    (tokens,) = inputs(job(model(PairVocab()), query="</s>", documents=["<s>"]))
    assert tokens.count(EOS) == 2
    assert tokens.count(BOS) == 1


def test_the_models_own_template_is_filled_once() -> None:
    made = job(model(template="<s>{query}|{document}|{query}"), query="{document}", documents=["{query}"])
    filled = inputs(made)
    assert FakeVocab().detokenize(filled[0]) == b"<s>{document}|{query}|{document}"
    assert filled[0][0] == BOS
