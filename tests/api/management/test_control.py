"""Reasoning that is ended: of a running chat, by its id, or by a budget."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from tests.api.conftest import Api, Serve, idle
from tests.api.management.test_models import TWO
from tests.api.scripted import CHATML as MODELS
from tests.api.scripted import tool_call
from tests.api.streams import Exchange, posting
from tests.support.fakes import CHATML, FakeLoader

CHAT = "/v1/chat/completions"
URL = "/v1/chat/completions/control"
HI = [{"role": "user", "content": "Hi"}]
THOUGHTS = "<think>I wonder and wonder and wonder</think>Hello"
CONTROLLED = {"messages": HI, "stream": True, "temperature": 0, "max_tokens": 60, "reasoning_control": True}


def stepped(steps: threading.Semaphore, reply: str = THOUGHTS) -> FakeLoader:
    """One slot that says `reply` a token for each permit."""
    return FakeLoader(n_seq=1, steps=steps, replies={"assistant\n": reply})


async def begun(exchange: Exchange, steps: threading.Semaphore) -> str:
    """Let the chat begin to think: its id."""
    for _ in range(10):  # the prompt, the tag of 7 tokens, and two of the thoughts
        steps.release()
    assert await exchange.start() == 200
    while True:
        for event in filter(None, (await exchange.chunk()).split(b"\n\n")):
            chunk = json.loads(event.removeprefix(b"data: "))
            if chunk["choices"][0]["delta"].get("reasoning_content"):
                return str(chunk["id"])


async def rest(exchange: Exchange, steps: threading.Semaphore) -> tuple[str, str]:
    """Let it go on to its end: the thoughts and the content that came."""
    for _ in range(200):
        steps.release()
    said = {"reasoning_content": "", "content": ""}
    came = b"".join([part async for part in exchange.chunks()])  # what several steps have said may come in one part
    events = [event.removeprefix(b"data: ") for event in came.split(b"\n\n") if event]
    assert events.pop() == b"[DONE]"
    for choice in (choice for event in events for choice in json.loads(event)["choices"]):
        for name in said:
            said[name] += choice["delta"].get(name) or ""
    return said["reasoning_content"], said["content"]


async def end(client: httpx.AsyncClient, completion_id: str, **more: Any) -> Any:
    reply = await client.post(URL, json={"id": completion_id, "action": "reasoning_end", **more})
    assert reply.status_code == 200
    return reply.json()


async def test_the_thoughts_of_a_running_chat_are_ended(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serve(stepped(steps)) as api, posting(api.app, CHAT, CONTROLLED) as exchange:
        completion = await begun(exchange, steps)
        assert await end(api.client, completion) == {"success": True}
        thoughts, content = await rest(exchange, steps)
        assert "wonder and wonder" not in thoughts
        assert "</think>" not in thoughts + content
        assert content  # what the fake model says behind a tag that it did not expect
        assert await end(api.client, completion) == gone()
        await settled(api)


async def test_a_client_that_leaves_takes_its_id_along(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serve(stepped(steps)) as api:
        async with posting(api.app, CHAT, CONTROLLED) as exchange:
            completion = await begun(exchange, steps)
        assert await end(api.client, completion) == gone()
        for _ in range(5):
            steps.release()
        await settled(api)


async def test_with_several_models_the_model_may_be_named(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    named = CONTROLLED | {"model": "first"}
    async with serve(stepped(steps), models=TWO) as api, posting(api.app, CHAT, named) as exchange:
        completion = await begun(exchange, steps)
        assert await end(api.client, completion, model="b") == gone()
        assert await end(api.client, completion, model="org/a:Q8") == {"success": True}
        unknown = {"id": completion, "action": "reasoning_end", "model": "nope"}
        assert (await api.client.post(URL, json=unknown)).status_code == 404
        await rest(exchange, steps)
        await settled(api)


def gone() -> dict[str, Any]:
    return {"success": False, "message": "no active completion for this id"}


async def settled(api: Api) -> None:
    await asyncio.gather(*(idle(s.loaded.engine) for s in api.pool.states() if s.loaded is not None))


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = tool_call("f")
OPENS = "{% if add_generation_prompt and enable_thinking %}<think>{% endif %}{# </think> #}"
BUDGET = {"temperature": 0, "thinking_budget_tokens": 8, "reasoning_budget_message": " Enough."}


def thinker(answer: str = "Hello") -> FakeLoader:
    """Thinks for long; says the answer when it is told that it is enough."""
    replies = {"assistant\n": THOUGHTS, "Enough.</think>": answer}
    return FakeLoader(n_seq=2, n_ctx_seq=1024, replies=replies)


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
    replies = {"assistant\n<think>" if opened else "assistant\n": THOUGHTS[7 * opened :], "Enough.</think>": '{"a":1}'}
    async with serve(FakeLoader(n_ctx_seq=1024, replies=replies), models=models) as api:
        asked = {"messages": HI, "json_schema": SCHEMA, "max_tokens": 100, **BUDGET}
        (choice,) = (await api.client.post(CHAT, json=asked)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "I wonder Enough."
        assert (json.loads(choice["message"]["content"]), choice["finish_reason"]) == ({"a": 1}, "stop")
        asked |= {"thinking_budget_tokens": -1}
        (choice,) = (await api.client.post(CHAT, json=asked)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "I wonder and wonder and wonder"
        assert choice["message"]["content"].startswith("{")


async def test_a_call_that_must_come_comes_behind_the_thoughts(serve: Serve) -> None:
    replies = {"assistant\n": THOUGHTS, "Enough.</think>": CALL}
    shown = "{{ tools }}{# <tool_call></tool_call> #}" + THINKER["demo"]["chat_template"]
    models = {"demo": THINKER["demo"] | {"chat_template": shown}}
    async with serve(FakeLoader(n_ctx_seq=2048, replies=replies), models=models) as api:
        asked = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, **BUDGET}
        (choice,) = (await api.client.post(CHAT, json=asked)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "I wonder Enough."
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["f"]
