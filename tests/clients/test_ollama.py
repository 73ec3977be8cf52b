"""Ollama's API with its official client: chat, generate, tools, structure, thoughts, vectors, models, errors.

The tools are called by the default model, which has learned to; the rest runs on random weights.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import ollama
import pytest
from ollama import AsyncClient, Client
from pydantic import BaseModel

from tests.clients.conftest import API_KEY, ENDLESS
from tests.clients.slots import busy_slots, wait_until
from tests.support.ggufs import TinyModel, gguf_file
from tests.support.real_server import REPLY_S, RealServer, llamapool

HELLO = [{"role": "user", "content": "hello world"}]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "num_predict": 12}  # random weights may end at once
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


def get_weather(city: str) -> str:
    """Get the weather in a city

    Args:
        city: the city
    """
    return f"sunny in {city}"


@pytest.fixture
def client(server: RealServer) -> Iterator[Client]:
    with Client(host=server.base_url, timeout=REPLY_S) as connected:
        yield connected


@pytest.fixture
def agent(demo: RealServer) -> Iterator[Client]:
    with Client(host=demo.base_url, timeout=REPLY_S) as connected:
        yield connected


@pytest.fixture
async def async_client(server: RealServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(host=server.base_url, timeout=REPLY_S) as connected:
        yield connected


def test_a_chat_says_the_same_whole_and_in_lines(client: Client) -> None:
    whole = client.chat("tiny", HELLO, options=GREEDY)
    parts = list(client.chat("tiny", HELLO, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert whole.message.content
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 12)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    for last in (whole, parts[-1]):
        assert (last.total_duration or 0) >= (last.eval_duration or 0) > 0
        assert last.prompt_eval_count == whole.prompt_eval_count


def test_generate_says_the_same_whole_and_in_lines_and_goes_on(client: Client) -> None:
    whole = client.generate("tiny", "hello", options=GREEDY)
    parts = list(client.generate("tiny", "hello", options=GREEDY, stream=True))
    assert "".join(part.response or "" for part in parts) == whole.response
    assert whole.context is not None
    further = client.generate("tiny", "and", context=whole.context, options=GREEDY)
    assert further.context is not None
    assert list(further.context)[: len(whole.context)] == list(whole.context)
    assert client.generate("tiny", "hello", raw=True, options=GREEDY).context is None


async def test_the_asynchronous_client_streams(async_client: AsyncClient) -> None:
    parts = [part async for part in await async_client.chat("tiny", HELLO, options=GREEDY, stream=True)]
    assert parts[-1].done_reason == "length"


def test_a_format_makes_an_object_of_the_wanted_type(client: Client) -> None:
    class Answer(BaseModel):
        sure: bool
        colour: Literal["red", "green"]

    schema, options = Answer.model_json_schema(), {"num_predict": 300, "temperature": 0}
    for reply in (
        client.chat("tiny", HELLO, format=schema, options=options).message.content,
        client.generate("tiny", "hello", format=schema, options=options).response,
    ):
        answer = Answer.model_validate_json(reply or "")
        assert answer.model_dump() == json.loads(reply or "")


@pytest.mark.parametrize("streams", [False, True])
def test_an_agents_whole_loop(agent: Client, *, streams: bool) -> None:
    messages: list[Any] = list(WEATHER)
    options = {"temperature": 0}
    if streams:
        parts = agent.chat("demo", messages, tools=[get_weather], options=options, stream=True)
        calls = [call for part in parts for call in part.message.tool_calls or ()]
    else:
        calls = list(agent.chat("demo", messages, tools=[get_weather], options=options).message.tool_calls or ())
    assert [call.function.name for call in calls] == ["get_weather"]
    assert calls[0].function.arguments == {"city": "Paris"}
    result = get_weather(**calls[0].function.arguments)
    messages += [
        ollama.Message(role="assistant", tool_calls=calls),
        {"role": "tool", "content": result, "tool_name": "get_weather"},
    ]
    reply = agent.chat("demo", messages, tools=[get_weather], options=options)
    assert reply.message.content
    assert not reply.message.tool_calls


def test_thoughts_come_apart_from_the_answer(agent: Client) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    thinks = agent.chat("demo", question, think=True, options={"temperature": 0})
    hushed = agent.chat("demo", question, think=False, options={"temperature": 0})
    assert thinks.message.thinking
    assert "Paris" in (thinks.message.content or "")
    assert hushed.message.thinking is None
    assert "Paris" in (hushed.message.content or "")


def test_a_gap_is_filled(agent: Client) -> None:
    reply = agent.generate("demo", "def add(a, b):\n    return ", "\n", options={"temperature": 0, "num_predict": 16})
    assert "a + b" in (reply.response or "")


def test_log_probabilities(client: Client) -> None:
    reply = client.chat("tiny", HELLO, options=GREEDY, logprobs=True, top_logprobs=3)
    assert reply.logprobs is not None
    assert len(reply.logprobs) == 12
    assert all(len(entry.top_logprobs or ()) == 3 for entry in reply.logprobs)


def test_models_are_listed_shown_and_running(agent: Client) -> None:
    (listed,) = agent.list().models
    assert listed.model == "demo"
    assert listed.size is not None
    assert listed.size > 1000
    shown = agent.show("demo")
    assert set(shown.capabilities or ()) == {"completion", "tools", "thinking", "insert"}
    assert shown.details is not None
    assert shown.modelinfo is not None
    assert shown.modelinfo[f"{shown.details.family}.context_length"] > 0
    assert [each.model for each in agent.ps().models] == ["demo"]
    assert agent.pull("demo").status == "success"


def test_what_the_client_raises(client: Client, guarded: RealServer) -> None:
    with pytest.raises(ollama.ResponseError, match=r"options\.top_k") as caught:
        client.chat("tiny", HELLO, options={"top_k": "many"})
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="exceeds the available context"):
        list(client.chat("tiny", HELLO * 9000, stream=True))
    with pytest.raises(ollama.ResponseError, match="image input is not supported"):
        client.chat("tiny", [{"role": "user", "content": "?", "images": [b"\x89PNG"]}])
    with pytest.raises(ollama.ResponseError, match="does not support thinking"):
        client.generate("tiny", "hello", think="high")
    with pytest.raises(ollama.ResponseError, match="not removable") as caught:
        client.delete("tiny")
    assert caught.value.status_code == 400
    with Client(host=guarded.base_url) as keyless, pytest.raises(ollama.ResponseError, match="Invalid API Key"):
        keyless.list()


def test_several_models_answer_by_their_names(guarded: RealServer) -> None:
    with Client(host=guarded.base_url, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=REPLY_S) as keyed:
        assert [each.model for each in keyed.list().models] == ["first", "second"]
        assert keyed.chat("first:latest", HELLO, options=GREEDY).model == "first:latest"
        assert keyed.generate("second", "hello", options=GREEDY, keep_alive=0).model == "second"
        wait_until(lambda: [each.model for each in keyed.ps().models] == ["first"], "the second is freed")
        with pytest.raises(ollama.ResponseError, match="model 'third' not found") as caught:
            keyed.chat("third", HELLO)
    assert caught.value.status_code == 404


def test_hanging_up_frees_the_slot(client: Client, server: RealServer) -> None:
    options = {**GREEDY, "num_predict": ENDLESS}
    parts = client.chat("tiny", HELLO, options=options, stream=True)
    next(iter(parts))
    assert busy_slots(server)
    parts.close()  # type: ignore[attr-defined]  # a generator
    wait_until(lambda: not busy_slots(server), "every slot is free")


def test_vectors(tmp_path: Any) -> None:
    file = gguf_file(tmp_path, TinyModel(n_ctx=256))
    flags = ("--embedding", "--pooling", "mean", "-t", "1", "-a", "tiny-embed")
    with llamapool(file, *flags) as running, Client(host=running.base_url, timeout=REPLY_S) as connected:
        several = connected.embed("tiny-embed", ["hello", "world"])
        one = connected.embed("tiny-embed", "hello", dimensions=4)
        old = connected.embeddings("tiny-embed", "hello")
    assert len(several.embeddings) == 2
    assert sum(number**2 for number in several.embeddings[0]) == pytest.approx(1, abs=1e-4)
    assert len(one.embeddings[0]) == 4
    assert len(old.embedding) == len(several.embeddings[0])
