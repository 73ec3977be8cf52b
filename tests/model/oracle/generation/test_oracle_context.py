"""Contexts that are shifted, and cached runs that are reused at other positions, beside the real llama-server."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair
from tests.model.oracle.conftest import start_pair
from tests.support.ggufs import TinyModel, gguf_file

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "logit_bias": ONLY_ASCII, "return_tokens": True}
N_CTX = 256  # llama.cpp's smallest


@pytest.fixture(scope="module")
def shifting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One slot of 256 tokens each, with context shift."""
    model = gguf_file(tmp_path_factory.mktemp("gguf"), TinyModel())
    with ExitStack() as stack:
        yield start_pair(
            stack, model, n_ctx=N_CTX, n_parallel=1, flags=("--context-shift",), params={"ctx_shift": True}
        )


@pytest.mark.parametrize("options", [{}, {"n_keep": 8}, {"n_keep": -1}, {"n_keep": 4, "n_discard": 20}])
def test_a_full_context_goes_on_with_the_same_tokens(shifting: Pair, options: dict[str, Any]) -> None:
    body = {"prompt": "once upon a time there was", "n_predict": 400, "cache_prompt": False, **GREEDY, **options}
    ours, theirs = shifting.post("/completion", body)
    assert ours["tokens"] == theirs["tokens"]
    for name in ("truncated", "tokens_predicted", "stop_type", "tokens_cached"):
        assert ours[name] == theirs[name], name
    assert ours["truncated"]


@pytest.mark.parametrize("n_cache_reuse", [0, 16])
def test_runs_that_moved_are_reused_as_the_reference_does(shifting: Pair, n_cache_reuse: int) -> None:
    words = [f"{'ab'[n_cache_reuse > 0]}word{i} " for i in range(20)]  # not those of the other case: both keep prompts
    replies = []
    for prompt in (words, [*words[:3], *words[9:]]):
        body = {"prompt": "".join(prompt), "n_predict": 8, "n_cache_reuse": n_cache_reuse, **GREEDY}
        replies.append(shifting.post("/completion", body))
    ours, theirs = replies[1]
    assert ours["timings"]["cache_n"] == theirs["timings"]["cache_n"]
    assert (ours["timings"]["cache_n"] > 60) == bool(n_cache_reuse)
    assert ours["tokens"] == theirs["tokens"]
