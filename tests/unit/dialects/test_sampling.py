"""Sampling fields of bodies."""

import re
from dataclasses import fields as dataclass_fields
from typing import Any

import pytest

from server.dialects.fields import parse
from server.dialects.sampling import SamplingFields, sampling_params
from server.engine.request import PARAMETERS, SamplingParams
from server.errors import InvalidRequest
from tests.support.fakes import FakeVocab
from tests.support.real_server import ROOT

N_CTX = 128


def params(defaults: SamplingParams | None = None, **fields: object) -> SamplingParams:
    return sampling_params(parse(SamplingFields, fields), defaults or SamplingParams(), FakeVocab(), N_CTX)


def error_message(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        params(**fields)
    return caught.value.message


def test_every_sampling_parameter_has_a_field() -> None:
    assert {f.name for f in dataclass_fields(SamplingParams)} == set(SamplingFields.model_fields)


def test_absent_fields_have_the_models_defaults() -> None:
    defaults = SamplingParams(temperature=0.1, top_k=7, seed=5, samplers=("top_k",), logit_bias=((1, 2.0),))
    assert params(defaults) == defaults


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        ([[5, float("nan")]], "within"),
        ([["abcdefgh" * 1000, 1.0]] * 9, "has more than 65536 tokens"),
    ],
)
def test_an_invalid_logit_bias_is_rejected(bias: object, expected: str) -> None:
    message = error_message(logit_bias=bias)
    assert message.startswith("Field 'logit_bias': ")
    assert expected in message


def test_a_logit_bias_that_bans_every_token_is_rejected() -> None:
    assert "every token" in error_message(logit_bias=[[t, False] for t in range(260)])


def test_the_native_sampler_uses_every_parameter_except_backend_sampling() -> None:
    source = (ROOT / "server/llama/sampling/sampler.py").read_text()
    assert {name for name in PARAMETERS if not re.search(rf"\bp(arams)?\.{name}\b", source)} == {"backend_sampling"}
