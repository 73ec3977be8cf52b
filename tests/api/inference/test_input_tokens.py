import httpx
import pytest

from tests.api.conftest import Serve
from tests.support.fakes import BOS, IM_END, IM_START

PATHS = ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"]
HI = [{"role": "user", "content": "Hi"}]
PROMPT = [BOS, IM_START, *b"user\nHi", IM_END, *b"\n", IM_START, *b"assistant\n"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_prompts_tokens_are_counted(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.post(path, json={"messages": HI, "max_tokens": 5, "stream": True})
    assert (reply.status_code, reply.json()) == (
        200,
        {"input_tokens": len(PROMPT), "object": "response.input_tokens"},
    )


async def test_the_count_is_that_of_the_completion(client: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "system", "content": "Be brief. 日本"}, *HI], "max_tokens": 1}
    counted = (await client.post(PATHS[0], json=body)).json()["input_tokens"]
    used = (await client.post("/v1/chat/completions", json=body)).json()["usage"]["prompt_tokens"]
    assert counted == used


async def test_a_prompt_longer_than_the_context_is_counted(client: httpx.AsyncClient) -> None:
    reply = await client.post(PATHS[0], json={"messages": [{"role": "user", "content": "x" * 1000}]})
    assert (reply.status_code, reply.json()["input_tokens"]) == (200, 998 + len(PROMPT))


async def test_a_wrong_body_is_a_400(client: httpx.AsyncClient) -> None:
    reply = await client.post(PATHS[0], json={"messages": "hi"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages")


async def test_the_model_is_chosen_as_for_a_completion(serve: Serve) -> None:
    models = {name: {"path": f"{name}.gguf", "load": "on_demand"} for name in ("a", "b")}
    async with serve(models=models) as api:
        assert (await api.client.post(PATHS[0], json={"messages": HI, "model": "b"})).status_code == 200
        assert (await api.client.post(PATHS[0], json={"messages": HI, "model": "c"})).status_code == 404
