"""Masks, proposals, and a sampler's life."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.engine.request import SamplingParams
from server.errors import InternalError
from server.llama.context.runner import LlamaRunner
from server.llama.sampling.sampler import NativeSampler
from tests.model.native_fixtures import PLAIN, Entry, generate, open_runner, prefill, prompt_tokens, raw_probabilities
from tests.support.ggufs import TinyModel, gguf_file


def mask_of(n_vocab: int, *tokens: int) -> bytes:
    bits = np.zeros(-(-n_vocab // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


@pytest.mark.parametrize("params", [PLAIN, SamplingParams(temperature=0.0), replace(PLAIN, mirostat=2)])
def test_a_mask_leaves_its_tokens_only(ready: LlamaRunner, params: SamplingParams) -> None:
    sampler = ready.sampler(params, [])
    before = ready.logprobs(0, 0, 400)
    mask = mask_of(ready.vocab.n_tokens, 3, 77, 399)
    assert {ready.sample_constrained(0, sampler, mask) for _ in range(50)} <= {3, 77, 399}
    assert ready.sample_constrained(0, sampler, mask_of(ready.vocab.n_tokens, 9)) == 9
    assert ready.logprobs(0, 0, 400) == before  # the context's logits are untouched


def test_a_mask_that_allows_nothing_or_is_too_short_raises(ready: LlamaRunner) -> None:
    sampler = ready.sampler(PLAIN, [])
    for mask in (mask_of(ready.vocab.n_tokens), bytearray(10)):
        with pytest.raises(InternalError):
            ready.sample_constrained(0, sampler, mask)


@pytest.mark.parametrize("change", [{}, {"presence_penalty": 1.0}, {"dry_multiplier": 1.0}, {"mirostat": 2}])
def test_propose_and_accept_are_sample(runner: LlamaRunner, change: dict[str, Any]) -> None:
    params = replace(PLAIN, **change)
    tokens = prompt_tokens(runner.vocab)
    expected = generate(runner, tokens, 20, params)
    runner.seq_remove(0, 0)
    prefill(runner, 0, tokens)
    sampler = runner.sampler(params, tokens)
    out: list[int] = []
    while len(out) < 20:
        out.append(runner.propose(0, sampler))
        runner.accept(sampler, out[-1])
        assert runner.decode([Entry(0, len(tokens) + len(out) - 1, out[-1:])])
    assert out == expected


@pytest.mark.parametrize("token", [-1, 400])
def test_tokens_outside_the_vocabulary_are_not_accepted(ready: LlamaRunner, token: int) -> None:
    sampler = ready.sampler(replace(PLAIN, presence_penalty=1.0), [])
    with pytest.raises(InternalError):
        ready.accept(sampler, token)
    with pytest.raises(InternalError):
        ready.sampler(replace(PLAIN, presence_penalty=1.0), [token])


def test_a_closed_sampler_raises(ready: LlamaRunner) -> None:
    sampler: NativeSampler = ready.sampler(PLAIN, [])
    sampler.close()
    sampler.close()
    for call in (ready.sample, ready.propose):
        with pytest.raises(InternalError, match="closed"):
            call(0, sampler)
    del sampler
    gc.collect()


def test_a_large_vocabulary_gives_the_gil_away_and_the_same_tokens(gguf_folder: Path) -> None:
    params = replace(PLAIN, presence_penalty=0.5)
    with open_runner(gguf_file(gguf_folder, TinyModel(n_vocab=70_000, n_embd=32))) as runner:
        tokens = prompt_tokens(runner.vocab)
        expected = generate(runner, tokens, 5, params)
        runner.seq_remove(0, 0)
        prefill(runner, 0, tokens)
        sampler = runner.sampler(params, tokens)
        assert runner.propose(0, sampler) == expected[0]
        mask = mask_of(70_000, 5)
        assert runner.sample_constrained(0, sampler, mask) == 5


def test_probabilities_under_a_mask_are_renormalized(ready: LlamaRunner) -> None:
    p = raw_probabilities(ready)
    sampler = ready.sampler(PLAIN, [])
    entry = ready.propose_probs(0, sampler, 5, mask_of(ready.vocab.n_tokens, 10, 20))
    assert {top.id for top in entry.top} == {10, 20}
    assert np.exp(entry.logprob) == pytest.approx(p[entry.id] / (p[10] + p[20]), rel=1e-4)
