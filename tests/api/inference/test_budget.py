"""Thoughts whose budget is spent, over HTTP."""

import json

import pytest

from tests.api.conftest import Serve
from tests.api.scripted import CHATML as MODELS
from tests.api.scripted import tool_call
from tests.support.fakes import CHATML, FakeLoader, FakeRunner

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
LONG = "<think>I wonder and wonder and wonder</think>Hello"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = tool_call("f")
OPENS = "{% if add_generation_prompt and enable_thinking %}<think>{% endif %}{# </think> #}"
BUDGET = {"temperature": 0, "thinking_budget_tokens": 8, "reasoning_budget_message": " Enough."}


def thinker(answer: str = "Hello") -> FakeLoader:
    """Thinks for long; says the answer when it is told that it is enough."""
    replies = {"assistant\n": LONG, "Enough.</think>": answer}
    return FakeLoader(runner=lambda: FakeRunner(n_seq=2, n_ctx_seq=1024, replies=replies))


@pytest.mark.parametrize("name", ["reasoning_budget_tokens", "thinking_token_budget", "thinking_budget"])
async def test_thoughts_are_ended_and_the_answer_follows(serve: Serve, name: str) -> None:
    async with serve(thinker()) as api:
        asked = {"messages": HI, "temperature": 0, name: 8, "reasoning_budget_message": " Enough.", "n": 2}
        for choice in (await api.client.post(CHAT, json=asked)).json()["choices"]:
            message = choice["message"]
            assert (message["reasoning_content"], message["content"]) == ("I wonder Enough.", "Hello")
            assert choice["finish_reason"] == "stop"


async def test_a_call_follows_and_is_read(serve: Serve) -> None:
    async with serve(thinker(CALL), models=MODELS) as api:
        message = (await api.client.post(CHAT, json={"messages": HI, "tools": [TOOL], **BUDGET})).json()["choices"][0]
        assert message["message"]["reasoning_content"] == "I wonder Enough."
        assert message["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


THINKER = {"demo": {"path": "demo.gguf", "load": "startup", "chat_template": CHATML + "{# <think></think> #}"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("opened", [False, True])
async def test_a_schema_holds_behind_the_thoughts(serve: Serve, opened: bool) -> None:
    """Whether the prompt or the model opens them."""
    models = {"demo": THINKER["demo"] | {"chat_template": CHATML + OPENS}} if opened else THINKER
    replies = {"assistant\n<think>" if opened else "assistant\n": LONG[7 * opened :], "Enough.</think>": '{"a":1}'}
    async with serve(FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=1024, replies=replies)), models=models) as api:
        asked = {"messages": HI, "json_schema": SCHEMA, "max_tokens": 100, **BUDGET}
        (choice,) = (await api.client.post(CHAT, json=asked)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "I wonder Enough."
        assert (json.loads(choice["message"]["content"]), choice["finish_reason"]) == ({"a": 1}, "stop")
        asked |= {"thinking_budget_tokens": -1}
        (choice,) = (await api.client.post(CHAT, json=asked)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "I wonder and wonder and wonder"
        assert choice["message"]["content"].startswith("{")


async def test_a_call_that_must_come_comes_behind_the_thoughts(serve: Serve) -> None:
    replies = {"assistant\n": LONG, "Enough.</think>": CALL}
    shown = "{{ tools }}{# <tool_call></tool_call> #}" + THINKER["demo"]["chat_template"]
    models = {"demo": THINKER["demo"] | {"chat_template": shown}}
    async with serve(FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=2048, replies=replies)), models=models) as api:
        asked = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, **BUDGET}
        (choice,) = (await api.client.post(CHAT, json=asked)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "I wonder Enough."
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["f"]
