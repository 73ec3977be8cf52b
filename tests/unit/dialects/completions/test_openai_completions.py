from typing import Any

import pytest

from server.dialects.completions.parse import parse_completion
from server.errors import InvalidRequest
from tests.support.fakes import BOS
from tests.unit.dialects.builders import make_model

Body = dict[str, Any]


def prompts(prompt: object, **fields: object) -> list[list[int]]:
    job = parse_completion({"prompt": prompt, **fields}).generation(make_model())
    return [request.prompt for request in job.requests]


def refused(body: Body) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_completion(body).generation(make_model())
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[BOS, 97, 98]]),
        ("", [[BOS]]),
        ([97, 98], [[97, 98]]),
        (["ab"], [[BOS, 97, 98]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
        ([97, "b", 99], [[97, 98, 99]]),
        (["a", 98], [[BOS, 97, 98]]),
        (["a", [98, "c"]], [[BOS, 97], [98, 99]]),
        ({"prompt_string": "a"}, [[BOS, 97]]),
        ("<s>", [[BOS, BOS]]),
    ],
)
def test_every_form_of_prompt_is_tokenized_as_llama_server_does(prompt: object, expected: object) -> None:
    assert prompts(prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        (None, "prompt"),
        ([], "prompt"),
        ([[]], "prompt.0"),
        (5, "prompt"),
        (True, "prompt"),
        ([1, None], "prompt.1"),
        ([1, 260], "prompt.1"),
        ([[1], [-1]], "prompt.1.0"),
        ([1, 1.5], "prompt.1"),
        ([True], "prompt.0"),
        (["a", {}], "prompt.1.prompt_string"),
        ({"prompt_string": "a", "multimodal_data": ["x"]}, "prompt"),
        (["a"] * 257, "prompt"),
    ],
)
def test_a_wrong_prompt_is_refused_at_its_place(prompt: object, named: str) -> None:
    assert refused({"prompt": prompt}).param == named


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"best_of": 129}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"suffix": 5}, "suffix"),
        ({"echo": True, "logprobs": 1, "suffix": "x"}, "echo"),
        ({"echo": True, "logprobs": 1, "post_sampling_probs": True}, "echo"),
        ({"echo": "yes"}, "echo"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 1001}, "logprobs"),
        ({"logprobs": 1.5}, "logprobs"),
    ],
)
def test_what_cannot_be_honoured_is_refused(fields: Body, named: str) -> None:
    error = refused({"prompt": "a", **fields})
    assert error.param == named


@pytest.mark.parametrize(
    ("fields", "wanted", "n_top"),
    [
        ({}, False, 0),
        ({"logprobs": False}, False, 0),
        ({"logprobs": True}, True, 1),
        ({"logprobs": 0}, True, 0),
        ({"logprobs": 3}, True, 3),
        ({"n_probs": 2, "logprobs": 3}, True, 2),
        ({"n_probs": 0}, False, 0),
    ],
)
def test_logprobs_is_a_count_or_a_switch(fields: Body, wanted: bool, n_top: int) -> None:
    job = parse_completion({"prompt": "a", **fields}).generation(make_model())
    assert (job.requests[0].want_logprobs, job.requests[0].n_probs) == (wanted, n_top)


def test_a_suffix_makes_the_prompt_the_text_in_front_of_a_gap() -> None:
    completion = parse_completion({"prompt": ["ab", [99]], "suffix": "d<s>"})
    job = completion.generation(make_model())
    suffix = list(b"d<s>")
    assert [r.prompt for r in job.requests] == [[BOS, 1, 97, 98, 2, *suffix, 3], [BOS, 1, 99, 2, *suffix, 3]]
    (other, *_) = completion.generation(make_model(spm_infill=True)).requests
    assert other.prompt == [BOS, 2, *suffix, 1, 97, 98, 3]
