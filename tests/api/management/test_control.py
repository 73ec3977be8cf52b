import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from tests.api.conftest import Api, Serve, idle
from tests.api.management.test_models import TWO
from tests.api.streams import Exchange, posting
from tests.support.fakes import FakeLoader, FakeRunner

CHAT = "/v1/chat/completions"
URL = "/v1/chat/completions/control"
HI = [{"role": "user", "content": "Hi"}]
THOUGHTS = "<think>I wonder and wonder and wonder</think>Hello"


def stepped(steps: threading.Semaphore, reply: str = THOUGHTS) -> FakeLoader:
    """One slot that says `reply` a token for each permit."""
    return FakeLoader(runner=lambda: FakeRunner(n_seq=1, steps=steps, replies={"assistant\n": reply}))


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
    body = {"messages": HI, "stream": True, "temperature": 0, "max_tokens": 60, "reasoning_control": True}
    async with serve(stepped(steps)) as api, posting(api.app, CHAT, body) as exchange:
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
    body = {"messages": HI, "stream": True, "temperature": 0, "max_tokens": 60, "reasoning_control": True}
    async with serve(stepped(steps)) as api:
        async with posting(api.app, CHAT, body) as exchange:
            completion = await begun(exchange, steps)
        assert await end(api.client, completion) == gone()
        for _ in range(5):
            steps.release()
        await settled(api)


async def test_with_several_models_the_model_may_be_named(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    body = {"model": "first", "messages": HI, "stream": True, "max_tokens": 60, "reasoning_control": True}
    async with serve(stepped(steps), models=TWO) as api, posting(api.app, CHAT, body) as exchange:
        completion = await begun(exchange, steps)
        assert await end(api.client, completion, model="b") == gone()
        assert await end(api.client, completion, model="org/a:Q8") == {"success": True}
        unknown = {"id": completion, "action": "reasoning_end", "model": "nope"}
        assert (await api.client.post(URL, json=unknown)).status_code == 404
        await rest(exchange, steps)
        await settled(api)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"action": "reasoning_end"}, "missing completion id"),
        ({"id": "chatcmpl-1", "action": "explode"}, "unknown control action"),
    ],
)
async def test_a_wrong_body_is_a_400(client: httpx.AsyncClient, body: Any, message: str) -> None:
    reply = await client.post(URL, json=body)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]


async def test_only_chats_can_be_controlled(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/completions", json={"prompt": "Hi", "reasoning_control": True})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "reasoning_control")


def gone() -> dict[str, Any]:
    return {"success": False, "message": "no active completion for this id"}


async def settled(api: Api) -> None:
    await asyncio.gather(*(idle(s.loaded.engine) for s in api.pool.states() if s.loaded is not None))
