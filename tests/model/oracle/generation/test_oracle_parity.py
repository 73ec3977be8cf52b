"""The same request to Llamapool and to llama-server: the same tokens, texts and counts come back."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, steady
from tests.support.real_server import RealServer

PROMPTS = [
    "the quick brown fox",
    "hello world this is a test of the server",
    "0123456789",
    "x",
    "naïve café — 日本語 🙂",
    "line one\nline two\n\n  indented",
    "the " * 200,
]
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


def test_eight_streams_at_once_say_what_each_says_alone(pair: Pair) -> None:
    bodies = [{**GREEDY, "prompt": f"stream {i}: " + PROMPTS[i % len(PROMPTS)]} for i in range(8)]

    def text(server: RealServer, body: dict[str, Any]) -> str:
        *events, done = server.events("/v1/completions", {**body, "stream": True, "cache_prompt": False})
        assert done == "[DONE]"
        return "".join(json.loads(event)["choices"][0]["text"] for event in events)

    alone = [text(pair.ours, body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as together:
        assert list(together.map(lambda body: text(pair.ours, body), bodies)) == alone
    assert alone == [text(pair.theirs, body) for body in bodies]
