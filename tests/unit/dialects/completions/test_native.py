from typing import Any

import pytest

from server.dialects.native.parse import parse_native
from server.dialects.native.write import NativeWriter
from server.engine.request import RANDOM_SEED, Request
from server.errors import InvalidRequest
from tests.support.fakes import BOS
from tests.unit.dialects.builders import finished, make_model

Body = dict[str, Any]


def requests(model: Any = None, **body: object) -> list[Request]:
    return list(parse_native({"prompt": "a", **body}).generation(model or make_model()).requests)


def settings(model: Any = None, **body: object) -> Body:
    generation = parse_native({"prompt": "a", **body}).generation(model or make_model())
    assert isinstance(generation.writer, NativeWriter)
    found: Body = generation.writer._finals.final(0, finished())["generation_settings"]
    return found


def refused(**body: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        requests(**body)
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[BOS, 97, 98]]),
        ([97, 98], [[97, 98]]),
        ([97, "b", 99], [[97, 98, 99]]),
        (["a", 98], [[BOS, 97, 98]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([[97], [98, "c"], "d", {"prompt_string": "e"}], [[97], [98, 99], [BOS, 100], [BOS, 101]]),
        ({"prompt_string": "<s>"}, [[BOS, BOS]]),
        ({"prompt_string": [97, "b"]}, [[97, 98]]),
    ],
)
def test_every_form_of_prompt_is_read(prompt: object, expected: list[list[int]]) -> None:
    assert [request.prompt for request in requests(prompt=prompt)] == expected


@pytest.mark.parametrize("prompt", [5, 1.5, True, {"x": 1}, {}, [{"y": 1}]])
def test_a_prompt_of_another_form_is_refused_in_llama_servers_words(prompt: object) -> None:
    message = refused(prompt=prompt).message
    assert "elements must be a string, a list of tokens" in message


def test_logprobs_may_be_a_switch() -> None:
    assert requests(logprobs=True)[0].n_probs == 1


def test_an_empty_prompt_is_refused_where_the_model_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr(model.vocab, "tokenize", lambda *_, **__: [])
    with pytest.raises(InvalidRequest, match="is empty"):
        requests(model, prompt="")


def test_response_format_is_no_field_of_a_native_body() -> None:
    assert requests(response_format="text")[0].constraint is None


def test_each_prompt_has_a_constraint_and_an_id_of_its_own() -> None:
    first, second = requests(prompt=["a", "b"], json_schema={})
    assert first.constraint is not second.constraint
    assert first.id != second.id


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.5),
        ("top_k", 3),
        ("stop", ["x", "y"]),
        ("n_predict", 7),
        ("n_keep", -1),
        ("n_discard", 4),
        ("stream", True),
        ("n_probs", 2),
        ("min_keep", 3),
        ("grammar", "root ::= x"),
        ("samplers", ["top_k", "top_k", "temperature"]),
        ("timings_per_token", True),
        ("post_sampling_probs", True),
        ("dry_sequence_breakers", ["x"]),
        ("mirostat", 2),
        ("ignore_eos", True),
        ("seed", 5),
        ("reasoning_format", "none"),
    ],
)
def test_settings_show_what_was_asked_for(name: str, value: object) -> None:
    assert settings(**{name: value})[name] == value


def test_settings_show_what_it_came_to() -> None:
    shown = settings(max_tokens=3, top_p=9, logit_bias=[[65, False], ["B", 2]], ignore_eos=True)
    assert (shown["n_predict"], shown["max_tokens"], shown["top_p"], shown["seed"]) == (3, 3, 1.0, RANDOM_SEED)
    assert shown["logit_bias"] == [
        {"bias": None, "token": 65},
        {"bias": 2.0, "token": 66},
        {"bias": None, "token": 257},
        {"bias": None, "token": 259},
    ]
    assert settings(json_schema={"type": "string"})["grammar"] == '%llguidance {}\nstart: %json {"type":"string"}'
