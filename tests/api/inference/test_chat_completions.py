import httpx
import pytest
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

from tests.api.conftest import Serve
from tests.api.scripted import CHATML, answering, tool_call
from tests.api.streams import events, posting
from tests.support.fakes import FakeLoader, FakeRunner

URL = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("slots", [1, 4])
async def test_more_choices_than_slots_are_generated_in_turns(serve: Serve, slots: int) -> None:
    body = {"messages": HI, "max_tokens": 4, "seed": 1}
    async with serve(FakeLoader(runner=lambda: FakeRunner(n_seq=slots))) as api:
        whole = (await api.client.post(URL, json={**body, "n": 10})).json()
        alone = (await api.client.post(URL, json={**body, "seed": 10})).json()
        streamed = events((await api.client.post(URL, json={**body, "n": 10, "stream": True})).text)
        assert (await api.client.post("/completion", json={"prompt": "a", "n_predict": 1, "n_cmpl": 9})).is_success
        assert (
            await api.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "best_of": 9})
        ).is_success
        refused = await api.client.post(URL, json={**body, "n": 129})
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == list(range(10))
    assert whole["usage"]["completion_tokens"] == 40
    assert texts[9] == alone["choices"][0]["message"]["content"]
    deltas = [chunk["choices"][0] for chunk in streamed if chunk["choices"]]
    assert texts == ["".join(c["delta"].get("content", "") for c in deltas if c["index"] == n) for n in range(10)]
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


async def test_a_client_that_leaves_frees_its_waiting_choices(serve: Serve) -> None:
    body = {"messages": HI, "n": 10, "ignore_eos": True, "max_tokens": 100, "stream": True}
    async with serve(FakeLoader(runner=lambda: FakeRunner(n_seq=2))) as api:
        async with posting(api.app, URL, body) as reply:
            await reply.chunk()
        after = await api.client.post(URL, json={"messages": HI, "max_tokens": 1})
    assert after.is_success


async def test_apply_template_renders_without_generating(client: httpx.AsyncClient) -> None:
    reply = await client.post("/apply-template", json={"messages": HI})
    assert reply.json() == {"prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = tool_call("f", a=1)


async def test_a_streamed_call_has_the_log_probabilities_of_the_whole_reply(serve: Serve) -> None:
    body = {"messages": HI, "tools": [TOOL], "logprobs": True, "top_logprobs": 1, "temperature": 0}
    async with serve(answering({"Hi": f"Look.\n{CALL}"}), models=CHATML) as api:
        whole = (await api.client.post(URL, json=body)).json()["choices"][0]
        streamed = events((await api.client.post(URL, json={**body, "stream": True})).text)
    for chunk in streamed:
        TypeAdapter(ChatCompletionChunk).validate_python(chunk)
    choices = [chunk["choices"][0] for chunk in streamed]
    found = [token for choice in choices if choice.get("logprobs") for token in choice["logprobs"]["content"]]
    assert whole["finish_reason"] == choices[-1]["finish_reason"] == "tool_calls"
    assert found == whole["logprobs"]["content"]
    assert any("tool_calls" in choice["delta"] and choice.get("logprobs") for choice in choices)


async def test_functions_of_2023_are_ignored_with_a_warning(serve: Serve) -> None:
    body = {"messages": HI, "functions": [TOOL["function"]], "function_call": "auto"}
    async with serve(answering({"Hi": CALL}), models=CHATML) as api:
        reply = await api.client.post("/v1/chat/completions", json=body)
    assert (reply.status_code, reply.headers["x-llamapool-warning"]) == (200, "functions is ignored: send tools")
