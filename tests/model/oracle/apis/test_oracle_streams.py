"""Streams, event by event, against llama-server's."""

import re
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, shape_differences
from tests.model.oracle.conftest import CHAT

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


def bare(event: dict[str, Any]) -> list[Any]:
    """Return an event's choices without log probabilities, whose last digits differ."""
    return [{name: value for name, value in choice.items() if name != "logprobs"} for choice in event["choices"]]


@pytest.mark.parametrize(
    "fields",
    [{}, {"timings_per_token": True}, {"logprobs": True, "top_logprobs": 2}, {"logprobs": True, **INCLUDE_USAGE}],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
def test_a_stream_is_the_same_event_by_event(pair: Pair, path: str, fields: dict[str, Any]) -> None:
    """Except the first delta of a chat. The usage of a completion has an event of its own only if asked for."""
    ours, theirs = pair.events(path, {**GREEDY, "prompt": "the quick brown", "messages": HELLO, **fields})
    if "stream_options" in fields:
        assert ours[-1]["choices"] == []
        assert ours[-1]["usage"] == theirs[-1]["usage"]
        if path != CHAT:  # llama-server puts it into the last event with a choice, asked or not
            *ours, end = ours
            del theirs[-1]["usage"]
            assert theirs[-1].pop("timings").keys() == end["timings"].keys()
    first = 1 if path == CHAT else 0
    if first:
        assert shape_differences(ours[0], theirs[0]) == {FIRST_CONTENT}
    assert [bare(event) for event in ours[first:]] == [bare(event) for event in theirs[first:]]
    for mine, other in zip(ours[first:], theirs[first:], strict=True):
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


@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
def test_each_event_is_one_http_chunk(pair: Pair, path: str) -> None:
    """Clients that read chunk by chunk without a parser exist (llama-server puts its first two deltas into one)."""
    body = {**GREEDY, "messages": HELLO, "prompt": "the dog", "stream": True}
    chunks = pair.ours.raw_chunks(path, body)
    assert [chunk.count(b"data: ") for chunk in chunks] == [1] * len(chunks)
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)
    assert chunks[-1] == b"data: [DONE]\n\n"
