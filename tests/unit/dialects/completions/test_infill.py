from typing import Any

import pytest

from server.dialects.native.fim import Gap, fitting_extra
from server.dialects.native.parse import parse_infill
from tests.support.fakes import BOS
from tests.unit.dialects.builders import make_model

PRE, SUF, MID, REPO, SEP = 1, 2, 3, 4, 5
SNIPPET = b"\n\n--- snippet ---\n\n"


def tokens(model: Any = None, **body: object) -> list[int]:
    given = {"input_prefix": "ab", "input_suffix": "cd", **body}
    (prompt,) = parse_infill(given).tokens(model or make_model())
    return prompt.tokens


def test_further_files_come_first_in_the_pattern_of_the_vocabulary() -> None:
    files = [{"text": "T", "filename": "f"}, {"text": "U"}]
    plain = tokens(make_model(n_ctx=9000), input_extra=files)
    assert plain == [*SNIPPET, *b"T", *SNIPPET, *b"U", BOS, PRE, *b"ab", SUF, *b"cd", MID]
    repo = tokens(make_model(n_ctx=9000, fim="repo"), input_extra=files)
    head = [REPO, *b"myproject\n", SEP, *b"f\nT", SEP, *b"tmp\nU", SEP, *b"filename\n"]
    assert repo == [*head, BOS, PRE, *b"ab", SUF, *b"cd", MID]


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


def test_all_options_of_a_completion_are_taken() -> None:
    body = {"input_prefix": "", "input_suffix": "", "n_predict": 3, "t_max_predict_ms": 500, "top_k": 2, "n_indent": 2}
    (request,) = parse_infill(body).generation(make_model()).requests
    assert (request.max_tokens, request.deadline_s, request.sampling.top_k, request.n_indent) == (3, 0.5, 2, 2)
