"""The contract of `server.engine.runner_api.Runner`, on which the engine relies.

It runs against llama.cpp's runner and against `FakeRunner`, which replaces it in tests of the engine and of HTTP.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tests.model.native_fixtures import GREEDY, Entry, generate, prompt_tokens
from tests.support.fakes import FakeRunner

OpenRunner = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(params=["llama.cpp", "fake"])
def open_runner(request: pytest.FixtureRequest) -> OpenRunner:
    """``open_runner(unified=False, n_ctx=1024)``: a runner with four sequences and `n_ctx` cells in total."""

    @contextmanager
    def native(*, unified: bool = False, n_ctx: int = 1024) -> Iterator[Any]:
        with request.getfixturevalue("tiny_runner")(kv_unified=unified, n_ctx=n_ctx, n_batch=512) as runner:
            yield runner

    @contextmanager
    def fake(*, unified: bool = False, n_ctx: int = 1024) -> Iterator[Any]:
        n_seq_ctx = n_ctx if unified else n_ctx // 4
        yield FakeRunner(n_ctx_seq=n_seq_ctx, n_cells=n_ctx, n_batch=512, unified=unified)

    return native if request.param == "llama.cpp" else fake


both_layouts = pytest.mark.parametrize("unified", [False, True])


def first_token(runner: Any, tokens: list[int]) -> int:
    """Return the greedy token of output 0."""
    token: int = runner.sample(0, runner.sampler(GREEDY, tokens))
    return token


@both_layouts
def test_the_same_prompt_gives_the_same_tokens_in_any_sequence(open_runner: OpenRunner, unified: bool) -> None:
    with open_runner(unified=unified) as runner:
        tokens = prompt_tokens(runner.vocab)
        assert generate(runner, tokens, 20) == generate(runner, tokens, 20) == generate(runner, tokens, 20, seq=3)


def test_a_chunked_prefill_gives_the_same_next_token(open_runner: OpenRunner) -> None:
    with open_runner() as runner:
        tokens = prompt_tokens(runner.vocab)
        [expected] = generate(runner, tokens, 1)
        for start in range(0, len(tokens), 3):
            assert runner.decode([Entry(1, start, tokens[start : start + 3])])
        assert first_token(runner, tokens) == expected


def test_sequences_of_one_batch_do_not_attend_to_each_other(open_runner: OpenRunner) -> None:
    with open_runner() as runner:
        tokens = prompt_tokens(runner.vocab)
        prompts = [tokens, *(tokens[: 3 + i] for i in range(3))]
        expected = [generate(runner, prompt, 1, seq=seq)[0] for seq, prompt in enumerate(prompts)]
        for seq in range(4):
            assert runner.seq_remove(seq, 0)
        assert runner.decode([Entry(seq, 0, prompt) for seq, prompt in enumerate(prompts)])
        found = [runner.sample(seq, runner.sampler(GREEDY, prompt)) for seq, prompt in enumerate(prompts)]
        assert found == expected


@both_layouts
def test_a_copied_sequence_continues_like_a_fresh_prefill(open_runner: OpenRunner, unified: bool) -> None:
    with open_runner(unified=unified) as runner:
        tokens = prompt_tokens(runner.vocab)
        [expected] = generate(runner, tokens, 1)
        assert runner.seq_remove(0, len(tokens) - 2)
        runner.seq_copy(0, 2)
        assert runner.seq_remove(0, 0)
        assert runner.decode([Entry(2, len(tokens) - 2, tokens[-2:])])
        assert first_token(runner, tokens) == expected


def test_truncated_tokens_can_be_decoded_again(open_runner: OpenRunner) -> None:
    with open_runner() as runner:
        tokens = prompt_tokens(runner.vocab)
        expected = generate(runner, tokens, 8)
        assert runner.seq_remove(0, len(tokens) - 3)
        assert runner.decode([Entry(0, len(tokens) - 3, tokens[-3:])])
        assert first_token(runner, tokens) == expected[0]
        assert runner.seq_remove(0, len(tokens))  # removes no token
        assert runner.decode([Entry(0, len(tokens), expected[:1])])
        assert first_token(runner, tokens) == expected[1]


@both_layouts
def test_a_saved_sequence_continues_after_a_load_to_another_one(open_runner: OpenRunner, unified: bool) -> None:
    with open_runner(unified=unified) as runner:
        tokens = prompt_tokens(runner.vocab)
        [expected] = generate(runner, tokens, 1, seq=1)
        assert runner.seq_remove(1, len(tokens) - 1)
        state = runner.seq_save(1)
        assert runner.seq_size(1) == len(state)
        assert runner.seq_remove(1, 0)
        assert runner.seq_load(3, state, len(tokens) - 1)
        assert runner.decode([Entry(3, len(tokens) - 1, tokens[-1:])])
        assert first_token(runner, tokens) == expected


@both_layouts
def test_a_decode_beyond_the_cells_returns_false_and_changes_nothing(open_runner: OpenRunner, unified: bool) -> None:
    with open_runner(unified=unified, n_ctx=1024) as runner:
        n_cells = min(runner.info.n_ctx_seq, runner.info.n_cells)
        for start in range(0, n_cells - 4, 252):
            assert runner.decode([Entry(0, start, [97] * min(252, n_cells - 4 - start))])
        assert runner.decode([Entry(0, n_cells - 4, [97] * 5)]) is False
        assert runner.decode([Entry(0, n_cells - 4, [97] * 4)])
        if unified:
            assert runner.decode([Entry(1, 0, [97])]) is False
            assert runner.seq_remove(0, 10)
        assert runner.decode([Entry(1, 0, [97])])
