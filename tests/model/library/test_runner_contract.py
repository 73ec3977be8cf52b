"""The runner protocol (`server.engine.runner_api`): what the engine relies on.

The contract runs against llama.cpp's runner and against the scripted one, which replaces it in the tests of the engine
and of HTTP and so must keep the same promises.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tests.model.native_fixtures import GREEDY, Entry, generate, prompt_tokens
from tests.support.fakes import FakeRunner

RunnerOf = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(params=["llama.cpp", "scripted"])
def open_(request: pytest.FixtureRequest) -> RunnerOf:
    """Open a runner of four sequences: ``unified`` cells or not, of ``n_ctx`` tokens in all."""

    @contextmanager
    def native(*, unified: bool = False, n_ctx: int = 1024) -> Iterator[Any]:
        with request.getfixturevalue("runner_of")(kv_unified=unified, n_ctx=n_ctx, n_batch=512) as runner:
            yield runner

    @contextmanager
    def scripted(*, unified: bool = False, n_ctx: int = 1024) -> Iterator[Any]:
        n_seq_ctx = n_ctx if unified else n_ctx // 4
        yield FakeRunner(n_ctx_seq=n_seq_ctx, n_cells=n_ctx, n_batch=512, unified=unified)

    return native if request.param == "llama.cpp" else scripted


both_layouts = pytest.mark.parametrize("unified", [False, True])


def first_token(runner: Any, tokens: list[int]) -> int:
    """Return the greedy token of output 0 of the last decode."""
    token: int = runner.sample(0, runner.sampler(GREEDY, tokens))
    return token


@both_layouts
def test_the_same_prompt_gives_the_same_tokens_in_any_sequence(open_: RunnerOf, unified: bool) -> None:
    with open_(unified=unified) as runner:
        tokens = prompt_tokens(runner.vocab)
        assert generate(runner, tokens, 20) == generate(runner, tokens, 20) == generate(runner, tokens, 20, seq=3)


def test_a_prompt_in_chunks_gives_the_same_next_token(open_: RunnerOf) -> None:
    with open_() as runner:
        tokens = prompt_tokens(runner.vocab)
        [expected] = generate(runner, tokens, 1)
        for start in range(0, len(tokens), 3):
            assert runner.decode([Entry(1, start, tokens[start : start + 3])])
        assert first_token(runner, tokens) == expected


def test_sequences_of_one_batch_do_not_see_each_other(open_: RunnerOf) -> None:
    with open_() as runner:
        tokens = prompt_tokens(runner.vocab)
        prompts = [tokens, *(tokens[: 3 + i] for i in range(3))]
        expected = [generate(runner, prompt, 1, seq=seq)[0] for seq, prompt in enumerate(prompts)]
        for seq in range(4):
            assert runner.seq_remove(seq, 0)
        assert runner.decode([Entry(seq, 0, prompt) for seq, prompt in enumerate(prompts)])
        found = [runner.sample(seq, runner.sampler(GREEDY, prompt)) for seq, prompt in enumerate(prompts)]
        assert found == expected


@both_layouts
def test_a_copied_sequence_continues_like_a_fresh_prefill(open_: RunnerOf, unified: bool) -> None:
    with open_(unified=unified) as runner:
        tokens = prompt_tokens(runner.vocab)
        [expected] = generate(runner, tokens, 1)
        assert runner.seq_remove(0, len(tokens) - 2)
        runner.seq_copy(0, 2)
        assert runner.seq_remove(0, 0)
        assert runner.decode([Entry(2, len(tokens) - 2, tokens[-2:])])
        assert first_token(runner, tokens) == expected


def test_a_removed_tail_can_be_written_again(open_: RunnerOf) -> None:
    with open_() as runner:
        tokens = prompt_tokens(runner.vocab)
        expected = generate(runner, tokens, 8)
        assert runner.seq_remove(0, len(tokens) - 3)
        assert runner.decode([Entry(0, len(tokens) - 3, tokens[-3:])])
        assert first_token(runner, tokens) == expected[0]
        assert runner.seq_remove(0, len(tokens))  # nothing is past the end
        assert runner.decode([Entry(0, len(tokens), expected[:1])])
        assert first_token(runner, tokens) == expected[1]


@both_layouts
def test_a_saved_sequence_continues_in_another_one(open_: RunnerOf, unified: bool) -> None:
    with open_(unified=unified) as runner:
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
def test_a_full_cache_says_so_and_changes_nothing(open_: RunnerOf, unified: bool) -> None:
    with open_(unified=unified, n_ctx=1024) as runner:
        room = min(runner.info.n_ctx_seq, runner.info.n_cells)
        for start in range(0, room - 4, 252):
            assert runner.decode([Entry(0, start, [97] * min(252, room - 4 - start))])
        assert runner.decode([Entry(0, room - 4, [97] * 5)]) is False
        assert runner.decode([Entry(0, room - 4, [97] * 4)])
        if unified:
            assert runner.decode([Entry(1, 0, [97])]) is False
            assert runner.seq_remove(0, 10)
        assert runner.decode([Entry(1, 0, [97])])
