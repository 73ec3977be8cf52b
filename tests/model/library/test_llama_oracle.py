"""The same seed and the same parameters give llama-server's very tokens: the chain is its chain."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.engine.request import SamplingParams
from server.llama.context.runner import LlamaRunner
from tests.model.native_fixtures import GREEDY, generate, open_runner, prefill, prompt_tokens
from tests.support.closeness import LOGPROB_SPREAD
from tests.support.oracle import oracle
from tests.support.real_server import RealServer

N_TOKENS = 40
SEED = 1234
CASES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "repeat_last_n": 500},
    {"dry_multiplier": 1.5, "dry_allowed_length": 1},
    {"mirostat": 1},
    {"mirostat": 2},
    {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    {"typical_p": 0.6},
    {"top_n_sigma": 1.0},
    {"dynatemp_range": 0.5, "dynatemp_exponent": 1.3},
    {"ignore_eos": True},
    {"logit_bias": ((100, 3.0), (200, -5.0))},
    {"samplers": ("min_p", "temperature", "top_k")},
    {"samplers": ("min_p", "adaptive_p"), "adaptive_target": 0.2},
    {"min_keep": 5, "top_p": 0.3},
]


@pytest.fixture(scope="module")
def server(tiny_path: Path) -> Iterator[RealServer]:
    with oracle(tiny_path, n_ctx=1024, n_threads=1) as started:
        started.wait_until_ready()
        yield started


@pytest.fixture(scope="module")
def ours(tiny_path: Path) -> Iterator[LlamaRunner]:
    with open_runner(tiny_path, n_parallel=1) as opened:
        yield opened


def completion(server: RealServer, prompt: list[int], **body: Any) -> dict[str, Any]:
    fixed = {"prompt": prompt, "seed": SEED, "return_tokens": True, "cache_prompt": False}
    reply: dict[str, Any] = server.post("/completion", {**fixed, **body})
    return reply


def until_end(runner: LlamaRunner, tokens: list[int]) -> list[int]:
    """Up to the first end token, which llama-server returns too."""
    ends = [i for i, token in enumerate(tokens) if token in runner.vocab.eog]
    return tokens[: ends[0] + 1] if ends else tokens


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case) or "defaults")
def test_tokens_are_llama_servers(server: RealServer, ours: LlamaRunner, case: dict[str, Any]) -> None:
    prompt = prompt_tokens(ours.vocab)
    expected = completion(server, prompt, n_predict=N_TOKENS, **case)["tokens"]
    got = generate(ours, prompt, N_TOKENS, replace(SamplingParams(**case), seed=SEED))
    assert until_end(ours, got) == expected


def test_log_probabilities_are_llama_servers(server: RealServer, ours: LlamaRunner) -> None:
    prompt = prompt_tokens(ours.vocab)
    expected = completion(server, prompt, n_predict=1, n_probs=5)["completion_probabilities"][0]
    ours.clear(0)
    prefill(ours, 0, prompt)
    got = ours.logprobs(0, expected["id"], 5)
    assert got.logprob == pytest.approx(expected["logprob"], abs=LOGPROB_SPREAD)
    assert [top.id for top in got.top] == [top["id"] for top in expected["top_logprobs"]]
    assert [list(top.piece) for top in got.top] == [top["bytes"] for top in expected["top_logprobs"]]
    for mine, theirs in zip(got.top, expected["top_logprobs"], strict=True):
        assert mine.logprob == pytest.approx(theirs["logprob"], abs=LOGPROB_SPREAD)


def test_probabilities_after_sampling_are_llama_servers(server: RealServer, ours: LlamaRunner) -> None:
    prompt = prompt_tokens(ours.vocab)
    reply = completion(server, prompt, n_predict=1, n_probs=5, post_sampling_probs=True)
    expected = reply["completion_probabilities"][0]
    ours.clear(0)
    prefill(ours, 0, prompt)
    got = ours.propose_probs(0, ours.sampler(replace(SamplingParams(), seed=SEED), prompt), 5)
    assert got.id == expected["id"]
    assert got.logprob == pytest.approx(np.log(expected["prob"]), abs=LOGPROB_SPREAD)
    assert [top.id for top in got.top] == [top["id"] for top in expected["top_probs"]]
    for mine, theirs in zip(got.top, expected["top_probs"], strict=True):
        assert mine.logprob == pytest.approx(np.log(theirs["prob"]), abs=LOGPROB_SPREAD)


@pytest.mark.parametrize("text", ["hello world", "ünï ☃ 🙂 \x00 x", "<|im_start|>user\nhi<|im_end|>", "  a\n\n\tb "])
@pytest.mark.parametrize("special", [True, False])
def test_tokenizing_is_llama_servers(server: RealServer, ours: LlamaRunner, text: str, special: bool) -> None:
    body = {"content": text, "add_special": True, "parse_special": special}
    expected = server.post("/tokenize", body)["tokens"]
    assert ours.vocab.tokenize(text, add_special=True, parse_special=special) == expected
    assert ours.vocab.detokenize(expected[1:]).decode() == text


def test_greedy_is_the_same_over_a_long_output(server: RealServer, ours: LlamaRunner) -> None:
    prompt = prompt_tokens(ours.vocab)
    expected = completion(server, prompt, n_predict=300, temperature=0.0, ignore_eos=True)["tokens"]
    assert generate(ours, prompt, 300, replace(GREEDY, ignore_eos=True)) == expected
