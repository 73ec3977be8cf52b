"""The native embedding runner: pooling types, chunked inputs, rejected inputs and the roles of models."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.engine.runner_api import Pooling
from server.errors import InternalError, ModelFailed
from server.llama.context.embedding_runner import LlamaEmbeddingRunner
from server.llama.files.gguf_header import read_header
from tests.model.native_fixtures import load
from tests.support.closeness import same_vectors
from tests.support.ggufs import (
    BERT,
    BERT_RERANKER,
    EMBED_CLS,
    EMBED_LAST,
    EMBED_MEAN,
    EMBED_NONE,
    MODELS,
    PLAIN,
    RECURRENT,
    SLIDING_WINDOW,
    TEMPLATE_RERANKER,
    TinyModel,
    damaged,
    gguf_file,
)
from tests.support.sampling import sample

DEMO = Path(__file__).parents[3] / "models" / "demo-embed.gguf"
TEXTS = ("the quick brown fox", "a", "jumps over the lazy dog and then the other animals of the forest", "a", "x y")


@contextmanager
def embedder(path: Path, **native: Any) -> Iterator[LlamaEmbeddingRunner]:
    """Load an embedding model and open a runner; close both at the end.

    Flash attention is off, because its rounding depends on how an input is split.
    """
    params: dict[str, Any] = {"embedding": True, "n_ctx": 0, "n_parallel": 8, "flash_attn": "off"} | native
    with closing(load(path, **params)) as weights, closing(weights.embedding_runner()) as runner:
        yield runner


def tokens(runner: LlamaEmbeddingRunner, *texts: str) -> list[list[int]]:
    return [runner.vocab.tokenize(text, add_special=True, parse_special=True) for text in texts]


@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last"])
@pytest.mark.parametrize("model", [PLAIN, BERT, RECURRENT, SLIDING_WINDOW], ids=lambda m: m.arch)
def test_a_batch_gives_the_vectors_of_single_inputs_with_every_pooling(
    gguf_folder: Path, model: TinyModel, pooling: str
) -> None:
    with embedder(gguf_file(gguf_folder, model), pooling=pooling) as runner:
        inputs = tokens(runner, *TEXTS)
        batch = runner.embed(inputs)
        assert runner.info.pooling is Pooling(pooling)
        assert [len(vectors) for vectors in batch] == [len(each) if pooling == "none" else 1 for each in inputs]
        assert all(same_vectors(a, runner.embed([b])[0]) for a, b in zip(batch, inputs, strict=True))
        assert same_vectors(batch[1], batch[3])
        assert not same_vectors(batch[0][:1], batch[2][:1]) or pooling in ("none", "cls")


@pytest.mark.parametrize("model", [EMBED_LAST, EMBED_NONE, TEMPLATE_RERANKER], ids=["last", "none", "rank"])
def test_a_long_input_of_a_causal_model_is_split_over_ubatches(gguf_folder: Path, model: TinyModel) -> None:
    path = gguf_file(gguf_folder, model)
    with embedder(path, n_batch=2048, n_ubatch=2048) as runner:
        (long,) = tokens(runner, "the quick brown fox jumps over the lazy dog " * 20)
        (whole,) = runner.embed([long])
    with embedder(path, n_batch=64, n_ubatch=32) as runner:
        assert not runner.info.whole
        assert len(long) > 5 * runner.info.n_ubatch
        ends: list[None] = []
        (parts,) = runner.embed([long], lambda: ends.append(None))
        assert len(ends) == -(-len(long) // 32)
    assert same_vectors(parts, whole)


@pytest.mark.parametrize("model", sample([BERT, EMBED_MEAN, EMBED_CLS, RECURRENT], 3), ids=lambda model: model.arch)
def test_every_combination_of_sizes_gives_a_working_context(gguf_folder: Path, model: TinyModel) -> None:
    """The library aborts with mean pooling if the tokens of a ubatch are no multiple of the sequences."""
    path = gguf_file(gguf_folder, model)
    for n_parallel in (1, 7, 256):
        for n_ctx, n_batch, n_ubatch in ((0, 2048, 512), (300, 511, 17), (100, 1, 1), (1, 33, 2047), (257, 300, 300)):
            sizes = {"n_parallel": n_parallel, "n_ctx": n_ctx, "n_batch": n_batch, "n_ubatch": n_ubatch}
            with embedder(path, pooling="mean", **sizes) as runner:
                info = runner.info
                assert info.n_seq == n_parallel, sizes
                assert 0 < info.n_pack <= info.n_ubatch, sizes
                assert 0 < info.n_ctx_seq <= (n_ctx or model.n_ctx), sizes
                n_each = min(info.n_ctx_seq, info.n_pack)
                n = max(1, min(n_parallel, info.n_pack // n_each))
                assert len(runner.embed([[5] * n_each] * n)) == n, sizes
                assert len(runner.embed([[5] * min(info.n_ctx_seq, info.n_ubatch)])) == 1, sizes


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [[]],
        [[1], []],
        [[400]],
        [[-1]],
        [[1]] * 9,
        [[1] * 100] * 8,
        [[1] * 600],
    ],
    ids=["none", "empty", "one empty", "unknown token", "negative", "too many", "too many tokens", "too long"],
)
@pytest.mark.parametrize("model", [BERT, EMBED_CLS, EMBED_LAST], ids=["bert", "cls", "last"])
def test_rejects_inputs_on_which_the_library_aborts(
    gguf_folder: Path, model: TinyModel, inputs: Sequence[Sequence[int]]
) -> None:
    native = {"n_parallel": 8, "n_batch": 512, "n_ubatch": 512, "n_ctx": 512}
    with embedder(gguf_file(gguf_folder, model), **native) as runner:
        before = runner.embed([[5, 6, 7]])[0]
        with pytest.raises(InternalError):
            runner.embed(inputs)
        assert same_vectors(runner.embed([[5, 6, 7]])[0], before)


@pytest.mark.parametrize("pooling", ["none", "mean", "last"])
def test_non_finite_values_of_an_input_do_not_change_later_vectors(gguf_folder: Path, pooling: str) -> None:
    """Attention also sums over removed cells, with weight 0."""
    path, bad = gguf_file(gguf_folder, PLAIN), 9
    (table,) = (tensor for tensor in read_header(path).tensors if tensor.name == "token_embd.weight")
    n_embd, n_vocab = table.shape
    nan = np.float32(np.nan).tobytes()
    with embedder(damaged(path, table.end - 4 * n_embd * (n_vocab - bad), nan), pooling=pooling) as runner:
        expected = runner.embed([[5, 6]])[0]
        for inputs in ([[7, 8, bad, 7, 8]], [[5, 6], [7, 8, bad, 7, 8]]):
            with pytest.raises(InternalError, match="not numbers"):
                runner.embed(inputs)
            assert same_vectors(runner.embed([[5, 6]])[0], expected)


def test_rerankers_return_as_many_scores_as_their_head_has_labels(gguf_folder: Path) -> None:
    with embedder(gguf_file(gguf_folder, BERT_RERANKER), pooling="rank", n_parallel=-1) as runner:
        assert runner.info.n_seq == 64
        assert runner.info.n_embd == 1
    with embedder(gguf_file(gguf_folder, TEMPLATE_RERANKER), pooling="rank") as runner:
        assert runner.info.n_embd == 2
        scores = runner.embed(tokens(runner, *TEXTS))
        assert all(each.sum() == pytest.approx(1.0, abs=1e-5) for each in scores)


def test_rejects_rank_pooling_for_a_model_without_a_classification_head(gguf_folder: Path) -> None:
    weights = load(gguf_file(gguf_folder, EMBED_MEAN), embedding=True, pooling="rank")
    with pytest.raises(ModelFailed, match="needs a classification head"):
        weights.embedding_runner()
    weights.close()


def roles_of(path: Path, **native: Any) -> tuple[bool, bool]:
    """Return whether a loaded model generates, and whether it embeds."""
    with closing(load(path, **native)) as weights:
        return weights.info.generates, weights.info.embeds


def test_the_roles_of_a_model_depend_on_its_file_and_the_setting(gguf_folder: Path) -> None:
    embedders = {name for name, model in MODELS.items() if model.pooling not in (None, "none")}
    assert {name for name, model in MODELS.items() if roles_of(gguf_file(gguf_folder, model))[1]} == embedders
    assert roles_of(DEMO) == (False, True)
    assert roles_of(DEMO, embedding=False) == (True, False)
    assert roles_of(gguf_file(gguf_folder, PLAIN), embedding=True) == (True, True)


def test_a_generating_and_an_embedding_context_share_weights(gguf_folder: Path) -> None:
    weights = load(gguf_file(gguf_folder, PLAIN), embedding=True, pooling="mean")
    generator, runner = weights.runner(), weights.embedding_runner()
    assert runner.embed([[5, 6]])[0].shape == (1, 64)
    generator.close()
    assert runner.embed([[5, 6]])[0].shape == (1, 64)
    runner.close()
    weights.close()
    with pytest.raises(InternalError, match="closed"):
        runner.embed([[5]])
