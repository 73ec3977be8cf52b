import re
from dataclasses import fields as dataclass_fields
from typing import Any

import pytest

from server.dialects.fields import parse
from server.dialects.sampling import NEVER, SamplingFields, sampling_params
from server.engine.request import PARAMETERS, RANDOM_SEED, SamplingParams
from server.errors import InvalidRequest
from tests.support.fakes import FakeVocab
from tests.support.real_server import ROOT

N_CTX = 128


def params(defaults: SamplingParams | None = None, **fields: object) -> SamplingParams:
    return sampling_params(parse(SamplingFields, fields), defaults or SamplingParams(), FakeVocab(), N_CTX)


def refused(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        params(**fields)
    return caught.value.message


def test_every_sampling_parameter_has_a_field() -> None:
    assert {f.name for f in dataclass_fields(SamplingParams)} == set(SamplingFields.model_fields)


def test_without_fields_the_models_defaults_count() -> None:
    defaults = SamplingParams(temperature=0.1, top_k=7, seed=5, samplers=("top_k",), logit_bias=((1, 2.0),))
    assert params(defaults) == defaults


@pytest.mark.parametrize(("seed", "expected"), [(-1, RANDOM_SEED), (5, 5), (2**32 + 5, 5), (2**63 - 1, RANDOM_SEED)])
def test_a_seed_is_taken_modulo_32_bits(seed: int, expected: int) -> None:
    assert params(seed=seed).seed == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *[(name, 1.5, 1.0) for name in ("top_p", "min_p", "xtc_probability", "xtc_threshold", "adaptive_target")],
        *[(name, -0.5, 0.0) for name in ("top_p", "min_p", "xtc_probability", "xtc_threshold", "temperature")],
        ("mirostat", 9, 2),
        ("mirostat", -1, 0),
        ("top_k", -1, 0),
        ("adaptive_target", -7.5, -7.5),
        ("typical_p", -2, -2),
        ("dynatemp_range", -1, -1),
        ("dry_multiplier", -1, -1),
        ("mirostat_tau", -3, -3),
        ("repeat_last_n", -1, N_CTX),
    ],
)
def test_soft_limits_clamp_as_llama_servers(name: str, value: Any, expected: float) -> None:
    assert getattr(params(**{name: value}), name) == expected


@pytest.mark.parametrize("samplers", [["top_k", "tfs_z", "temperature"], "kft", ["tfs-z", "top_k", "temperature"]])
def test_tail_free_sampling_of_older_clients_is_left_out(samplers: object) -> None:
    assert params(samplers=samplers).samplers == ("top_k", "temperature")


@pytest.mark.parametrize(
    "bias",
    [
        {"65": 1.5, "BC": -2, "68": False},
        [[65, 1.5], ["BC", -2], [68, False]],
    ],
)
def test_logit_bias_takes_ids_texts_and_false(bias: object) -> None:
    assert params(logit_bias=bias).logit_bias == ((65, 1.5), (66, -2.0), (67, -2.0), (68, NEVER))


@pytest.mark.parametrize(
    ("bias", "said"),
    [
        ([[260, 1.0]], "260"),
        ({"-1": 1.0}, "-1"),
        ({"5": "x"}, "entry 0"),
        ({"5": True}, "entry 0"),
        ([[5]], "pair"),
        ([5], "pair"),
        ([[True, 1]], "token"),
        ([[5, 1e31]], "within"),
        ([[5, float("nan")]], "within"),
        ([["abcdefgh" * 1000, 1.0]] * 9, "has more than 65536 tokens"),
    ],
)
def test_an_unreadable_bias_is_refused(bias: object, said: str) -> None:
    message = refused(logit_bias=bias)
    assert message.startswith("Field 'logit_bias': ")
    assert said in message


def test_a_bias_that_bans_every_token_is_refused() -> None:
    assert "every token" in refused(logit_bias=[[t, False] for t in range(260)])


def test_every_parameter_reaches_the_native_sampler() -> None:
    source = (ROOT / "server/llama/sampling/sampler.py").read_text()
    assert {name for name in PARAMETERS if not re.search(rf"\bp(arams)?\.{name}\b", source)} == {"backend_sampling"}
