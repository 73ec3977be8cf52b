"""A budget for thoughts through the official clients: the demo model is cut short, and answers all the same."""

import json
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.support.real_server import REPLY_S, RealServer

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
BUDGET: dict[str, Any] = {"enable_thinking": True, "thinking_budget": 4, "reasoning_budget_message": " Enough."}


def thoughts(message: Any) -> str:
    return str(message.model_extra["reasoning_content"])


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_end_with_their_budget_and_the_answer_follows(demo_client: OpenAI, stream: bool) -> None:
    asked: Any = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 100, "extra_body": BUDGET}
    if stream:
        deltas = [chunk.choices[0].delta for chunk in demo_client.chat.completions.create(**asked, stream=True)]
        thought = "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas)
        content = "".join(delta.content or "" for delta in deltas)
    else:
        message = demo_client.chat.completions.create(**asked).choices[0].message
        thought, content = thoughts(message), message.content or ""
    assert thought.endswith("Enough.")
    assert "think>" not in thought + content
    assert content


def test_a_schema_holds_behind_thoughts_that_were_cut_short(demo_client: OpenAI) -> None:
    reply = demo_client.chat.completions.create(
        model="demo",
        messages=QUESTION,
        temperature=0,
        max_tokens=100,
        n=2,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}},
        extra_body=BUDGET,
    )
    for choice in reply.choices:
        assert thoughts(choice.message).endswith("Enough.")
        assert json.loads(choice.message.content or "")["city"] in ("Paris", "Rome")
        assert choice.finish_reason == "stop"


def test_a_message_has_the_budget_that_it_was_given(demo: RealServer) -> None:
    found = []
    with Anthropic(base_url=demo.base_url, api_key="none", max_retries=0, timeout=REPLY_S) as client:
        for n_tokens in (1024, 3):
            message = client.messages.create(
                model="demo",
                max_tokens=2000,
                messages=QUESTION,
                thinking={"type": "enabled", "budget_tokens": n_tokens},
                extra_body={"temperature": 0},
            )
            thinking, text = message.content
            assert thinking.type == "thinking"
            assert text.type == "text"
            assert text.text
            found.append(thinking.thinking)
    whole, cut = found
    assert whole.startswith(cut)
    assert len(cut) < len(whole)


@pytest.mark.parametrize("budget", [4, 1000])
def test_a_call_that_must_come_comes_behind_thoughts(demo_client: OpenAI, budget: int) -> None:
    function: Any = {"name": "get_weather", "parameters": SCHEMA}
    reply = demo_client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=200,
        extra_body={**BUDGET, "thinking_budget": budget},
    )
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    assert thoughts(choice.message)
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
