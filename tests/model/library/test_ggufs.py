"""The generated models load, compute, and have the property that each claims."""

import ctypes
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from server.llama.library import C
from tests.model.native_context import NativeContext, Vector, native_context
from tests.support.closeness import same_vectors
from tests.support.ggufs import (
    BERT,
    BERT_RERANKER,
    CHATML,
    EMBED_CLS,
    EMBED_LAST,
    EMBED_MEAN,
    EMBED_NONE,
    MODELS,
    NO_TEMPLATE,
    PLAIN,
    RERANK_PROMPT,
    SLIDING_WINDOW,
    TEMPLATE_RERANKER,
    TinyModel,
    control_vector_file,
    gguf_file,
    lora_file,
)

TEXT = "the quick brown fox jumps over the lazy dog"
WITHOUT_MEMORY = {"bert", "bert-reranker"}
EMBEDDERS = {name for name, model in MODELS.items() if model.pooling is not None}
GENERATORS = sorted(MODELS.keys() - EMBEDDERS)
POOLING = {None: 0, "none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
FIM: tuple[Callable[[object], int], ...] = (
    C.llama_vocab_fim_pre,
    C.llama_vocab_fim_suf,
    C.llama_vocab_fim_mid,
    C.llama_vocab_fim_rep,
    C.llama_vocab_fim_sep,
)


def having(gguf_folder: Path, fact: Callable[[NativeContext], object]) -> set[str]:
    """The names of the models for which `fact` holds."""
    found = set()
    for name, model in MODELS.items():
        with native_context(gguf_file(gguf_folder, model)) as native:
            if fact(native):
                found.add(name)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_files_are_small_and_always_the_same(gguf_folder: Path, tmp_path: Path, name: str) -> None:
    first, second = gguf_file(gguf_folder, MODELS[name]), gguf_file(tmp_path, MODELS[name])
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 2_000_000


@pytest.mark.parametrize("name", GENERATORS)
def test_what_comes_next_depends_on_all_that_was_read(gguf_folder: Path, name: str) -> None:
    with native_context(gguf_file(gguf_folder, MODELS[name])) as native:
        tokens = native.tokenize(TEXT)
        logits = native.logits(tokens)
        assert np.isfinite(logits).all()
        assert len(logits) == MODELS[name].n_vocab
        other = native.logits([tokens[0], tokens[2], tokens[1], *tokens[3:]])
        assert np.abs(logits - other).max() > 0.1


@pytest.mark.parametrize("name", sorted(EMBEDDERS - {"embed-none"}))
def test_a_vector_depends_on_its_text(gguf_folder: Path, name: str) -> None:
    with native_context(gguf_file(gguf_folder, MODELS[name]), embeddings=True) as native:
        one, other = native.embedding(TEXT), native.embedding("the server reads the stream of tokens")
        assert np.isfinite(one).all()
        assert np.abs(one - other).max() > 0.01
        assert same_vectors(native.embedding(TEXT), one)


def test_recurrent_and_hybrid_models_say_so(gguf_folder: Path) -> None:
    assert having(gguf_folder, lambda native: C.llama_model_is_recurrent(native.model)) == {"recurrent"}
    assert having(gguf_folder, lambda native: C.llama_model_is_hybrid(native.model)) == {"hybrid"}


def test_a_recurrent_state_cannot_be_cut_and_bert_has_no_state(gguf_folder: Path) -> None:
    def cuts(native: NativeContext) -> bool:
        native.compute(native.tokenize(TEXT))
        return native.remove(3)

    def forgets(native: NativeContext) -> bool:
        native.compute(native.tokenize(TEXT))
        return native.remove(-1)

    without = having(gguf_folder, lambda native: native.memory is None)
    assert without == WITHOUT_MEMORY
    assert having(gguf_folder, lambda n: n.memory is not None and cuts(n)) == (
        MODELS.keys() - without - {"recurrent", "hybrid"}
    )
    assert having(gguf_folder, lambda n: n.memory is not None and forgets(n)) == MODELS.keys() - without


def test_a_sliding_window_keeps_its_last_tokens_only(gguf_folder: Path) -> None:
    assert having(gguf_folder, lambda native: C.llama_model_n_swa(native.model)) == {"sliding-window"}
    path = gguf_file(gguf_folder, SLIDING_WINDOW)
    with native_context(path, n_ctx=1024, swa_full=False, n_ubatch=32) as native:
        tokens = (native.tokenize(TEXT) * 60)[:600]
        for start in range(0, len(tokens), 50):
            native.compute(tokens[start : start + 50], start)
        oldest = C.llama_memory_seq_pos_min(native.memory, 0)
        assert 0 < oldest <= len(tokens) - SLIDING_WINDOW.n_swa


def test_some_experts_of_the_mixture_are_used(gguf_folder: Path) -> None:
    def experts(native: NativeContext) -> bool:
        value = ctypes.create_string_buffer(16)
        return C.llama_model_meta_val_str(native.model, b"llama.expert_count", value, 16) > 0 and value.value == b"4"

    assert having(gguf_folder, experts) == {"experts"}


def test_a_chat_template_is_there_or_not(gguf_folder: Path) -> None:
    templates = {name: model.chat_template for name, model in MODELS.items()}
    assert having(gguf_folder, lambda native: C.llama_model_chat_template(native.model, None) is None) == {
        name for name, template in templates.items() if template is None
    }
    assert {"no-template", "bert", "bert-reranker"} == {name for name, text in templates.items() if text is None}
    with native_context(gguf_file(gguf_folder, TEMPLATE_RERANKER)) as native:
        assert C.llama_model_chat_template(native.model, b"rerank") == RERANK_PROMPT.encode()
        assert C.llama_model_chat_template(native.model, None) == CHATML.encode()
    with native_context(gguf_file(gguf_folder, BERT_RERANKER)) as native:
        assert C.llama_model_chat_template(native.model, b"rerank") is None


def test_fim_tokens_are_there_or_not(gguf_folder: Path) -> None:
    known: dict[str, list[bool]] = {}
    for name in ("plain", "repo-fim", "no-fim", "bert"):
        with native_context(gguf_file(gguf_folder, MODELS[name])) as native:
            known[name] = [fim(native.vocab) >= 0 for fim in FIM]
    assert known == {
        "plain": [True, True, True, False, False],
        "repo-fim": [True] * 5,
        "no-fim": [False] * 5,
        "bert": [False] * 5,
    }


@pytest.mark.parametrize("name", MODELS)
def test_pooling_is_what_the_file_says(gguf_folder: Path, name: str) -> None:
    with native_context(gguf_file(gguf_folder, MODELS[name]), embeddings=True) as native:
        assert C.llama_pooling_type(native.context) == POOLING[MODELS[name].pooling]


def test_poolings_of_the_same_weights_are_related(gguf_folder: Path) -> None:
    def vectors(model: TinyModel) -> list[Vector]:
        with native_context(gguf_file(gguf_folder, model), embeddings=True) as native:
            n = len(native.tokenize(TEXT))
            if model.pooling == "none":
                return [native.embedding(TEXT, token) for token in range(n)]
            return [native.embedding(TEXT)]

    each = vectors(EMBED_NONE)
    assert len(each) > 5
    assert same_vectors(vectors(EMBED_LAST)[0], each[-1])
    assert same_vectors(vectors(EMBED_MEAN)[0], np.mean(each, axis=0))
    whole = vectors(TinyModel(pooling="none", causal=False))
    assert same_vectors(vectors(EMBED_CLS)[0], whole[0])
    assert not np.allclose(whole[0], each[0], atol=0.1)


def test_bert_reads_word_pieces_in_lower_case_and_both_ways(gguf_folder: Path) -> None:
    with native_context(gguf_file(gguf_folder, BERT), embeddings=True, pooling_type=0) as native:
        cls, sep, unk = C.llama_vocab_bos(native.vocab), C.llama_vocab_sep(native.vocab), 1
        fox = native.tokenize("Fox,\n fox")
        assert (fox[0], fox[1], fox[-1]) == (cls, fox[-2], sep)
        assert len(fox) == 5
        assert len(native.tokenize("unheard0f")) > 4
        assert native.tokenize("狐") == [cls, unk, sep]
        before = native.embedding("the fox", 1)
        assert not np.allclose(native.embedding("the dog", 1), before, atol=0.01)


@pytest.mark.parametrize("model", [BERT_RERANKER, TEMPLATE_RERANKER])
def test_a_reranker_scores_pairs(gguf_folder: Path, model: TinyModel) -> None:
    with native_context(gguf_file(gguf_folder, model), embeddings=True) as native:
        scores = [float(native.embedding(f"the fox {text}")[0]) for text in ("the dog", "a stream of tokens", "x")]
    assert len({round(score, 3) for score in scores}) == 3
    if model is TEMPLATE_RERANKER:
        assert all(0 < score < 1 for score in scores)


def test_adapters_change_the_plain_model_each_in_its_way(gguf_folder: Path, tmp_path: Path) -> None:
    paths = [lora_file(tmp_path, "one"), lora_file(tmp_path, "two", seed=12), lora_file(tmp_path, "half", strength=0.5)]
    with native_context(gguf_file(gguf_folder, PLAIN)) as native:
        tokens = native.tokenize(TEXT)
        seen = [native.logits(tokens)]
        for path in paths:
            adapter = C.llama_adapter_lora_init(native.model, str(path).encode())
            assert adapter
            adapters, scales = (C.llama_adapter_lora_p_ctypes * 1)(adapter), (ctypes.c_float * 1)(1.0)
            assert C.llama_set_adapters_lora(native.context, adapters, 1, scales) == 0
            seen.append(native.logits(tokens))
        assert C.llama_set_adapters_lora(native.context, None, 0, None) == 0
        assert same_vectors(native.logits(tokens), seen[0])
    assert len({int(logits.argmax()) for logits in seen[:3]}) == 3
    assert all(np.abs(one - other).max() > 0.5 for one, other in combinations(seen, 2))


def test_an_adapter_says_what_it_is_for(gguf_folder: Path, tmp_path: Path) -> None:
    plain = lora_file(tmp_path, "plain")
    activated = lora_file(
        tmp_path, "activated", invocation_tokens=[300, 301, 5], task_name="classify", prompt_prefix="Q: "
    )
    with native_context(gguf_file(gguf_folder, PLAIN)) as native:
        one = C.llama_adapter_lora_init(native.model, str(plain).encode())
        two = C.llama_adapter_lora_init(native.model, str(activated).encode())
        assert C.llama_adapter_get_alora_n_invocation_tokens(one) == 0
        assert C.llama_adapter_get_alora_n_invocation_tokens(two) == 3
        assert C.llama_adapter_get_alora_invocation_tokens(two)[:3] == [300, 301, 5]
        value = ctypes.create_string_buffer(64)
        for key, expected in ((b"adapter.lora.task_name", b"classify"), (b"adapter.lora.prompt_prefix", b"Q: ")):
            assert C.llama_adapter_meta_val_str(two, key, value, 64) > 0
            assert value.value == expected


def test_a_control_vector_steers_the_plain_model(gguf_folder: Path, tmp_path: Path) -> None:
    from gguf import GGUFReader

    directions = GGUFReader(control_vector_file(tmp_path)).tensors
    assert [(tensor.name, list(tensor.shape)) for tensor in directions] == [("direction.1", [64])]
    with native_context(gguf_file(gguf_folder, PLAIN)) as native:
        tokens = native.tokenize(TEXT)
        before = native.logits(tokens)
        steer = np.ascontiguousarray(directions[0].data, np.float32)
        pointer = steer.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        assert C.llama_set_adapter_cvec(native.context, pointer, steer.size, 64, 1, PLAIN.n_layer) == 0
        assert np.abs(native.logits(tokens) - before).max() > 0.5


def test_without_a_template_the_weights_are_the_same(gguf_folder: Path) -> None:
    with (
        native_context(gguf_file(gguf_folder, PLAIN)) as plain,
        native_context(gguf_file(gguf_folder, NO_TEMPLATE)) as bare,
    ):
        assert same_vectors(plain.logits([1, 2, 3]), bare.logits([1, 2, 3]))
