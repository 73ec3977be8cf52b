from typing import Any

import pytest

from server.dialects.native.parse import parse_native
from server.dialects.native.write import NativeWriter
from server.engine.request import RANDOM_SEED, Request
from server.errors import InvalidRequest
from tests.unit.dialects.builders import finished, make_model

Body = dict[str, Any]


def requests(model: Any = None, **body: object) -> list[Request]:
    return list(parse_native({"prompt": "a", **body}).generation(model or make_model()).requests)


def settings(model: Any = None, **body: object) -> Body:
    generation = parse_native({"prompt": "a", **body}).generation(model or make_model())
    assert isinstance(generation.writer, NativeWriter)
    found: Body = generation.writer.final(0, finished())["generation_settings"]
    return found


def test_an_empty_prompt_is_refused_where_the_model_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr(model.vocab, "tokenize", lambda *_, **__: [])
    with pytest.raises(InvalidRequest, match="is empty"):
        requests(model, prompt="")


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
