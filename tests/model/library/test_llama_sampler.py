"""The sampler chain: what it leaves over is compared with the same rules in numpy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from server.engine.request import RANDOM_SEED, SamplingParams
from server.llama.context.runner import LlamaRunner
from tests.model.native_fixtures import PLAIN, generate, prompt_tokens, raw_probabilities


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_no_temperature_takes_the_best_token_whatever_the_seed(ready: LlamaRunner, temperature: float) -> None:
    best = int(raw_probabilities(ready).argmax())
    for seed in range(20):
        sampler = ready.sampler(SamplingParams(temperature=temperature, seed=seed), [])
        assert ready.sample(0, sampler) == best


def test_a_seed_repeats_and_another_does_not(runner: LlamaRunner) -> None:
    tokens = prompt_tokens(runner.vocab)
    first = generate(runner, tokens, 30, PLAIN)
    assert first == generate(runner, tokens, 30, PLAIN, seq=2)
    assert first != generate(runner, tokens, 30, replace(PLAIN, seed=8))


def test_a_random_seed_is_reported_and_repeats_the_output(runner: LlamaRunner) -> None:
    seeds = {runner.sampler(replace(PLAIN, seed=RANDOM_SEED), []).seed for _ in range(5)}
    assert len(seeds) == 5
    assert RANDOM_SEED not in seeds
    assert runner.sampler(PLAIN, []).seed == 7


def test_dry_breakers_of_any_text_are_harmless(ready: LlamaRunner) -> None:
    breakers = ("é", "☃☃", "x" * 500, "", "\x00", "\ud800", "the qu", "<|im_start|>")
    params = replace(PLAIN, dry_multiplier=1.0, dry_sequence_breakers=breakers)
    for _ in range(2):  # the second one is a copy of the first
        sampler = ready.sampler(params, [1, 2, 3] * 20)
        assert 0 <= ready.sample(0, sampler) < ready.vocab.n_tokens


@pytest.mark.parametrize(
    "change",
    [
        {"mirostat": 1},
        {"mirostat": 2},
        {"samplers": ("min_p", "adaptive_p"), "adaptive_target": 0.3},
        {"typical_p": 0.5},
        {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5},
        {"samplers": ("top_k", "top_p", "infill", "temperature")},
        {"samplers": ()},
        {"top_k": 1, "xtc_probability": 0.9, "min_keep": 1_000_000},
    ],
)
def test_every_member_works_and_repeats_with_its_seed(runner: LlamaRunner, change: dict[str, Any]) -> None:
    params = replace(PLAIN, **change)
    tokens = prompt_tokens(runner.vocab)
    assert generate(runner, tokens, 15, params) == generate(runner, tokens, 15, params)


GREEDY_CHAINS: list[dict[str, Any]] = [
    {},
    {"ignore_eos": True},
    {"top_k": 3, "top_p": 0.2, "min_p": 0.9, "top_n_sigma": 0.5},
    {"samplers": ("temperature",)},
    {"repeat_penalty": 1.3, "repeat_last_n": 0},
    {"xtc_probability": 0.0, "typical_p": 1.0, "min_keep": 4},
]


@pytest.mark.parametrize("changes", GREEDY_CHAINS, ids=lambda changes: " ".join(changes) or "default")
@pytest.mark.parametrize("n_biased", [0, 1, 3])
def test_the_highest_logit_is_what_the_whole_chain_takes(
    ready: LlamaRunner, changes: dict[str, Any], n_biased: int
) -> None:
    biased = np.argsort(-raw_probabilities(ready))[:n_biased]
    params = SamplingParams(
        temperature=0.0, logit_bias=tuple((int(token), -100.0) for token in biased), seed=1, **changes
    )
    short, whole = ready.sampler(params, []), ready.sampler(params, [])
    assert short.lowered is not None
    whole.lowered = None
    token = ready.sample(0, short)
    assert token == ready.sample(0, whole)
    assert token not in biased
