"""``verbose``: what the native endpoint would say of a chat or a completion, beside its reply."""

import json
from typing import Any

import httpx
import pytest

from tests.api.conftest import Serve
from tests.support.fakes import FakeLoader

CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True}


async def test_a_chat_tells_its_prompt_its_raw_text_and_its_settings(client: httpx.AsyncClient) -> None:
    body = {**HI, "verbose": True, "temperature": 0.25, "return_tokens": True}
    reply = (await client.post(CHAT, json=body)).json()
    told = reply["__verbose"]
    shown = (await client.post("/apply-template", json=HI)).json()["prompt"]
    assert told["prompt"] == "<s>" + shown
    assert told["content"] == reply["choices"][0]["message"]["content"]
    assert len(told["tokens"]) == told["tokens_predicted"] == 4
    assert told["generation_settings"]["temperature"] == 0.25
    assert told["generation_settings"]["generation_prompt"] == "<|im_start|>assistant\n"
    assert told["stop_type"] == "limit"


async def test_a_completion_and_choices(client: httpx.AsyncClient) -> None:
    body = {"prompt": ["Hi", "Ho"], "n": 2, "max_tokens": 2, "ignore_eos": True, "verbose": True}
    reply = (await client.post("/v1/completions", json=body)).json()
    assert len(reply["choices"]) == 4
    assert reply["__verbose"]["content"] == reply["choices"][0]["text"]


@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), ("/v1/completions", {"prompt": "Hi", "max_tokens": 4})])
async def test_a_stream_tells_it_once_at_the_end(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    text = (await client.post(path, json={**body, "stream": True, "verbose": True})).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: {")]
    (told,) = [event["__verbose"] for event in events if "__verbose" in event]
    assert (told["stop"], told["tokens_predicted"]) == (True, 4)
    assert "Hi" in told["prompt"]


async def test_the_server_may_be_verbose_unless_a_request_says_otherwise(serve: Serve) -> None:
    async with serve(FakeLoader(), server={"verbosity": 10}) as api:
        assert "__verbose" in (await api.client.post(CHAT, json=HI)).json()
        assert "__verbose" not in (await api.client.post(CHAT, json={**HI, "verbose": False})).json()
        native = (await api.client.post("/completion", json={"prompt": "Hi", "n_predict": 1})).json()
        assert "__verbose" not in native
        assert native["generation_settings"]["generation_prompt"] == ""


async def test_a_native_request_shows_the_generation_prompt_that_it_named(client: httpx.AsyncClient) -> None:
    body = {"prompt": "Hi", "n_predict": 1, "generation_prompt": "<think>"}
    assert (await client.post("/completion", json=body)).json()["generation_settings"]["generation_prompt"] == "<think>"
