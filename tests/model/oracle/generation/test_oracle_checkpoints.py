"""Conversations on models whose memory can't be cut: the same replies as llama-server's, and no more computed."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair
from tests.model.oracle.conftest import start_pair
from tests.support.ggufs import MODELS, gguf_file

SYSTEM = "the quick brown fox jumps over the lazy dog and then the other animals of the forest come together " * 6
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "logit_bias": ONLY_ASCII}


@pytest.fixture(scope="module", params=["hybrid", "sliding-window"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers with two slots; each conversation keeps to one of them."""
    model = gguf_file(tmp_path_factory.mktemp("gguf"), MODELS[request.param])
    with ExitStack() as stack:
        yield start_pair(stack, model, n_ctx=8192, n_parallel=2, flags=("-ub", 128), params={"n_ubatch": 128})


def chat(pair: Pair, messages: list[dict[str, str]]) -> tuple[str, list[int]]:
    """The reply, which must be the same, and the reused tokens: ours, theirs."""
    ours, theirs = pair.post("/v1/chat/completions", {**GREEDY, "messages": messages})
    text: Any = ours["choices"][0]["message"]["content"]
    assert text == theirs["choices"][0]["message"]["content"]
    return text, [reply["timings"]["cache_n"] for reply in (ours, theirs)]


def test_a_conversation_whose_replies_are_rendered_anew(kept: Pair) -> None:
    """As with templates that drop thoughts: what follows the prompt is another text in the next turn."""
    messages = [{"role": "system", "content": SYSTEM}]
    cached = []
    for turn in range(5):
        messages.append({"role": "user", "content": f"question {turn}: " + "what comes together in the forest? " * 3})
        reply, counts = chat(kept, messages)
        cached.append(counts)
        messages.append({"role": "assistant", "content": "in short: " + reply[:5]})
    ours, theirs = (sum(column) for column in zip(*cached[1:], strict=True))
    assert ours >= 0.97 * theirs > 0  # we go back to the turn's end, llama-server to four tokens before the prompt's
    assert min(counts[0] for counts in cached[1:]) > 100
