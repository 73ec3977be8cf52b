"""Streams, event by event, against llama-server's."""

import re
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, shape_differences

GREEDY = {
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
    "cache_prompt": False,
    "logit_bias": ONLY_ASCII,
}
INCLUDE_USAGE = {"stream_options": {"include_usage": True}}
HELLO = [{"role": "user", "content": "hello"}]
FIRST_CONTENT = "choices.0.delta.content: string/null"
"""OpenAI's first chat delta has ``"content": ""``; llama-server's has null, which clients that require a string
do not take."""


def choices(event: dict[str, Any]) -> Any:
    return event["choices"]


def progress(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["prompt_progress"] for event in events if "prompt_progress" in event]


def test_a_completion_stream_is_the_same_event_by_event(pair: Pair) -> None:
    ours, theirs = pair.events("/v1/completions", {**GREEDY, "prompt": "the quick brown"})
    assert [choices(event) for event in ours] == [choices(event) for event in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert shape_differences(mine, other) == set()


def test_a_chat_stream_differs_only_in_the_first_delta(pair: Pair) -> None:
    ours, theirs = pair.events("/v1/chat/completions", {**GREEDY, "messages": HELLO})
    assert shape_differences(ours[0], theirs[0]) == {FIRST_CONTENT}
    assert [choices(event) for event in ours[1:]] == [choices(event) for event in theirs[1:]]
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert shape_differences(mine, other) == set()


def test_a_chat_stream_sends_usage_in_an_event_of_its_own(pair: Pair) -> None:
    ours, theirs = pair.events("/v1/chat/completions", {**GREEDY, "messages": HELLO, **INCLUDE_USAGE})
    assert len(ours) == len(theirs)
    assert shape_differences(ours[-1], theirs[-1]) == set()
    assert ours[-1]["usage"] == theirs[-1]["usage"]
    assert shape_differences(ours[-2], theirs[-2]) == set()


def test_a_completion_stream_does_so_too_when_asked(pair: Pair) -> None:
    """As OpenAI's; llama-server puts it into the last event with a choice, asked or not."""
    body = {**GREEDY, "prompt": "the dog"}
    asked, _ = pair.events("/v1/completions", {**body, **INCLUDE_USAGE})
    unasked, theirs = pair.events("/v1/completions", body)
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"] == unasked[-1]["usage"] == theirs[-1]["usage"]
    assert len(asked) == len(unasked) + 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_timings_per_token_have_the_same_shape(pair: Pair, path: str) -> None:
    body = {**GREEDY, "prompt": "the dog", "messages": HELLO, "timings_per_token": True}
    ours, theirs = pair.events(path, body)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert shape_differences(mine, other) == set()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_prompt_progress_counts_the_same(pair: Pair, path: str) -> None:
    """In chat, llama-server repeats the role with every step; OpenAI's streams name it once."""
    body = {**GREEDY, "prompt": "the dog " * 20, "messages": HELLO, "return_progress": True}
    mine, other = (progress(events) for events in pair.events(path, body))
    assert shape_differences(mine, other) == set()
    assert [(step["total"], step["processed"]) for step in mine] == [
        (step["total"], step["processed"]) for step in other
    ]


def test_logprobs_are_streamed_with_their_text(pair: Pair) -> None:
    body = {**GREEDY, "messages": HELLO, "logprobs": True, "top_logprobs": 2}
    ours, theirs = pair.events("/v1/chat/completions", body)
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert shape_differences(mine, other) == set()


def test_bytes_that_are_no_text_are_streamed_as_replacement_characters(pair: Pair) -> None:
    """As many of them as the JSON library likes; and Llamapool's stream ends with the same text as its reply."""
    body = {**GREEDY, "prompt": "the quick brown", "max_tokens": 40, "logit_bias": []}
    ours, theirs = (
        "".join(event["choices"][0]["text"] for event in events) for events in pair.events("/v1/completions", body)
    )
    assert "\ufffd" in ours
    assert re.sub("\ufffd+", "", ours) == re.sub("\ufffd+", "", theirs)
    assert pair.ours.post("/v1/completions", body)["choices"][0]["text"] == ours


@pytest.mark.parametrize("stop", [["e"], ["he", "qu"], ["never said"], ["t", "th"]], ids=str)
def test_stop_strings_cut_the_stream_at_the_same_place(pair: Pair, stop: list[str]) -> None:
    body = {**GREEDY, "prompt": "the quick brown", "max_tokens": 60, "stop": stop}
    ours, theirs = pair.events("/v1/completions", body)
    texts = ["".join(event["choices"][0]["text"] for event in events) for events in (ours, theirs)]
    assert texts[0] == texts[1]
    assert ours[-1]["choices"][0]["finish_reason"] == theirs[-1]["choices"][0]["finish_reason"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_each_event_is_one_http_chunk(pair: Pair, path: str) -> None:
    """Clients that read chunk by chunk without a parser exist (llama-server puts its first two deltas into one)."""
    body = {**GREEDY, "messages": HELLO, "prompt": "the dog", "stream": True}
    chunks = pair.ours.raw_chunks(path, body)
    assert [chunk.count(b"data: ") for chunk in chunks] == [1] * len(chunks)
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)
    assert chunks[-1] == b"data: [DONE]\n\n"
