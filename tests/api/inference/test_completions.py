"""/v1/completions: stop strings, echo, log probabilities, suffixes; and several choices in both APIs."""

import asyncio
import threading

import httpx
import pytest
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

from tests.api.conftest import Serve
from tests.api.scripted import CHATML, answering, tool_call
from tests.api.streams import events, posting
from tests.support.fakes import FakeLoader, FakeRunner

URL = "/v1/completions"


async def test_reverse_prompt_is_the_default_stop_string(serve: Serve) -> None:
    model = {"path": "demo.gguf", "load": "startup", "reverse_prompt": [" tw"]}
    async with serve(FakeLoader(replies={"Hi": "one two three"}), models={"demo": model}) as api:
        for body, text in (({}, "one"), ({"stop": []}, "one"), ({"stop": [" th"]}, "one two")):
            reply = await api.client.post(URL, json={"prompt": "Hi", **body})
            assert reply.json()["choices"][0]["text"] == text


async def test_choices_of_several_prompts_are_numbered_consecutively(client: httpx.AsyncClient) -> None:
    body = {"prompt": ["a", [98], ["c", 100]], "n": 2, "max_tokens": 2, "seed": 1}
    reply = (await client.post(URL, json=body)).json()
    assert [c["index"] for c in reply["choices"]] == list(range(6))
    assert reply["usage"]["completion_tokens"] == 12
    alone = (await client.post(URL, json=body | {"prompt": [98]})).json()
    assert [c["text"] for c in reply["choices"][2:4]] == [c["text"] for c in alone["choices"]]


async def test_numeric_logprobs_adds_the_legacy_openai_lists(client: httpx.AsyncClient) -> None:
    body = {"prompt": "Hi", "max_tokens": 3, "logprobs": 2}
    choice = (await client.post(URL, json=body)).json()["choices"][0]
    lists = choice["logprobs"]
    assert "".join(lists["tokens"]) == choice["text"]
    assert lists["text_offset"] == [0, 1, 2]
    assert lists["token_logprobs"] == [entry["logprob"] for entry in lists["content"]]
    assert all(len(top) in (2, 3) for top in lists["top_logprobs"])
    streamed = events((await client.post(URL, json=body | {"stream": True})).text)
    parts = [part["choices"][0]["logprobs"] for part in streamed if part["choices"][0]["logprobs"]]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset", "content"):
        assert [entry for part in parts for entry in part[name]] == lists[name]
    for fields in ({"logprobs": True}, {"n_probs": 2}):  # llama-server's own forms
        reply = (await client.post(URL, json={"prompt": "Hi", "max_tokens": 1, **fields})).json()
        assert list(reply["choices"][0]["logprobs"]) == ["content"]


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
async def test_echo_with_logprobs_scores_the_prompt(client: httpx.AsyncClient, max_tokens: int) -> None:
    """lm-evaluation-harness sends several prompts with `echo` to score them."""
    prompts = ["a prompt that is longer than a step's outputs", "Hi"]
    body = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": max_tokens, "temperature": 0}
    await client.post(URL, json={"prompt": prompts[0], "max_tokens": 1})
    whole = (await client.post(URL, json=body)).json()
    streamed = events((await client.post(URL, json=body | {"stream": True})).text)
    for choice, prompt in zip(whole["choices"], prompts, strict=True):
        lists = choice["logprobs"]
        assert choice["text"].startswith(prompt)
        assert len(choice["text"]) == len(prompt) + max_tokens
        assert len(lists["tokens"]) == 1 + len(prompt) + max_tokens  # the vocabulary adds BOS
        assert lists["text_offset"] == [0, *range(len(prompt) + max_tokens)]
        assert lists["token_logprobs"][0] is lists["top_logprobs"][0] is None
        for logprob, top in zip(lists["token_logprobs"][1:], lists["top_logprobs"][1:], strict=True):
            assert logprob in top.values()
            assert -2.0 <= logprob <= max(top.values()) == -0.1
        assert len(lists["content"]) == max_tokens
        parts = [c["choices"][0]["logprobs"] for c in streamed if c["choices"][0]["index"] == choice["index"]]
        assert [t for part in parts if part for t in part["token_logprobs"]] == lists["token_logprobs"]
    assert whole["usage"]["prompt_tokens"] == sum(len(prompt) + 1 for prompt in prompts)
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_every_choice_has_the_logprobs_of_its_prompt(client: httpx.AsyncClient) -> None:
    body = {"prompt": "Hi there", "echo": True, "logprobs": 0, "max_tokens": 2, "n": 2, "best_of": 3, "seed": 1}
    one, two = (await client.post(URL, json=body)).json()["choices"]
    assert one["logprobs"]["token_logprobs"][:9] == two["logprobs"]["token_logprobs"][:9]
    assert [len(top) for top in one["logprobs"]["top_logprobs"][1:]] == [1] * 10


async def test_best_of_returns_n_of_the_generated_choices(client: httpx.AsyncClient) -> None:
    body = {"prompt": "Hi", "best_of": 3, "n": 2, "max_tokens": 3, "seed": 1}
    reply = (await client.post(URL, json=body)).json()
    candidates = (await client.post(URL, json={**body, "n": 3})).json()
    assert [c["index"] for c in reply["choices"]] == [0, 1]
    assert {c["text"] for c in reply["choices"]} <= {c["text"] for c in candidates["choices"]}
    assert reply["choices"][0]["logprobs"] is None
    assert reply["usage"]["completion_tokens"] == 9


async def test_suffix_requires_a_model_with_fim_tokens(serve: Serve) -> None:
    body = {"prompt": "before", "suffix": "after"}
    async with serve(FakeLoader(replies={"\x03": "middle"})) as api:
        await api.expect(f"POST {URL}", body, 200, '"text":"middle"')
    async with serve(FakeLoader(fim="none")) as api:
        await api.expect(f"POST {URL}", body, 400, {"error": {"param": "suffix"}})


async def test_disconnect_during_prefill_frees_the_slot(serve: Serve) -> None:
    steps, started, loop = threading.Semaphore(1), asyncio.Event(), asyncio.get_running_loop()

    def on_decode(_: object) -> None:
        loop.call_soon_threadsafe(started.set)

    runner = FakeRunner(steps=steps, on_decode=on_decode)
    async with serve(FakeLoader(runner=lambda: runner)) as api:
        async with posting(api.app, URL, {"prompt": "x" * 250, "stream": True}) as exchange:
            await started.wait()
            exchange.disconnect()
            await asyncio.wait([exchange.task])
        steps.release(10_000)
    assert exchange.messages.empty()
    assert len(runner.samplers[0].accepted) == 251, "only the prompt's tokens"


CHATS = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("slots", [1, 4])
async def test_more_choices_than_slots_are_generated_one_after_the_other(serve: Serve, slots: int) -> None:
    body = {"messages": HI, "max_tokens": 4, "seed": 1}
    async with serve(FakeLoader(n_seq=slots)) as api:
        whole = (await api.client.post(CHATS, json={**body, "n": 10})).json()
        alone = (await api.client.post(CHATS, json={**body, "seed": 10})).json()
        streamed = events((await api.client.post(CHATS, json={**body, "n": 10, "stream": True})).text)
        await api.expect("POST /completion", {"prompt": "a", "n_predict": 1, "n_cmpl": 9})
        await api.expect("POST /v1/completions", {"prompt": "a", "max_tokens": 1, "best_of": 9})
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == list(range(10))
    assert whole["usage"]["completion_tokens"] == 40
    assert texts[9] == alone["choices"][0]["message"]["content"]
    deltas = [chunk["choices"][0] for chunk in streamed if chunk["choices"]]
    assert texts == ["".join(c["delta"].get("content", "") for c in deltas if c["index"] == n) for n in range(10)]


async def test_disconnect_removes_the_queued_choices_of_the_request(serve: Serve) -> None:
    body = {"messages": HI, "n": 10, "ignore_eos": True, "max_tokens": 100, "stream": True}
    async with serve(FakeLoader(n_seq=2)) as api:
        async with posting(api.app, CHATS, body) as reply:
            await reply.chunk()
        await api.expect(f"POST {CHATS}", {"messages": HI, "max_tokens": 1})


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = tool_call("f", a=1)


async def test_streamed_tool_call_has_the_logprobs_of_the_plain_reply(serve: Serve) -> None:
    body = {"messages": HI, "tools": [TOOL], "logprobs": True, "top_logprobs": 1, "temperature": 0}
    async with serve(answering({"Hi": f"Look.\n{CALL}"}), models=CHATML) as api:
        whole = (await api.client.post(CHATS, json=body)).json()["choices"][0]
        streamed = events((await api.client.post(CHATS, json={**body, "stream": True})).text)
    for chunk in streamed:
        TypeAdapter(ChatCompletionChunk).validate_python(chunk)
    choices = [chunk["choices"][0] for chunk in streamed]
    logprobs = [token for choice in choices if choice.get("logprobs") for token in choice["logprobs"]["content"]]
    assert whole["finish_reason"] == choices[-1]["finish_reason"] == "tool_calls"
    assert logprobs == whole["logprobs"]["content"]
    assert any("tool_calls" in choice["delta"] and choice.get("logprobs") for choice in choices)


async def test_deprecated_functions_field_is_ignored_with_a_warning(serve: Serve) -> None:
    body = {"messages": HI, "functions": [TOOL["function"]], "function_call": "auto"}
    async with serve(answering({"Hi": CALL}), models=CHATML) as api:
        reply = await api.expect(f"POST {CHATS}", body)
    assert reply.headers["x-llamapool-warning"] == "functions is ignored: send tools"
