"""The same request to Llamapool and to llama-server: the same tokens, texts and counts come back."""

from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, steady

CHATS = [
    [{"role": "user", "content": "hello"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is the forest?"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three 日本"},
    ],
    [{"role": "user", "content": [{"type": "text", "text": "parts "}, {"type": "text", "text": "of text"}]}],
]
GREEDY = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "logit_bias": ONLY_ASCII}


@pytest.mark.parametrize("messages", CHATS)
def test_greedy_chats_are_the_same(pair: Pair, messages: list[dict[str, Any]]) -> None:
    ours, theirs = pair.post("/v1/chat/completions", {**GREEDY, "messages": messages, "cache_prompt": False})
    assert steady(ours) == steady(theirs)


def test_a_continued_message_is_whole_in_a_reply_and_new_in_a_stream(pair: Pair) -> None:
    messages = [{"role": "user", "content": "go on"}, {"role": "assistant", "content": "the animals of"}]
    ours, theirs = pair.post("/v1/chat/completions", {**GREEDY, "messages": messages})
    assert ours["choices"] == theirs["choices"]
    mine, other = pair.events("/v1/chat/completions", {**GREEDY, "messages": messages})
    assert [event["choices"] for event in mine[1:]] == [event["choices"] for event in other[1:]]
