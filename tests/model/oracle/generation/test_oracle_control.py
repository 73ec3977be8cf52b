"""Thoughts that are ended from outside, by both servers."""

import json
from http.client import HTTPResponse
from typing import Any

from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import CHAT

N_CTX = 4096  # of a slot: endless thoughts last for seconds, and are ended meanwhile


def chat(thinking: Pair, **more: Any) -> dict[str, Any]:
    """A chat whose model is kept from closing its thoughts."""
    (closing,) = thinking.ours.post("/tokenize", {"content": "</think>"})["tokens"]
    return {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "ignore_eos": True,
        "logit_bias": [[closing, -100]],
        "temperature": 0,
        "max_tokens": N_CTX - 100,
        **more,
    }


def delta(stream: HTTPResponse) -> tuple[str, dict[str, Any]]:
    """The id and the delta of the next event, which must not be the last."""
    while not (line := stream.readline()).startswith(b"data: {"):
        assert line.strip() != b"data: [DONE]", "the thoughts were never ended"
    event = json.loads(line.removeprefix(b"data: "))
    return event["id"], event["choices"][0]["delta"]


def test_thoughts_are_ended(thinking: Pair) -> None:
    for server in (thinking.ours, thinking.theirs):
        with server.open_stream(CHAT, chat(thinking, reasoning_control=True)) as stream:
            completion, shown = delta(stream)
            while not shown.get("reasoning_content"):
                completion, shown = delta(stream)
            control = {"id": completion, "action": "reasoning_end"}
            assert server.post(CHAT + "/control", control) == {"success": True}
            while not shown.get("content"):
                _, shown = delta(stream)
                assert "</think>" not in str(shown)


def test_a_chat_that_did_not_ask_for_control_cannot_be_controlled(thinking: Pair) -> None:
    replies = []
    for server in (thinking.ours, thinking.theirs):
        with server.open_stream(CHAT, chat(thinking)) as stream:
            completion, _ = delta(stream)
            replies.append(server.post(CHAT + "/control", {"id": completion, "action": "reasoning_end"}))
    assert replies[0] == replies[1]
    assert replies[0]["success"] is False
