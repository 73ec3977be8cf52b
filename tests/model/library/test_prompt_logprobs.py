"""Log probabilities of a prompt's tokens on real files: those of the library's own logits, at every position."""

import asyncio
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.request import PromptLogprobs, Request
from server.errors import InternalError
from tests.model.native_fixtures import GREEDY, Entry, load, open_runner, prompt_tokens
from tests.support.closeness import LOGPROB_SPREAD
from tests.support.ggufs import PLAIN, RECURRENT, SLIDING_WINDOW, TinyModel, gguf_file
from tests.unit.engine.builders import run

TEXT = "the quick brown fox jumps over the lazy dog and then the other animals of the forest " * 8


@pytest.mark.parametrize("model", [PLAIN, RECURRENT, SLIDING_WINDOW], ids=lambda m: m.arch)
async def test_each_is_that_of_the_logits_before_it(gguf_folder: Path, model: TinyModel) -> None:
    """Read one token at a time, and as a request whose prompt is in the cache and goes through in several steps."""
    path = gguf_file(gguf_folder, model)
    weights = load(path, flash_attn="off")
    runner = weights.runner()
    tokens = prompt_tokens(runner.vocab, TEXT)
    n_outputs = runner.info.n_more_outputs
    assert 1 < n_outputs < len(tokens)
    alone = []
    for at, (token, following) in enumerate(pairwise(tokens)):
        assert runner.decode([Entry(0, at, [token])])
        alone.append(runner.logprobs(0, following, 3))
    runner.seq_remove(0, 0)
    engine = Engine([runner], EngineParams(check_integrity=True), asyncio.get_running_loop())
    try:
        plain = Request("plain", tokens, GREEDY, max_tokens=2)
        scored = Request("scored", tokens, GREEDY, max_tokens=1, n_probs=3, want_logprobs=True, prompt_logprobs=True)
        await run(engine, plain)
        first, second = await run(engine, scored, scored)
    finally:
        await engine.close()
    weights.close()
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
