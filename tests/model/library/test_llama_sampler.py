"""The sampler chain: what it leaves over is compared with the same rules in numpy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from server.engine.request import RANDOM_SEED, SamplingParams
from server.llama.context.runner import LlamaRunner
from tests.model.native_fixtures import PLAIN, Probabilities, generate, prompt_tokens, raw_probabilities


def left_over(runner: LlamaRunner, params: SamplingParams, prompt: list[int] | None = None) -> Probabilities:
    """The distribution that the chain draws from."""
    n_vocab = runner.vocab.n_tokens
    sampler = runner.sampler(params, prompt or [])
    entry = runner.propose_probs(0, sampler, n_vocab)
    sampler.close()
    out = np.zeros(n_vocab)
    for top in entry.top:
        out[top.id] = np.exp(top.logprob)
    assert out[entry.id] == pytest.approx(np.exp(entry.logprob))
    return out


def normalized(p: Probabilities) -> Probabilities:
    scaled: Probabilities = p / p.sum()
    return scaled


def test_the_default_order_is_top_k_top_p_min_p_then_temperature(ready: LlamaRunner) -> None:
    params = SamplingParams(top_k=40, top_p=0.95, min_p=0.05, temperature=0.8, seed=1)
    p = raw_probabilities(ready)
    p = normalized(p * (p >= np.sort(p)[-40]))
    order = np.argsort(-p)
    p = p * np.isin(np.arange(len(p)), order[: int(np.searchsorted(np.cumsum(p[order]), 0.95)) + 1])
    p = normalized(p * (p >= 0.05 * p.max()))
    assert np.allclose(left_over(ready, params), normalized(p ** (1 / 0.8)), atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_no_temperature_takes_the_best_token_whatever_the_seed(ready: LlamaRunner, temperature: float) -> None:
    best = int(raw_probabilities(ready).argmax())
    for seed in range(20):
        sampler = ready.sampler(SamplingParams(temperature=temperature, seed=seed), [])
        assert ready.sample(0, sampler) == best


def test_draws_follow_the_distribution(ready: LlamaRunner) -> None:
    params = replace(PLAIN, top_k=4, seed=11)
    expected = left_over(ready, params)
    sampler = ready.sampler(params, [])
    counts = np.bincount([ready.sample(0, sampler) for _ in range(4000)], minlength=len(expected))
    assert np.allclose(counts / 4000, expected, atol=0.03)


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


def test_a_bias_forbids_and_forces(ready: LlamaRunner) -> None:
    p = raw_probabilities(ready)
    best = int(p.argmax())
    forbidden = left_over(ready, replace(PLAIN, logit_bias=((best, float("-inf")),)))
    assert forbidden[best] == 0.0
    forced = left_over(ready, replace(PLAIN, logit_bias=((17, 100.0),)))
    assert forced[17] == pytest.approx(1.0)


def test_ignore_eos_forbids_every_end_token(ready: LlamaRunner) -> None:
    allowed = left_over(ready, replace(PLAIN, ignore_eos=True))
    assert all(allowed[token] == 0.0 for token in ready.vocab.eog)
    assert all(left_over(ready, PLAIN)[token] > 0.0 for token in ready.vocab.eog)


def test_accepted_tokens_are_penalized(ready: LlamaRunner) -> None:
    sampler = ready.sampler(replace(PLAIN, presence_penalty=50.0), [])
    drawn = [ready.sample(0, sampler) for _ in range(40)]
    assert len(set(drawn)) == 40


def test_dry_stops_a_repetition_but_not_across_a_breaker(ready: LlamaRunner) -> None:
    params = replace(PLAIN, dry_multiplier=5.0, dry_base=2.0, dry_sequence_breakers=())
    once = [301, 302, 303, 304, 305]
    repeated = left_over(ready, params, prompt=[*once, 350, *once[:4]])
    p = raw_probabilities(ready)
    assert repeated[305] < p[305] * 0.01
    newline = ready.vocab.tokenize("\n", add_special=False, parse_special=False)
    broken = [*once[:3], *newline, 305, 350, *once[:3], *newline]
    params = replace(params, dry_sequence_breakers=("\n",))
    assert left_over(ready, params, prompt=broken)[305] == pytest.approx(p[305], rel=1e-3)


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


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.1},
        {"dynatemp_range": 0.5},
        {"xtc_probability": 0.5},
        {"typical_p": 0.5},
        {"repeat_penalty": 1.1},
        {"dry_multiplier": 0.8},
        {"mirostat": 2},
        {"samplers": ("top_k",)},
        {"samplers": ("temperature", "adaptive_p")},
        {"logit_bias": ((5, 3.0),)},
    ],
    ids=" ".join,
)
def test_a_chain_that_may_take_another_is_run(ready: LlamaRunner, changes: dict[str, Any]) -> None:
    assert ready.sampler(SamplingParams(**{"temperature": 0.0, "seed": 1, **changes}), []).lowered is None
