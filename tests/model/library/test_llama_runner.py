"""Decoding, the sequences of a KV cache, and log probabilities of prompts, on real tiny models."""

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from server.engine.params import EngineParams
from server.engine.request import PromptLogprobs, Request
from server.engine.runner_api import BatchEntry
from server.errors import InternalError
from server.llama.context.draft_runner import LlamaDraftRunner
from server.llama.context.runner import LlamaRunner, best_tokens
from tests.model.native_fixtures import (
    GREEDY,
    Entry,
    engine_on,
    generate,
    load,
    open_runner,
    prefill,
    prompt_tokens,
    raw_logits,
)
from tests.support.closeness import LOGPROB_SPREAD, same_vectors
from tests.support.ggufs import PLAIN, RECURRENT, SLIDING_WINDOW, TinyModel, gguf_file
from tests.unit.engine.builders import run

RunnerOf = Callable[..., AbstractContextManager[LlamaRunner]]


def test_a_device_is_waited_for_where_there_are_logits_and_by_a_draft_model_always(
    runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prompt_tokens(runner.vocab)
    waits: list[object] = []
    monkeypatch.setattr("server.llama.context.runner.C.llama_synchronize", waits.append)
    info = replace(runner.info, deferred=True)
    monkeypatch.setattr(runner, "info", info)
    draft = LlamaDraftRunner(runner._open(), info, runner.vocab.n_tokens, runner.vocab.n_tokens)
    for n_waits, decodes in ((0, runner), (1, draft)):
        assert decodes.decode([Entry(n_waits, 0, tokens[:3], n_outputs=0)])
        assert len(waits) == n_waits
    assert runner.decode([Entry(0, 3, tokens[3:4])])
    assert len(waits) == 2


def test_outputs_are_counted_among_the_wanted_logits_only(runner: LlamaRunner) -> None:
    tokens = prompt_tokens(runner.vocab)
    prefill(runner, 0, tokens)
    expected = raw_logits(runner)
    runner.seq_remove(0, 0)
    assert runner.decode([Entry(1, 0, tokens[:5], n_outputs=0), Entry(0, 0, tokens)])
    assert same_vectors(raw_logits(runner, 0), expected)
    with pytest.raises(InternalError, match="output 1"):
        runner.logprobs(1, 0, 0)


def test_cells_behind_what_two_sequences_share_move_and_the_other_stays(runner_of: RunnerOf) -> None:
    with runner_of(kv_unified=True) as runner:
        tokens = prompt_tokens(runner.vocab)
        n = len(tokens) // 2
        prefill(runner, 1, tokens[:n])
        assert runner.decode([Entry(1, n, tokens[n : n + 1], n_outputs=1)])
        expected = raw_logits(runner)
        prefill(runner, 0, tokens)
        runner.seq_remove(1, 0)
        runner.seq_copy(0, 1)
        assert runner.seq_remove(1, n)
        runner.seq_drop(0, 2, n)
        assert runner.decode([Entry(1, n, tokens[n : n + 1], n_outputs=1)])
        assert same_vectors(raw_logits(runner), expected)


def test_saving_a_copy_before_the_next_decode_saves_its_content(runner: LlamaRunner) -> None:
    """Between streams the cells move inside the next decode: saving must not run ahead of it."""
    tokens = prompt_tokens(runner.vocab)
    expected = generate(runner, tokens, 2)
    runner.seq_remove(0, 0)
    prefill(runner, 0, tokens[:-1])
    runner.seq_copy(0, 1)
    state = runner.seq_save(1)
    runner.seq_remove(1, 0)
    assert runner.seq_load(1, state, len(tokens) - 1)
    assert runner.decode([Entry(1, len(tokens) - 1, tokens[-1:])])
    assert runner.sample(0, runner.sampler(GREEDY, tokens)) == expected[0]


@pytest.mark.parametrize("damage", [lambda s: s[:-1], lambda s: s[:10], lambda s: b""])
def test_a_damaged_state_is_refused_and_leaves_the_sequence_empty(
    runner: LlamaRunner, damage: Callable[[bytes], bytes]
) -> None:
    prefill(runner, 0, [1, 2, 3])
    prefill(runner, 1, [1, 2])
    assert not runner.seq_load(1, damage(runner.seq_save(0)), 3)
    prefill(runner, 1, [4, 5])


def test_a_state_of_another_model_is_refused(runner: LlamaRunner, gguf_folder: Path) -> None:
    prefill(runner, 0, [1, 2, 3])
    state = runner.seq_save(0)
    with open_runner(gguf_file(gguf_folder, TinyModel(n_layer=3))) as other:
        assert not other.seq_load(0, state, 3)
        prefill(other, 0, [1, 2, 3])


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [Entry(0, 0, [])],
        [Entry(4, 0, [1])],
        [Entry(-1, 0, [1])],
        [Entry(0, -1, [1])],
        [Entry(0, 0, [400])],
        [Entry(0, 0, [-1])],
        [Entry(0, 0, [1 << 40])],
        [Entry(0, 0, [1] * 1025)],
        [Entry(0, 0, [1] * 200, n_outputs=200)],
        [Entry(0, 5, [1]), Entry(0, 3, [1])],
        [Entry(0, 0, [1]), Entry(0, 2, [1])],
    ],
)
def test_an_impossible_batch_raises_and_the_context_serves_on(runner: LlamaRunner, entries: list[BatchEntry]) -> None:
    tokens = prompt_tokens(runner.vocab)
    with pytest.raises(InternalError):
        runner.decode(entries)
    assert len(generate(runner, tokens, 3)) == 3


def test_logits_that_are_no_numbers_are_refused(gguf_folder: Path) -> None:
    with open_runner(gguf_file(gguf_folder, TinyModel(nan_weights=True))) as runner:
        prefill(runner, 0, [1, 2, 3])
        sampler = runner.sampler(GREEDY, [])
        with pytest.raises(InternalError, match="non-finite logits"):
            runner.sample(0, sampler)
        with pytest.raises(InternalError, match="non-finite logits"):
            runner.logprobs(0, 0, 1)


def test_logprobs_are_a_distribution_in_order(runner: LlamaRunner) -> None:
    prefill(runner, 0, prompt_tokens(runner.vocab))
    entry = runner.logprobs(0, 17, 400)
    best = [top.logprob for top in entry.top]
    assert len(best) == 400
    assert best == sorted(best, reverse=True)
    assert np.exp(best).sum() == pytest.approx(1.0)
    assert entry.logprob == next(top.logprob for top in entry.top if top.id == 17)
    assert runner.logprobs(0, 17, 3).top == entry.top[:3]
    assert runner.logprobs(0, 17, 0).top == ()
    assert runner.logprobs(0, 17, 10_000).top == entry.top


@pytest.mark.parametrize("n_vocab", [70, 1000, 49_153])
def test_the_best_tokens_are_found_wherever_they_are(n_vocab: int) -> None:
    logits = np.random.default_rng(n_vocab).permutation(n_vocab).astype(np.float32)
    for n in (1, 2, 20, 64):
        assert best_tokens(logits, n) == np.argsort(-logits)[:n].tolist()


def test_a_sliding_window_forgets_and_says_so(swa_path: Path) -> None:
    with open_runner(swa_path, n_parallel=1, n_ctx=1024, n_batch=64, n_ubatch=64) as runner:
        tokens = (prompt_tokens(runner.vocab) * 80)[:600]
        for start in range(0, 600, 50):
            assert runner.decode([Entry(0, start, tokens[start : start + 50])])
        last = raw_logits(runner)
        assert not runner.seq_remove(0, 100)  # positions 68 to 99, its window, are gone
        assert runner.seq_remove(0, 599)
        assert runner.decode([Entry(0, 599, tokens[599:])])
        assert same_vectors(raw_logits(runner), last)
        assert runner.seq_remove(0, 0)
        prefill(runner, 0, tokens[:50])


def test_a_recurrent_state_has_no_way_back(recurrent_path: Path) -> None:
    with open_runner(recurrent_path) as runner:
        tokens = prompt_tokens(runner.vocab)
        expected = generate(runner, tokens, 5)
        runner.seq_remove(0, 0)
        prefill(runner, 0, tokens)
        assert not runner.seq_remove(0, len(tokens) - 1)
        assert runner.seq_remove(0, len(tokens))
        runner.seq_copy(0, 1)
        state = runner.seq_save(1)
        assert runner.seq_load(2, state, len(tokens))
        for seq in (0, 1, 2):
            assert runner.decode([Entry(seq, len(tokens), expected[:1])])
            assert runner.sample(0, runner.sampler(GREEDY, tokens)) == expected[1]


TEXT = "the quick brown fox jumps over the lazy dog and then the other animals of the forest " * 8


@pytest.mark.parametrize("model", [PLAIN, RECURRENT, SLIDING_WINDOW], ids=lambda m: m.arch)
async def test_each_is_that_of_the_logits_before_it(gguf_folder: Path, model: TinyModel) -> None:
    """Read one token at a time, and as a request whose prompt is in the cache and goes through in several steps."""
    path = gguf_file(gguf_folder, model)
    weights = load(path, flash_attn="off")
    with closing(weights.runner()) as runner:
        tokens = prompt_tokens(runner.vocab, TEXT)
        assert 1 < runner.info.n_more_outputs < len(tokens)
        alone = []
        for at, (token, following) in enumerate(pairwise(tokens)):
            assert runner.decode([Entry(0, at, [token])])
            alone.append(runner.logprobs(0, following, 3))
    plain = Request("plain", tokens, GREEDY, max_tokens=2)
    scored = Request("scored", tokens, GREEDY, max_tokens=1, n_probs=3, want_logprobs=True, prompt_logprobs=True)
    async with engine_on(weights, EngineParams(check_integrity=True)) as engine:
        await run(engine, plain)
        first, second = await run(engine, scored, scored)
    for reply in (first, second):
        found = [
            token for event in reply.events if isinstance(event, PromptLogprobs) for token in event.tokens if token
        ]
        assert [one.id for one in found] == tokens[1:]
        assert np.allclose([f.logprob for f in found], [a.logprob for a in alone], rtol=0, atol=LOGPROB_SPREAD)
        assert np.allclose(
            [[top.logprob for top in one.top] for one in found],
            [[top.logprob for top in one.top] for one in alone],
            rtol=0,
            atol=LOGPROB_SPREAD,
        )


def test_a_batch_has_outputs_for_so_many_prompt_tokens_and_one_for_each_sequence(gguf_folder: Path) -> None:
    """The library ends the process over one more than it was made for."""
    with open_runner(gguf_file(gguf_folder, PLAIN), n_parallel=2) as runner:
        most = runner.info.n_more_outputs
        tokens = [5] * (most + 1)
        assert runner.decode([Entry(0, 0, tokens, n_outputs=len(tokens)), Entry(1, 0, tokens)])
        assert runner.logprobs(most, 5, 1).top[0].logprob <= 0.0
        runner.seq_remove(0, 0)
        runner.seq_remove(1, 0)
        with pytest.raises(InternalError, match=f"{most + 3} outputs; at most {most + 2}"):
            runner.decode([Entry(0, 0, [5] * (most + 3), n_outputs=most + 3)])
