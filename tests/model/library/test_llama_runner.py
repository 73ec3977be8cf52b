"""`LlamaRunner` with native models: decoding, sequences of the KV cache, and log probabilities."""

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
    all_logprobs,
    engine_on,
    generate,
    load,
    open_runner,
    prefill,
    prompt_tokens,
)
from tests.support.closeness import LOGPROB_SPREAD, same_vectors
from tests.support.ggufs import PLAIN, RECURRENT, SLIDING_WINDOW, TinyModel, gguf_file
from tests.unit.engine.builders import run

OpenRunner = Callable[..., AbstractContextManager[LlamaRunner]]


def test_decode_waits_for_the_device_if_there_are_outputs_or_the_model_drafts(
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


def test_output_numbers_skip_entries_without_outputs(runner: LlamaRunner) -> None:
    tokens = prompt_tokens(runner.vocab)
    prefill(runner, 0, tokens)
    expected = all_logprobs(runner)
    runner.seq_remove(0, 0)
    assert runner.decode([Entry(1, 0, tokens[:5], n_outputs=0), Entry(0, 0, tokens)])
    assert same_vectors(all_logprobs(runner, 0), expected)
    with pytest.raises(InternalError, match="output 1"):
        runner.logprobs(1, 0, 0)


def test_a_shift_of_a_sequence_does_not_change_another_with_shared_cells(tiny_runner: OpenRunner) -> None:
    with tiny_runner(kv_unified=True) as runner:
        tokens = prompt_tokens(runner.vocab)
        n = len(tokens) // 2
        prefill(runner, 1, tokens[:n])
        assert runner.decode([Entry(1, n, tokens[n : n + 1], n_outputs=1)])
        expected = all_logprobs(runner)
        prefill(runner, 0, tokens)
        runner.seq_remove(1, 0)
        runner.seq_copy(0, 1)
        assert runner.seq_remove(1, n)
        runner.seq_drop(0, 2, n)
        assert runner.decode([Entry(1, n, tokens[n : n + 1], n_outputs=1)])
        assert same_vectors(all_logprobs(runner), expected)


def test_a_copy_can_be_saved_before_the_next_decode(runner: LlamaRunner) -> None:
    """With separate KV the library copies cells only in the next decode."""
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
def test_rejects_a_damaged_state_and_leaves_the_sequence_empty(
    runner: LlamaRunner, damage: Callable[[bytes], bytes]
) -> None:
    prefill(runner, 0, [1, 2, 3])
    prefill(runner, 1, [1, 2])
    assert not runner.seq_load(1, damage(runner.seq_save(0)), 3)
    prefill(runner, 1, [4, 5])


def test_rejects_a_state_of_another_model(runner: LlamaRunner, gguf_folder: Path) -> None:
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
def test_an_invalid_batch_raises_and_later_decodes_succeed(runner: LlamaRunner, entries: list[BatchEntry]) -> None:
    tokens = prompt_tokens(runner.vocab)
    with pytest.raises(InternalError):
        runner.decode(entries)
    assert len(generate(runner, tokens, 3)) == 3


def test_non_finite_logits_raise_an_error(gguf_folder: Path) -> None:
    with open_runner(gguf_file(gguf_folder, TinyModel(nan_weights=True))) as runner:
        prefill(runner, 0, [1, 2, 3])
        sampler = runner.sampler(GREEDY, [])
        with pytest.raises(InternalError, match="non-finite logits"):
            runner.sample(0, sampler)
        with pytest.raises(InternalError, match="non-finite logits"):
            runner.logprobs(0, 0, 1)


def test_logprobs_are_a_sorted_distribution(runner: LlamaRunner) -> None:
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
def test_best_tokens_are_those_with_the_highest_logits(n_vocab: int) -> None:
    logits = np.random.default_rng(n_vocab).permutation(n_vocab).astype(np.float32)
    for n in (1, 2, 20, 64):
        assert best_tokens(logits, n) == np.argsort(-logits)[:n].tolist()


def test_a_sliding_window_cannot_be_truncated_below_its_dropped_cells(swa_path: Path) -> None:
    with open_runner(swa_path, n_parallel=1, n_ctx=1024, n_batch=64, n_ubatch=64) as runner:
        tokens = (prompt_tokens(runner.vocab) * 80)[:600]
        for start in range(0, 600, 50):
            assert runner.decode([Entry(0, start, tokens[start : start + 50])])
        last = all_logprobs(runner)
        assert not runner.seq_remove(0, 100)  # positions 68 to 99, which the window needs, were dropped
        assert runner.seq_remove(0, 599)
        assert runner.decode([Entry(0, 599, tokens[599:])])
        assert same_vectors(all_logprobs(runner), last)
        assert runner.seq_remove(0, 0)
        prefill(runner, 0, tokens[:50])


def test_a_recurrent_state_can_be_copied_and_saved_but_not_truncated(recurrent_path: Path) -> None:
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
async def test_prompt_logprobs_are_those_of_single_token_decodes(gguf_folder: Path, model: TinyModel) -> None:
    """The request's prompt is cached, and its log probabilities take several steps."""
    path = gguf_file(gguf_folder, model)
    weights = load(path, flash_attn="off")
    with closing(weights.runner()) as runner:
        tokens = prompt_tokens(runner.vocab, TEXT)
        assert 1 < runner.info.n_extra_outputs < len(tokens)
        expected = []
        for at, (token, next_token) in enumerate(pairwise(tokens)):
            assert runner.decode([Entry(0, at, [token])])
            expected.append(runner.logprobs(0, next_token, 3))
    plain = Request("plain", tokens, GREEDY, max_tokens=2)
    scored = Request("scored", tokens, GREEDY, max_tokens=1, n_probs=3, want_logprobs=True, prompt_logprobs=True)
    async with engine_on(weights, EngineParams(check_integrity=True)) as engine:
        await run(engine, plain)
        replies = await run(engine, scored, scored)
    for reply in replies:
        events = [event for event in reply.events if isinstance(event, PromptLogprobs)]
        entries = [entry for event in events for entry in event.tokens if entry]
        assert [entry.id for entry in entries] == tokens[1:]
        found, wanted = (
            np.array([[each.logprob, *(top.logprob for top in each.top)] for each in some])
            for some in (entries, expected)
        )
        assert np.allclose(found, wanted, rtol=0, atol=LOGPROB_SPREAD)


def test_rejects_a_batch_with_more_outputs_than_the_context_has(gguf_folder: Path) -> None:
    """The library would abort."""
    with open_runner(gguf_file(gguf_folder, PLAIN), n_parallel=2) as runner:
        n = runner.info.n_extra_outputs
        tokens = [5] * (n + 1)
        assert runner.decode([Entry(0, 0, tokens, n_outputs=len(tokens)), Entry(1, 0, tokens)])
        assert runner.logprobs(n, 5, 1).top[0].logprob <= 0.0
        runner.seq_remove(0, 0)
        runner.seq_remove(1, 0)
        with pytest.raises(InternalError, match=f"{n + 3} outputs; at most {n + 2}"):
            runner.decode([Entry(0, 0, [5] * (n + 3), n_outputs=n + 3)])
