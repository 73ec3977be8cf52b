"""Reasoning that the server ends: by ``/v1/chat/completions/control`` with the completion's id, or by a budget."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from tests.api.conftest import Api, Serve, idle
from tests.api.management.test_models import TWO_MODELS
from tests.api.scripted import CHATML as MODELS
from tests.api.scripted import tool_call
from tests.api.streams import Exchange, posting
from tests.support.fakes import CHATML, FakeLoader

CHAT = "/v1/chat/completions"
URL = "/v1/chat/completions/control"
HI = [{"role": "user", "content": "Hi"}]
REASONING = "<think>I wonder and wonder and wonder</think>Hello"
UNKNOWN_ID = {"success": False, "message": "no active completion for this id"}
CONTROLLED = {"messages": HI, "stream": True, "temperature": 0, "max_tokens": 60, "reasoning_control": True}


def stepped(steps: threading.Semaphore, reply: str = REASONING) -> FakeLoader:
    """Return a loader of a model with one slot that generates `reply`, one token for each permit of `steps`."""
    return FakeLoader(n_seq=1, steps=steps, replies={"assistant\n": reply})


async def start_reasoning(exchange: Exchange, steps: threading.Semaphore) -> str:
    """Let the stream send its first reasoning. Returns the completion's id."""
    for _ in range(10):  # the prompt, the tag of 7 tokens, and two reasoning tokens
        steps.release()
    assert await exchange.start() == 200
    while True:
        for event in filter(None, (await exchange.chunk()).split(b"\n\n")):
            chunk = json.loads(event.removeprefix(b"data: "))
            if chunk["choices"][0]["delta"].get("reasoning_content"):
                return str(chunk["id"])


async def finish_stream(exchange: Exchange, steps: threading.Semaphore) -> tuple[str, str]:
    """Let the stream run to its end. Returns the reasoning and the content of the remaining chunks."""
    for _ in range(200):
        steps.release()
    raw = b"".join([part async for part in exchange.chunks()])  # one part may hold the deltas of several steps
    events = [event.removeprefix(b"data: ") for event in raw.split(b"\n\n") if event]
    assert events.pop() == b"[DONE]"
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    reasoning, content = (
        "".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning_content", "content")
    )
    return reasoning, content


async def end_reasoning(client: httpx.AsyncClient, completion_id: str, **more: Any) -> Any:
    reply = await client.post(URL, json={"id": completion_id, "action": "reasoning_end", **more})
    assert reply.status_code == 200
    return reply.json()


async def test_control_request_ends_the_reasoning_of_a_running_chat(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serve(stepped(steps)) as api, posting(api.app, CHAT, CONTROLLED) as exchange:
        completion = await start_reasoning(exchange, steps)
        assert await end_reasoning(api.client, completion) == {"success": True}
        reasoning, content = await finish_stream(exchange, steps)
        assert "wonder and wonder" not in reasoning
        assert "</think>" not in reasoning + content
        assert content
        assert await end_reasoning(api.client, completion) == UNKNOWN_ID
        await until_idle(api)


async def test_completion_id_is_unknown_after_a_disconnect(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serve(stepped(steps)) as api:
        async with posting(api.app, CHAT, CONTROLLED) as exchange:
            completion = await start_reasoning(exchange, steps)
        assert await end_reasoning(api.client, completion) == UNKNOWN_ID
        for _ in range(5):
            steps.release()
        await until_idle(api)


async def test_control_request_may_name_the_model(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    named = CONTROLLED | {"model": "first"}
    async with serve(stepped(steps), models=TWO_MODELS) as api, posting(api.app, CHAT, named) as exchange:
        completion = await start_reasoning(exchange, steps)
        assert await end_reasoning(api.client, completion, model="b") == UNKNOWN_ID
        assert await end_reasoning(api.client, completion, model="org/a:Q8") == {"success": True}
        unknown = {"id": completion, "action": "reasoning_end", "model": "nope"}
        assert (await api.client.post(URL, json=unknown)).status_code == 404
        await finish_stream(exchange, steps)
        await until_idle(api)


async def until_idle(api: Api) -> None:
    await asyncio.gather(*(idle(s.loaded.engine) for s in api.pool.states() if s.loaded is not None))


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = tool_call("f")
OPENED_BY_PROMPT = "{% if add_generation_prompt and enable_thinking %}<think>{% endif %}{# </think> #}"
BUDGET = {"temperature": 0, "thinking_budget_tokens": 8, "reasoning_budget_message": " Enough."}


def reasoning_loader(answer: str = "Hello") -> FakeLoader:
    """Return a loader of a model that reasons at length. It generates `answer` after the reasoning budget's message."""
    replies = {"assistant\n": REASONING, "Enough.</think>": answer}
    return FakeLoader(n_seq=2, n_ctx_seq=1024, replies=replies)


@pytest.mark.parametrize("name", ["reasoning_budget_tokens", "thinking_token_budget", "thinking_budget"])
async def test_budget_ends_the_reasoning_and_the_answer_follows(serve: Serve, name: str) -> None:
    async with serve(reasoning_loader()) as api:
        body = {"messages": HI, "temperature": 0, name: 8, "reasoning_budget_message": " Enough.", "n": 2}
        for choice in (await api.client.post(CHAT, json=body)).json()["choices"]:
            message = choice["message"]
            assert (message["reasoning_content"], message["content"]) == ("I wonder Enough.", "Hello")
            assert choice["finish_reason"] == "stop"


async def test_tool_call_after_an_ended_reasoning_is_parsed(serve: Serve) -> None:
    async with serve(reasoning_loader(CALL), models=MODELS) as api:
        message = (await api.client.post(CHAT, json={"messages": HI, "tools": [TOOL], **BUDGET})).json()["choices"][0]
        assert message["message"]["reasoning_content"] == "I wonder Enough."
        assert message["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


REASONING_MODEL = {"demo": {"path": "demo.gguf", "load": "startup", "chat_template": CHATML + "{# <think></think> #}"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("opened", [False, True])
async def test_schema_constrains_the_content_after_the_reasoning(serve: Serve, opened: bool) -> None:
    """`opened`: the prompt opens the reasoning, not the model."""
    models = (
        {"demo": REASONING_MODEL["demo"] | {"chat_template": CHATML + OPENED_BY_PROMPT}} if opened else REASONING_MODEL
    )
    replies = {"assistant\n<think>" if opened else "assistant\n": REASONING[7 * opened :], "Enough.</think>": '{"a":1}'}
    async with serve(FakeLoader(n_ctx_seq=1024, replies=replies), models=models) as api:
        body = {"messages": HI, "json_schema": SCHEMA, "max_tokens": 100, **BUDGET}
        (choice,) = (await api.client.post(CHAT, json=body)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "I wonder Enough."
        assert (json.loads(choice["message"]["content"]), choice["finish_reason"]) == ({"a": 1}, "stop")
        body |= {"thinking_budget_tokens": -1}
        (choice,) = (await api.client.post(CHAT, json=body)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "I wonder and wonder and wonder"
        assert choice["message"]["content"].startswith("{")


async def test_required_tool_call_follows_the_reasoning(serve: Serve) -> None:
    replies = {"assistant\n": REASONING, "Enough.</think>": CALL}
    template = "{{ tools }}{# <tool_call></tool_call> #}" + REASONING_MODEL["demo"]["chat_template"]
    models = {"demo": REASONING_MODEL["demo"] | {"chat_template": template}}
    async with serve(FakeLoader(n_ctx_seq=2048, replies=replies), models=models) as api:
        body = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, **BUDGET}
        (choice,) = (await api.client.post(CHAT, json=body)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "I wonder Enough."
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["f"]
