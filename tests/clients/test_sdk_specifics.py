"""Features that only one official client has (`test_sdks.py` tests what all have), and a client without an SDK."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import ollama
import pytest
from anthropic import Anthropic, beta_tool
from ollama import Client
from openai import OpenAI
from openai.types.responses import Response
from pydantic import BaseModel, Field

from tests.clients.conftest import API_KEY
from tests.support.real_server import REPLY_S, RealServer
from tests.support.waiting import wait_until

MODEL = "gpt-4o-mini"  # with one model, any name is accepted
SUNNY = '{"temperature": 21, "condition": "sunny"}'
HELLO = [{"role": "user", "content": "hello world"}]
# Random weights may generate EOS first.
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "num_predict": 12}


class Answer(BaseModel):
    """The schema of the reply."""

    colour: Literal["red", "green"]
    count: int = Field(ge=10, le=99)
    sure: bool


def test_openais_stream_helper_parses_structured_output(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="hello", text_format=Answer, max_output_tokens=400) as stream:
        done = [event for event in stream if event.type == "response.output_text.done"]
        response = stream.get_final_response()
    assert isinstance(response.output_parsed, Answer)
    assert json.loads(done[0].text) == response.output_parsed.model_dump()


@pytest.mark.filterwarnings("ignore:connect\\(\\) must be used as a context manager:DeprecationWarning")  # the client's
def test_openais_websocket_creates_several_responses(client: OpenAI) -> None:
    options: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 16, "store": False}
    whole = client.responses.create(**options, input="hello")
    with client.responses.connect() as connection:
        responses: list[Response] = []
        for text in ("hello", "and now?"):
            previous: Any = {"previous_response_id": responses[-1].id} if responses else {}
            connection.response.create(**options, input=text, **previous)
            for event in connection:
                if event.type in ("response.completed", "response.incomplete"):
                    responses.append(event.response)
                    break
        connection.response.create(model=MODEL, input="x", temperature="hot")  # type: ignore[arg-type]
        error = connection.recv()
    assert responses[0].output_text == whole.output_text
    assert responses[1].usage is not None
    assert responses[0].usage is not None
    assert responses[1].usage.input_tokens > responses[0].usage.total_tokens
    assert error.type == "error"
    assert "temperature" in str(error)


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_tool_runner_calls_the_tool_and_continues(demo: RealServer, stream: bool) -> None:
    cities: list[str] = []

    @beta_tool
    def get_weather(city: str) -> str:
        """Get the weather in a city"""
        cities.append(city)
        return SUNNY

    streaming: Any = {"stream": True} if stream else {}
    with Anthropic(base_url=demo.base_url, api_key="none", max_retries=0, timeout=REPLY_S) as agent:
        runner = agent.beta.messages.tool_runner(
            model="demo",
            max_tokens=200,
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[get_weather],
            extra_body={"temperature": 0},
            **streaming,
        )
        final = runner.until_done()
    assert cities == ["Paris"]
    assert "21 degrees" in "".join(block.text for block in final.content if block.type == "text")


def test_ollamas_client_lists_selects_and_unloads_models(keyed_server: RealServer) -> None:
    with Client(host=keyed_server.base_url, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=REPLY_S) as keyed:
        assert [each.model for each in keyed.list().models] == ["first", "second"]
        assert keyed.chat("first:latest", HELLO, options=GREEDY).model == "first:latest"
        assert keyed.generate("second", "hello", options=GREEDY, keep_alive=0).model == "second"
        wait_until(lambda: [each.model for each in keyed.ps().models] == ["first"], "the second model is unloaded")
        with pytest.raises(ollama.ResponseError, match="model 'third' not found") as caught:
            keyed.chat("third", HELLO)
    assert caught.value.status_code == 404


CHAT = "/v1/chat/completions"


def chunk_by_chunk(chunks: list[bytes]) -> Iterator[str]:
    """Parse a stream like a well-known tutorial: each HTTP chunk is one event, and ``content`` is always a string."""
    for chunk in chunks:
        raw_json = chunk.decode("utf-8")
        if raw_json == "[DONE]":
            break
        if raw_json.startswith("data: "):
            raw_json = raw_json[6:]
        choices = json.loads(raw_json).get("choices", None)
        assert choices, "Invalid response from the server."
        if choices[0].get("finish_reason", None) == "stop":
            break
        content = choices[0]["delta"].get("content", None)
        assert content is not None, "Content did not exist in the response."
        yield content


def test_each_event_of_a_stream_is_one_http_chunk(server: RealServer) -> None:
    """The client of the tutorial also expects that the finish reason is ``stop``."""
    body: dict[str, Any] = {"messages": HELLO, "temperature": 0, "ignore_eos": True, "max_tokens": 40}
    text = server.post(CHAT, body)["choices"][0]["message"]["content"]
    body |= {"max_tokens": 200, "stop": [text[20:23]], "stream": True}
    whole = server.post(CHAT, {**body, "stream": False})["choices"][0]["message"]["content"]
    assert "".join(chunk_by_chunk(server.raw_chunks(CHAT, body))) == whole
