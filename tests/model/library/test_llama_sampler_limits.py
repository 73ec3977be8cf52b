"""Sampling parameters that cannot be, and those at the edge of what can."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from server.engine.request import SamplingParams
from server.errors import InvalidRequest
from server.llama.context.runner import LlamaRunner
from tests.model.native_fixtures import PLAIN


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": float("inf")}, "top_p"),
        ({"temperature": 1e300}, "temperature"),
        ({"repeat_penalty": 0.0}, "repeat_penalty"),
        ({"repeat_penalty": -1.0}, "repeat_penalty"),
        ({"repeat_penalty": 1e-45}, "repeat_penalty"),
        ({"top_k": 1 << 40}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 32}, "seed"),
        ({"mirostat": 3}, "mirostat"),
        ({"min_keep": -1}, "min_keep"),
        ({"samplers": ("top_k", "none")}, "samplers"),
        ({"logit_bias": ((400, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((1, float("nan")),)}, "logit_bias"),
        ({"logit_bias": ((1, float("inf")),)}, "logit_bias"),
        ({"dry_sequence_breakers": ("a",) * 1000}, "dry_sequence_breakers"),
    ],
)
def test_impossible_parameters_name_their_field(runner: LlamaRunner, change: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        runner.sampler(replace(PLAIN, **change), [])
    assert caught.value.param == param


def extreme_params() -> Iterator[SamplingParams]:
    for value in (3.4e38, -3.4e38, 1e-30, 0.0):
        for name in (
            "temperature",
            "dynatemp_range",
            "dynatemp_exponent",
            "min_p",
            "top_p",
            "typical_p",
            "mirostat_tau",
        ):
            change: dict[str, Any] = {name: value}
            yield replace(PLAIN, **change, mirostat=2 if name == "mirostat_tau" else 0)
            yield replace(PLAIN, **change, dynatemp_range=2.0) if name != "dynatemp_range" else PLAIN
        yield replace(PLAIN, mirostat=1, mirostat_tau=value, mirostat_eta=value)
        yield replace(PLAIN, samplers=("adaptive_p",), adaptive_target=value, adaptive_decay=value)
        yield replace(PLAIN, presence_penalty=value, frequency_penalty=value)
        yield replace(PLAIN, dry_multiplier=value, dry_base=max(value, 1.0), dry_allowed_length=-5)


def test_extreme_but_finite_numbers_do_not_stop_the_process(ready: LlamaRunner) -> None:
    for params in extreme_params():
        sampler = ready.sampler(params, [5] * 30)
        for _ in range(3):
            assert 0 <= ready.sample(0, sampler) < ready.vocab.n_tokens
            assert 0 <= ready.propose(0, sampler) < ready.vocab.n_tokens


def test_infill_needs_an_end_token(runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the library would abort."""
    monkeypatch.setattr(runner.vocab, "eot", -1)
    runner.sampler(replace(PLAIN, samplers=("infill",)), []).close()
    monkeypatch.setattr(runner.vocab, "eos", -1)
    with pytest.raises(InvalidRequest, match="end token") as caught:
        runner.sampler(replace(PLAIN, samplers=("infill",)), [])
    assert caught.value.param == "samplers"
