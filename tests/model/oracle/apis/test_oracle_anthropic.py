"""Anthropic's Messages API compared with llama-server: replies, events and token counts.

They use the demo model, whose template supports tools.
"""

import json
from itertools import groupby
from typing import Any

import pytest

from tests.model.oracle.comparison import Pair, shape_differences

URL = "/v1/messages"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = [{"role": "user", "content": [{"type": "text", "text": "What is the weather in Paris?"}]}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": "get_weather", "description": "Get the weather in a city", "input_schema": CITY}]
CALL = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris"}}
THINKING = {"type": "thinking", "thinking": "A tool knows it.", "signature": ""}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "sunny"}]}
CALLED = [*WEATHER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT]}]
COUNTS = ("cache_creation_input_tokens", "cache_read_input_tokens", "input_tokens")
"""Usage of the prompt. Anthropic's streams repeat it in the last event, where current clients read it."""
ENABLE_THINKING = {"chat_template_kwargs": {"enable_thinking": True}}
"""Not Anthropic's ``thinking``, which enables reasoning in Llamapool but not in llama-server."""


def body(messages: object = FRANCE, **fields: object) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 60, "temperature": 0, "messages": messages, **fields}


def order(events: list[Any]) -> list[tuple[str, Any, str]]:
    """Return type, block index and delta type of each event; once for successive equal ones."""
    steps = ((event["type"], event.get("index"), event.get("delta", {}).get("type", "")) for event in events)
    return [step for step, _ in groupby(steps)]


def test_messages_are_equal_except_for_their_id(demo: Pair) -> None:
    ours, theirs = demo.post(URL, body(system="Answer briefly."))
    assert shape_differences(ours, theirs) == {"+usage.cache_creation_input_tokens"}
    assert ours["usage"].pop("cache_creation_input_tokens") == 0
    for reply in (ours, theirs):
        assert reply.pop("id")
        counts = reply["usage"]
        counts["input_tokens"] += counts.pop("cache_read_input_tokens")
    assert ours == theirs


def test_streams_have_the_same_events(demo: Pair) -> None:
    ours, theirs = demo.native_events(URL, body())
    assert order(ours) == order(theirs)
    added = {
        "message_start": {"+message.usage.cache_creation_input_tokens"},
        "message_delta": {f"+usage.{name}" for name in COUNTS},
    }
    for mine, other in zip(ours, theirs, strict=True):
        assert shape_differences(mine, other) == added.get(mine["type"], set())


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}], ids=str)
def test_tool_calls_have_the_same_name_and_arguments(demo: Pair, choice: object) -> None:
    ours, theirs = demo.post(URL, body(WEATHER, tools=TOOLS, tool_choice=choice, max_tokens=200))
    assert shape_differences(ours, theirs) == {"+usage.cache_creation_input_tokens"}
    assert ours["stop_reason"] == theirs["stop_reason"] == "tool_use"
    calls = [[(block["name"], sorted(block["input"])) for block in reply["content"]] for reply in (ours, theirs)]
    assert calls[0] == calls[1] == [("get_weather", ["city"])]


def test_streams_of_tool_calls_have_the_same_events(demo: Pair) -> None:
    ours, theirs = demo.native_events(URL, body(WEATHER, tools=TOOLS, tool_choice={"type": "any"}, max_tokens=200))
    assert order(ours) == order(theirs)
    assert shape_differences(ours[1], theirs[1]) == {"+content_block.input"}
    for events in (ours, theirs):
        deltas = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
        assert list(json.loads("".join(deltas))) == ["city"]


def test_streams_of_reasoning_have_the_same_events_in_separate_blocks(reasoning: Pair) -> None:
    ours, theirs = reasoning.native_events(URL, body())
    assert shape_differences(ours[1], theirs[1]) == {"+content_block.signature"}
    assert sorted(order(ours), key=str) == sorted(order(theirs), key=str)
    assert order(ours)[1:5] == [
        ("content_block_start", 0, ""),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, ""),
    ]
    whole = reasoning.post(URL, body())
    assert shape_differences(*whole) == {"+usage.cache_creation_input_tokens", "+usage.output_tokens_details"}
    assert [block["type"] for block in whole[0]["content"]] == [block["type"] for block in whole[1]["content"]]


def test_a_stop_sequence_gives_the_same_content_and_anthropics_stop_reason(demo: Pair) -> None:
    text = demo.ours.post(URL, body())["content"][0]["text"]
    ours, theirs = demo.post(URL, body(stop_sequences=[text[4:8]]))
    assert ours["content"] == theirs["content"]
    assert ours["stop_sequence"] == theirs["stop_sequence"] == text[4:8]
    assert (ours["stop_reason"], theirs["stop_reason"]) == ("stop_sequence", "end_turn")


@pytest.mark.parametrize(
    "request_body",
    [
        {"messages": FRANCE},
        {"messages": FRANCE, "system": "Be brief."},
        {"messages": FRANCE, "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"messages": WEATHER, "tools": TOOLS},
        {"messages": WEATHER, "tools": TOOLS, "tool_choice": {"type": "none"}},
        {"messages": CALLED, "tools": TOOLS},
        {"messages": [*CALLED, {"role": "assistant", "content": "It is"}]},
        {"messages": [*WEATHER, {"role": "assistant", "content": [THINKING, CALL]}, CALLED[-1]], "tools": TOOLS},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
        {"messages": FRANCE, **ENABLE_THINKING},
        {
            "messages": FRANCE,
            "system": "x-anthropic-billing-header: cc_version=2.1; cch=a5145;You are a coder.",
        },
    ],
)
def test_token_counts_are_equal(demo: Pair, request_body: dict[str, Any]) -> None:
    ours, theirs = demo.post(URL + "/count_tokens", request_body)
    assert ours == theirs
