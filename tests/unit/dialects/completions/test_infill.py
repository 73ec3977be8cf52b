from typing import Any

import pytest

from server.dialects.native.fim import Extra, Gap, extra_tokens, fim_tokens, fitting_extra, require_fim
from server.dialects.native.parse import infill_tokens, parse_infill
from server.errors import NotSupported
from tests.support.fakes import BOS, FakeVocab
from tests.unit.dialects.builders import make_model

PRE, SUF, MID, REPO, SEP = 1, 2, 3, 4, 5
SNIPPET = b"\n\n--- snippet ---\n\n"


def tokens(model: Any = None, **body: object) -> list[int]:
    given = {"input_prefix": "ab", "input_suffix": "cd", **body}
    return infill_tokens(parse_infill(given), model or make_model())


def test_prefix_and_prompt_come_before_the_suffix() -> None:
    assert tokens() == [BOS, PRE, *b"ab", SUF, *b"cd", MID]
    assert tokens(prompt="x<s>") == [BOS, PRE, *b"abx", BOS, SUF, *b"cd", MID]


def test_suffix_first_where_the_model_wants_it() -> None:
    assert tokens(make_model(spm_infill=True), prompt="x") == [BOS, SUF, *b"cd", PRE, *b"abx", MID]


def test_markup_in_code_is_text_and_token_ids_are_taken() -> None:
    assert tokens(input_prefix="<s>")[1:5] == [PRE, *b"<s>"]
    assert tokens(input_prefix=[97, "b"], input_suffix=[99]) == [BOS, PRE, *b"ab", SUF, 99, MID]


def test_further_files_come_first_in_the_pattern_of_the_vocabulary() -> None:
    files = [{"text": "T", "filename": "f"}, {"text": "U"}]
    plain = tokens(make_model(n_ctx=9000), input_extra=files)
    assert plain == [*SNIPPET, *b"T", *SNIPPET, *b"U", BOS, PRE, *b"ab", SUF, *b"cd", MID]
    repo = tokens(make_model(n_ctx=9000, fim="repo"), input_extra=files)
    head = [REPO, *b"myproject\n", SEP, *b"f\nT", SEP, *b"tmp\nU", SEP, *b"filename\n"]
    assert repo == [*head, BOS, PRE, *b"ab", SUF, *b"cd", MID]


def test_a_repository_is_named_without_further_files_too() -> None:
    assert extra_tokens(FakeVocab("repo"), []) == [REPO, *b"myproject\n", SEP, *b"filename\n"]
    assert extra_tokens(FakeVocab(), []) == []


def test_a_batch_takes_the_end_of_a_prefix_and_the_beginning_of_a_suffix() -> None:
    gap = Gap(list(range(100)), list(range(100)), [1, 2, 3]).cut(40)
    assert (gap.prefix, gap.suffix, gap.prompt) == (list(range(70, 100)), list(range(5)), [1, 2, 3])
    assert Gap([1], [2]).cut(40) == Gap([1], [2])
    assert Gap([1], [2], [0] * 30).cut(40).suffix == []
    assert Gap([1, 2], [2]).cut(3) == Gap([], [])


@pytest.mark.parametrize(
    ("n_ctx", "n_batch", "n_predict", "n_left"), [(100, 90, -1, 12), (100, 90, 4, 2), (100, 90, 50, 0), (9, 20, -1, 0)]
)
def test_the_end_of_the_files_fills_what_is_left_of_the_context(
    n_ctx: int, n_batch: int, n_predict: int, n_left: int
) -> None:
    left = fitting_extra(list(range(50)), n_ctx=n_ctx, n_batch=n_batch, n_predict=n_predict)
    assert left == list(range(50 - n_left, 50))
    assert fitting_extra([1], n_ctx=100, n_batch=10, n_predict=-1) == [1]


def test_the_models_own_batch_and_context_count() -> None:
    model = make_model(n_ctx=60, n_batch=40)
    found = tokens(model, input_prefix="p" * 100, input_suffix="s" * 100, input_extra=[{"text": "e" * 100}])
    assert found == [*b"e" * 22, BOS, PRE, *b"p" * 30, SUF, *b"s" * 8, MID]


def test_no_bos_where_the_model_wants_none() -> None:
    vocab = FakeVocab()
    vocab.add_bos = False
    assert fim_tokens(vocab, Gap([97], [98])) == [PRE, 97, SUF, 98, MID]


def test_a_model_without_the_tokens_can_not_do_it() -> None:
    with pytest.raises(NotSupported) as caught:
        parse_infill({"input_prefix": "", "input_suffix": ""}).generation(make_model(fim="none"))
    assert caught.value.message == (
        "Infill is not supported by this model: prefix token is missing. suffix token is missing. "
        "middle token is missing. "
    )
    vocab = FakeVocab()
    vocab.fim_middle = -1
    with pytest.raises(NotSupported, match=r"model: middle token is missing. $"):
        require_fim(vocab)


def test_all_options_of_a_completion_are_taken() -> None:
    body = {"input_prefix": "", "input_suffix": "", "n_predict": 3, "t_max_predict_ms": 500, "top_k": 2, "n_indent": 2}
    (request,) = parse_infill(body).generation(make_model()).requests
    assert (request.max_tokens, request.deadline_s, request.sampling.top_k, request.n_indent) == (3, 0.5, 2, 2)


def test_a_file_without_a_name_has_llama_servers() -> None:
    assert Extra("x").filename == "tmp"
