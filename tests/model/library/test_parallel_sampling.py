"""Several sequences' tokens sampled on several cores are those that one after the other gives."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from server.engine.request import SamplingParams
from server.errors import InternalError
from server.llama.context.runner import LlamaRunner
from server.llama.sampling import candidates as parallel_sampling
from tests.model.native_fixtures import GREEDY, PLAIN, Entry, open_runner, prompt_tokens
from tests.support.ggufs import TinyModel, gguf_file

PARAMS = [
    replace(PLAIN, seed=1),
    GREEDY,
    SamplingParams(temperature=1.5, seed=2),
    replace(PLAIN, seed=3, repeat_penalty=1.3),
]


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LlamaRunner]:
    """A runner on whose machine three threads are quicker than one."""
    monkeypatch.setattr(parallel_sampling, "usable_cpus", lambda: 3)
    monkeypatch.setattr(parallel_sampling, "threads_for", lambda n_chains, chain_s, handing_s, n_cpus: min(3, n_cpus))
    with open_runner(gguf_file(tmp_path, TinyModel())) as runner:
        yield runner


def _decoded(runner: LlamaRunner) -> list[list[int]]:
    tokens = prompt_tokens(runner.vocab)
    prompts = [tokens[: 3 + i] for i in range(4)]
    for seq in range(4):
        runner.seq_remove(seq, 0)
    assert runner.decode([Entry(seq, 0, prompt) for seq, prompt in enumerate(prompts)])
    return prompts


def test_the_tokens_are_those_of_one_after_the_other(large: LlamaRunner) -> None:
    prompts = _decoded(large)
    alone = [large.sampler(p, prompt) for p, prompt in zip(PARAMS, prompts, strict=True)]
    together = [large.sampler(p, prompt) for p, prompt in zip(PARAMS, prompts, strict=True)]
    first = [large.sampler(PLAIN, prompts[0]) for _ in range(2)]
    assert len(large.sample_together([(0, first[0]), (2, first[1])])) == 2  # fewer than the threads that there may be
    for _ in range(8):  # of one decode: the draws go on, and what was accepted is remembered
        wanted = [large.sample(output, sampler) for output, sampler in enumerate(alone)]
        drawn = large.sample_together(list(enumerate(together)))
        assert 1 not in drawn  # the highest logit, which needs no chain
        assert [drawn.get(o, large.sample(o, together[o]) if o not in drawn else -1) for o in range(4)] == wanted


@pytest.mark.parametrize("bad", [{1}, {0, 1, 2, 3}])
def test_logits_that_are_no_numbers_fail_their_own_sequence(large: LlamaRunner, bad: set[int]) -> None:
    prompts = _decoded(large)
    samplers = [large.sampler(PLAIN, prompt) for prompt in prompts]
    for output in bad:
        view = large._view(output)
        view.flags.writeable = True
        view[5] = np.nan
    drawn = large.sample_together(list(enumerate(samplers)))
    assert {output for output, token in drawn.items() if isinstance(token, InternalError)} == bad
    assert set(drawn) == {0, 1, 2, 3}
