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


SYSTEM = {"role": "system", "content": "Be brief. 日本"}


@pytest.mark.parametrize(
    ("counting", "generating", "body"),
    [
        (PATHS[0], "/v1/chat/completions", {"messages": [SYSTEM, *HI], "max_tokens": 1}),
        (
            *("/v1/messages/count_tokens", "/v1/messages"),
            {"messages": HI, "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 1},
        ),
        (
            *("/v1/responses/input_tokens", "/v1/responses"),
            {"input": "Hi", "instructions": "be brief", "max_output_tokens": 1},
        ),
        ("/responses/input_tokens", "/responses", {"input": "Hi", "max_output_tokens": 1}),
    ],
)
async def test_the_count_is_that_of_the_generation(
    client: httpx.AsyncClient, counting: str, generating: str, body: dict[str, object]
) -> None:
    counted = (await client.post(counting, json=body)).json()["input_tokens"]
    usage = (await client.post(generating, json=body)).json()["usage"]
    assert counted == usage.get("prompt_tokens", usage.get("input_tokens"))


async def test_a_prompt_longer_than_the_context_is_counted(client: httpx.AsyncClient) -> None:
    reply = await client.post(PATHS[0], json={"messages": [{"role": "user", "content": "x" * 1000}]})
    assert (reply.status_code, reply.json()["input_tokens"]) == (200, 998 + len(PROMPT))


async def test_the_model_is_chosen_as_for_a_completion(serve: Serve) -> None:
    models = {name: {"path": f"{name}.gguf", "load": "on_demand"} for name in ("a", "b")}
    async with serve(models=models) as api:
        assert (await api.client.post(PATHS[0], json={"messages": HI, "model": "b"})).status_code == 200
        assert (await api.client.post(PATHS[0], json={"messages": HI, "model": "c"})).status_code == 404
