"""The Responses API compared with llama-server, which lacks some of OpenAI's fields and events."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, shape_differences
from tests.support.real_server import RealServer

URL = "/v1/responses"
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 12, "logit_bias": ONLY_ASCII, "ignore_eos": True}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hmm"}]}
REPLY = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so", "annotations": []}]}
USER = {"role": "user", "content": "hello"}


def input_text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


INPUTS: list[dict[str, Any]] = [
    {"input": "hello"},
    {"input": "hello", "instructions": "be brief"},
    {"input": [{"role": "system", "content": "be brief"}, USER]},
    {"input": [{"role": "developer", "content": "be brief"}, {**USER, "type": "message"}]},
    {"input": [{"role": "user", "content": [input_text("one"), input_text("two")]}]},
    {"input": [USER, REPLY, USER]},
    {"input": [USER, REASONING, REPLY, USER]},
    {"input": [USER, REPLY]},
]


def case_id(body: Mapping[str, Any]) -> str:
    items = body["input"] if isinstance(body["input"], list) else [{"role": "text"}]
    return " ".join([item.get("role") or item["type"] for item in items] + sorted(set(body) - {"input"}))


@pytest.mark.parametrize("body", INPUTS, ids=case_id)
def test_token_counts_are_equal(pair: Pair, body: dict[str, Any]) -> None:
    ours, theirs = pair.post(f"{URL}/input_tokens", body)
    assert ours == theirs


def test_streams_of_tool_calls_have_llama_servers_events_in_its_order(demo: Pair) -> None:
    """Llamapool also sends OpenAI's event at the end of the arguments."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "name": "get_weather", "description": "Get the weather in a city", "parameters": city}
    body = {"input": "What is the weather in Paris?", "tools": [tool], "tool_choice": "required", "temperature": 0}
    ours, theirs = (streamed(server, body) for server in (demo.ours, demo.theirs))
    our_kinds, their_kinds = (list(dict.fromkeys(name for name, _ in events)) for events in (ours, theirs))
    assert [kind for kind in our_kinds if kind in their_kinds] == their_kinds
    assert set(our_kinds) - set(their_kinds) == {"response.function_call_arguments.done"}
    items = [event["item"] for events in (ours, theirs) for name, event in events if name.endswith("item.added")]
    assert shape_differences(*items) == set()


@pytest.mark.parametrize("body", [INPUTS[0], INPUTS[1], INPUTS[5], INPUTS[7]], ids=case_id)
def test_greedy_replies_have_the_same_text(pair: Pair, body: dict[str, Any]) -> None:
    ours, theirs = (text(reply) for reply in pair.post(URL, {**body, **GREEDY}))
    assert ours == theirs


def text(reply: Mapping[str, Any]) -> str:
    [message] = reply["output"]
    content: str = message["content"][0]["text"]
    return content


def test_a_reply_has_every_key_of_llama_server(pair: Pair) -> None:
    ours, theirs = pair.post(URL, {"input": "hello", **GREEDY})
    differences = shape_differences(ours, theirs)
    assert {name for name in differences if not name.startswith("+")} == set()
    assert {name for name in differences if "." in name} == {
        "+usage.output_tokens_details",
        "+usage.input_tokens_details.cache_write_tokens",
    }


def streamed(server: RealServer, body: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and data of each event."""
    reply = server.request("POST", URL, {**body, "stream": True})
    assert reply.status == 200, reply
    events = []
    for block in reply.body.decode().split("\n\n"):
        name, _, data = block.partition("\n")
        if name.startswith("event: "):
            events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def test_streams_have_llama_servers_events_with_all_keys(pair: Pair) -> None:
    body = {"input": "hello", **GREEDY}
    ours, theirs = (streamed(server, body) for server in (pair.ours, pair.theirs))
    *our_names, our_last = [name for name, _ in ours]
    *their_names, their_last = [name for name, _ in theirs]
    assert our_names == their_names
    # A response that reaches the token limit is incomplete at OpenAI, completed in llama-server.
    assert (our_last, their_last) == ("response.incomplete", "response.completed")
    for (name, our_event), (_, their_event) in zip(ours, theirs, strict=True):
        assert our_event["type"] == name
        missing = {path for path in shape_differences(our_event, their_event) if path.startswith("-")}
        assert missing == set(), name
    texts = ["".join(event.get("delta", "") for _, event in events) for events in (ours, theirs)]
    assert texts[0] == texts[1]
