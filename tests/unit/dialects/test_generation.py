from typing import Any

import pytest

from server.dialects.fields import parse
from server.dialects.generation import GenerationFields, prompt_requests
from server.engine.lora import Adapter
from server.engine.media import MediaPrompt
from server.engine.request import Request
from server.errors import InvalidRequest
from tests.unit.dialects.builders import make_model


def request(*, n_predict: int = -1, **fields: object) -> Request:
    return made(fields, make_model(n_predict=n_predict))


def made(fields: dict[str, object], model: Any) -> Request:
    (found,) = prompt_requests(parse(GenerationFields, fields), model, "r", [MediaPrompt([1, 2])])
    return found


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        request(**fields)
    return caught.value


def test_the_names_of_the_token_limit_have_llama_servers_precedence() -> None:
    assert request().max_tokens == -1
    assert request(max_tokens=3).max_tokens == 3
    assert request(max_tokens=3, max_completion_tokens=4).max_tokens == 4
    assert made({"max_tokens": 3, "max_completion_tokens": 4, "n_predict": 0}, make_model()).max_tokens == 0


@pytest.mark.parametrize(("stop", "expected"), [("a", ("a",)), (["a", "", "b"], ("a", "b")), ("", ()), (None, ())])
def test_stop_is_one_string_or_a_list(stop: object, expected: tuple[str, ...]) -> None:
    assert request(stop=stop).stop == expected


ADAPTERS = (Adapter(0, "a.gguf", 1.0), Adapter(1, "b.gguf", 1.0))


@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        ([], None),
        (None, None),
        ([{"id": 1, "scale": 0.5}], ((1, 0.5),)),
        ([{"id": 1, "scale": 2}, {"id": 0, "scale": -1}], ((0, -1.0), (1, 2.0))),
        ([{"id": 0, "scale": 0.0}], ()),
    ],
)
def test_lora_names_the_adapters_that_are_on(lora: object, expected: object) -> None:
    assert made({"lora": lora}, make_model(adapters=ADAPTERS)).adapters == expected


def test_the_rest_of_the_fields_reaches_the_engine() -> None:
    got = request(
        n=2,
        id_slot=1,
        cache_prompt=False,
        t_max_predict_ms=1500,
        timings_per_token=True,
        return_progress=True,
        stream=True,
        n_keep=-1,
        n_discard=5,
        n_cache_reuse=6,
        n_indent=7,
        post_sampling_probs=True,
    )
    assert (got.n_keep, got.n_discard, got.n_cache_reuse, got.n_indent) == (-1, 5, 6, 7)
    assert got.post_sampling_probs
    assert (got.n, got.id_slot, got.cache_prompt, got.deadline_s) == (2, 1, False, 1.5)
    assert got.timings_per_token
    assert got.return_progress


def test_progress_is_only_for_streams() -> None:
    assert not request(return_progress=True).return_progress
