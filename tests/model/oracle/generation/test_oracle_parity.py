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


def token_ids(choice: dict[str, Any]) -> list[int]:
    return [entry["id"] for entry in choice["logprobs"]["content"]]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_completions_have_the_same_tokens(pair: Pair, prompt: str) -> None:
    ours, theirs = pair.post("/v1/completions", {**GREEDY, "prompt": prompt, "logprobs": 1, "cache_prompt": False})
    assert token_ids(ours["choices"][0]) == token_ids(theirs["choices"][0])
    assert ours["choices"][0]["text"] == theirs["choices"][0]["text"]
    assert ours["usage"] == theirs["usage"]
    assert ours["choices"][0]["finish_reason"] == theirs["choices"][0]["finish_reason"]


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


@pytest.mark.parametrize(
    "fields",
    [{"prompt": [[5, 6, 7], [300, 301]]}, {"prompt": ["the fox", "the dog"]}, {"prompt": "the fox", "n": 2}],
    ids=str,
)
def test_several_choices_are_the_same_and_all_are_counted(pair: Pair, fields: dict[str, Any]) -> None:
    """llama-server's ``usage`` counts the first choice only."""
    ours, theirs = pair.post("/v1/completions", {**GREEDY, "cache_prompt": False, **fields})
    by_index = [sorted(reply["choices"], key=lambda choice: choice["index"]) for reply in (ours, theirs)]
    assert by_index[0] == by_index[1]
    assert ours["usage"]["completion_tokens"] == 2 * theirs["usage"]["completion_tokens"]


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
