"""The default model's own template, with tools and reasoning, against llama-server's reading of it.

Only what does not depend on the weights is compared: the model is trained again from time to time.
"""

import json
from typing import Any

import pytest

from tests.model.oracle.comparison import Pair

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
CALLED = [
    *ASK,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "sunny"},
]
THOUGHT = [
    {"role": "system", "content": "Be exact."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "<think>\\neasy\\n</think>\\n\\n4"},
    {"role": "user", "content": "and 3 + 3?"},
]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": ASK},
        {"messages": ASK, "tools": TOOLS},
        {"messages": CALLED, "tools": TOOLS},
        {"messages": CALLED},
        {"messages": THOUGHT},
        {"messages": THOUGHT, "chat_template_kwargs": {"enable_thinking": True}},
        {"messages": THOUGHT, "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [*ASK, {"role": "assistant", "content": "It is"}]},
        {"messages": ASK, "add_generation_prompt": False},
    ],
    ids=lambda body: ",".join([*(body["messages"][-1]["content"] or "").split(), *list(body)[1:]]),
)
def test_the_template_renders_the_same(demo: Pair, body: dict[str, Any]) -> None:
    ours, theirs = demo.post("/apply-template", body)
    assert ours == theirs


def test_a_required_tool_is_called_the_same_way(demo: Pair) -> None:
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "temperature": 0, "max_tokens": 200}
    calls = []
    for reply in demo.post("/v1/chat/completions", body):
        choice = reply["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call.pop("id")
        call["function"]["arguments"] = sorted(json.loads(call["function"]["arguments"]))
        calls.append(call)
    assert calls[0] == calls[1]
