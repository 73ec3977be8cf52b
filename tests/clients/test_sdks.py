"""What every official client does, over each API that it speaks: replies, streams, schemas, tools, errors, hanging up.

`Sdk` asks the same things of each client. Random weights write the text; the default model calls the tool.
"""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import anthropic
import ollama
import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import API_KEY, ENDLESS, busy_slots, metric
from tests.support.real_server import REPLY_S, RealServer
from tests.support.waiting import wait_until

HELLO = "hello world"
WEATHER = "What is the weather in Paris?"
SUNNY = '{"temperature": 21, "condition": "sunny"}'
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
GREEDY = {"temperature": 0, "ignore_eos": True}  # random weights may end at once


class Answer(BaseModel):
    """What a structured reply must be."""

    colour: Literal["red", "green"]
    count: Literal[10, 99]  # Anthropic's client takes bounds of numbers out of a schema
    sure: bool


@dataclass
class Said:
    text: str
    limited: bool = False
    n_output: int = 0
    calls: tuple[tuple[str, Any], ...] = ()
    thoughts: str = ""


class Sdk:
    """One official client on one API. ``turns`` are messages in the client's own form."""

    errors: tuple[type[Exception], type[Exception], type[Exception]]
    """The exceptions for a bad request, a wrong key and an unknown model."""

    def __init__(self, server: RealServer, model: str, key: str = "none") -> None:
        self.model = model
        self.client = self.connect(server.base_url, key)

    def __enter__(self) -> Any:
        self.client.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.client.__exit__(*error)

    def connect(self, url: str, key: str) -> Any:
        raise NotImplementedError

    def ask(self, turns: list[Any], n: int, **fields: Any) -> Said:
        raise NotImplementedError

    def stream(self, turns: list[Any], n: int, **fields: Any) -> Said:
        raise NotImplementedError

    def open(self, asked: dict[str, Any]) -> Any:
        """Return the raw stream of a request, which the caller closes."""
        raise NotImplementedError

    def parse(self) -> Answer:
        """Return a reply that is held to `Answer`."""
        raise NotImplementedError

    def tool(self) -> dict[str, Any]:
        """Return the fields that offer ``get_weather``."""
        function = {"name": "get_weather", "description": "Get the weather in a city", "parameters": CITY}
        return {"tools": [{"type": "function", "function": function}]}

    def answered(self, said: Said, result: str) -> list[Any]:
        """Return the turns of a call and its result."""
        raise NotImplementedError


class OpenAiChat(Sdk):
    errors = (openai.BadRequestError, openai.AuthenticationError, openai.NotFoundError)

    def connect(self, url: str, key: str) -> Any:
        return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=REPLY_S)

    def fields(self, turns: list[Any], n: int, **fields: Any) -> dict[str, Any]:
        extra = GREEDY if self.model == "tiny" else {"temperature": 0}
        return {"model": self.model, "messages": turns, "max_tokens": n, "extra_body": extra, **fields}

    def said(self, choice: Any, n_output: int) -> Said:
        calls = tuple((c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls or ())
        self.turn = choice.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
        return Said(choice.message.content or "", choice.finish_reason == "length", n_output, calls)

    def ask(self, turns: list[Any], n: int, **fields: Any) -> Said:
        reply = self.client.chat.completions.create(**self.fields(turns, n, **fields))
        return self.said(reply.choices[0], reply.usage.completion_tokens)

    def stream(self, turns: list[Any], n: int, **fields: Any) -> Said:
        asked = self.fields(turns, n, **fields) | {"stream_options": {"include_usage": True}}
        if "tools" in fields:
            with self.client.chat.completions.stream(**asked) as stream:
                reply = stream.get_final_completion()
            return self.said(reply.choices[0], reply.usage.completion_tokens)
        *chunks, last = self.open(asked)  # the client's helper raises where a limit ends the text
        choices = [chunk.choices[0] for chunk in chunks]
        text = "".join(choice.delta.content or "" for choice in choices)
        return Said(text, choices[-1].finish_reason == "length", last.usage.completion_tokens)

    def open(self, asked: dict[str, Any]) -> Any:
        return self.client.chat.completions.create(**asked, stream=True)

    def parse(self) -> Answer:
        reply = self.client.chat.completions.parse(
            model="tiny", messages=[turn(HELLO)], response_format=Answer, max_tokens=400
        )
        assert isinstance(reply.choices[0].message.parsed, Answer)
        return reply.choices[0].message.parsed

    def answered(self, said: Said, result: str) -> list[Any]:
        return [self.turn, {"role": "tool", "tool_call_id": self.turn["tool_calls"][0]["id"], "content": result}]


class OpenAiCompletions(OpenAiChat):
    def fields(self, turns: list[Any], n: int, **fields: Any) -> dict[str, Any]:
        chat = super().fields(turns, n, **fields)
        return {"prompt": chat.pop("messages")[0]["content"], **chat}

    def ask(self, turns: list[Any], n: int, **fields: Any) -> Said:
        reply = self.client.completions.create(**self.fields(turns, n, **fields))
        return Said(reply.choices[0].text, reply.choices[0].finish_reason == "length", reply.usage.completion_tokens)

    def stream(self, turns: list[Any], n: int, **fields: Any) -> Said:
        asked = self.fields(turns, n, **fields) | {"stream_options": {"include_usage": True}}
        *chunks, last = self.open(asked)
        choices = [chunk.choices[0] for chunk in chunks]
        text = "".join(choice.text for choice in choices)
        return Said(text, choices[-1].finish_reason == "length", last.usage.completion_tokens)

    def open(self, asked: dict[str, Any]) -> Any:
        return self.client.completions.create(**asked, stream=True)


class OpenAiResponses(OpenAiChat):
    def fields(self, turns: list[Any], n: int, **fields: Any) -> dict[str, Any]:
        chat = super().fields(turns, n, **fields)
        return {"input": chat.pop("messages"), "max_output_tokens": chat.pop("max_tokens"), **chat}

    def told(self, response: Any) -> Said:
        self.items = response.output
        calls = tuple((i.name, json.loads(i.arguments)) for i in response.output if i.type == "function_call")
        thoughts = "".join(i.content[0].text for i in response.output if i.type == "reasoning")
        limited = response.status == "incomplete"
        return Said(response.output_text, limited, response.usage.output_tokens, calls, thoughts)

    def ask(self, turns: list[Any], n: int, **fields: Any) -> Said:
        return self.told(self.client.responses.create(**self.fields(turns, n, **fields)))

    def stream(self, turns: list[Any], n: int, **fields: Any) -> Said:
        events = list(self.open(self.fields(turns, n, **fields)))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        return self.told(events[-1].response)

    def open(self, asked: dict[str, Any]) -> Any:
        return self.client.responses.create(**asked, stream=True)

    def parse(self) -> Answer:
        reply = self.client.responses.parse(model="tiny", input=HELLO, text_format=Answer, max_output_tokens=400)
        assert isinstance(reply.output_parsed, Answer)
        return reply.output_parsed

    def tool(self) -> dict[str, Any]:
        return {"tools": [{"type": "function", "strict": True, **super().tool()["tools"][0]["function"]}]}

    def answered(self, said: Said, result: str) -> list[Any]:
        (call,) = (item for item in self.items if item.type == "function_call")
        return [*self.items, {"type": "function_call_output", "call_id": call.call_id, "output": result}]


class Anthropic(Sdk):
    errors = (anthropic.BadRequestError, anthropic.AuthenticationError, anthropic.NotFoundError)

    def connect(self, url: str, key: str) -> Any:
        return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=REPLY_S)

    def fields(self, turns: list[Any], n: int, **fields: Any) -> dict[str, Any]:
        extra = GREEDY if self.model == "tiny" else {"temperature": 0}
        return {"model": self.model, "messages": turns, "max_tokens": n, "extra_body": extra, **fields}

    def told(self, message: Any) -> Said:
        self.content = message.content
        text = "".join(block.text for block in message.content if block.type == "text")
        calls = tuple((block.name, block.input) for block in message.content if block.type == "tool_use")
        thoughts = "".join(block.thinking for block in message.content if block.type == "thinking")
        return Said(text, message.stop_reason == "max_tokens", message.usage.output_tokens, calls, thoughts)

    def ask(self, turns: list[Any], n: int, **fields: Any) -> Said:
        return self.told(self.client.messages.create(**self.fields(turns, n, **fields)))

    def stream(self, turns: list[Any], n: int, **fields: Any) -> Said:
        with self.client.messages.stream(**self.fields(turns, n, **fields)) as stream:
            return self.told(stream.get_final_message())

    def open(self, asked: dict[str, Any]) -> Any:
        return self.client.messages.create(**asked, stream=True)

    def parse(self) -> Answer:
        asked: Any = {"max_tokens": 400, "messages": [turn(HELLO)], "output_format": Answer}
        reply = self.client.messages.parse(model="tiny", **asked)
        assert isinstance(reply.parsed_output, Answer)
        return reply.parsed_output

    def tool(self) -> dict[str, Any]:
        return {"tools": [{"name": "get_weather", "description": "Get the weather in a city", "input_schema": CITY}]}

    def answered(self, said: Said, result: str) -> list[Any]:
        (use,) = (block for block in self.content if block.type == "tool_use")
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": result}]
        return [{"role": "assistant", "content": self.content}, {"role": "user", "content": results}]


class OllamaChat(Sdk):
    errors = (ollama.ResponseError,) * 3

    def connect(self, url: str, key: str) -> Any:
        return ollama.Client(host=url, headers={"Authorization": f"Bearer {key}"}, timeout=REPLY_S)

    def fields(self, turns: list[Any], n: int, **fields: Any) -> dict[str, Any]:
        options = (GREEDY if self.model == "tiny" else {"temperature": 0}) | {"num_predict": n}
        return {"model": self.model, "messages": turns, "options": options, **fields}

    def told(self, parts: list[Any]) -> Said:
        self.calls = [call for part in parts for call in part.message.tool_calls or ()]
        calls = tuple((call.function.name, dict(call.function.arguments)) for call in self.calls)
        text = "".join(part.message.content or "" for part in parts)
        thoughts = "".join(part.message.thinking or "" for part in parts)
        return Said(text, parts[-1].done_reason == "length", parts[-1].eval_count, calls, thoughts)

    def ask(self, turns: list[Any], n: int, **fields: Any) -> Said:
        return self.told([self.client.chat(**self.fields(turns, n, **fields))])

    def stream(self, turns: list[Any], n: int, **fields: Any) -> Said:
        return self.told(list(self.open(self.fields(turns, n, **fields))))

    def open(self, asked: dict[str, Any]) -> Any:
        return self.client.chat(**asked, stream=True)

    def parse(self) -> Answer:
        asked: Any = self.fields([turn(HELLO)], 400) | {"format": Answer.model_json_schema()}
        return Answer.model_validate_json(self.client.chat(**asked).message.content or "")

    def answered(self, said: Said, result: str) -> list[Any]:
        call = ollama.Message(role="assistant", tool_calls=self.calls)
        return [call, {"role": "tool", "content": result, "tool_name": "get_weather"}]


class OllamaGenerate(OllamaChat):
    def fields(self, turns: list[Any], n: int, **fields: Any) -> dict[str, Any]:
        chat = super().fields(turns, n, **fields)
        return {"prompt": chat.pop("messages")[0]["content"], **chat}

    def told(self, parts: list[Any]) -> Said:
        text = "".join(part.response or "" for part in parts)
        return Said(text, parts[-1].done_reason == "length", parts[-1].eval_count)

    def ask(self, turns: list[Any], n: int, **fields: Any) -> Said:
        return self.told([self.client.generate(**self.fields(turns, n, **fields))])

    def stream(self, turns: list[Any], n: int, **fields: Any) -> Said:
        return self.told(list(self.open(self.fields(turns, n, **fields))))

    def open(self, asked: dict[str, Any]) -> Any:
        return self.client.generate(**asked, stream=True)

    def parse(self) -> Answer:
        asked: Any = self.fields([turn(HELLO)], 400) | {"format": Answer.model_json_schema()}
        return Answer.model_validate_json(self.client.generate(**asked).response or "")


def turn(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


CHATS = (OpenAiChat, OpenAiResponses, Anthropic, OllamaChat)
ALL = (*CHATS, OpenAiCompletions, OllamaGenerate)


def each(kinds: tuple[Callable[..., Sdk], ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


@each(ALL)
def test_a_stream_says_what_the_whole_reply_says(kind: type[Sdk], server: RealServer) -> None:
    with kind(server, "tiny") as sdk:
        whole, streamed = sdk.ask([turn(HELLO)], 30), sdk.stream([turn(HELLO)], 30)
    assert whole.text
    assert (whole.limited, whole.n_output) == (True, 30)
    assert streamed == whole


@each((OpenAiChat, OpenAiResponses, Anthropic, OllamaChat, OllamaGenerate))
def test_a_type_shapes_the_reply(kind: type[Sdk], server: RealServer) -> None:
    with kind(server, "tiny") as sdk:
        assert sdk.parse().count in (10, 99)


@each((OpenAiChat, Anthropic, OllamaChat))
def test_hanging_up_frees_the_slot_before_the_end(kind: type[Sdk], server: RealServer) -> None:
    before = metric(server, "llamacpp:tokens_predicted_total")
    with kind(server, "tiny") as sdk, closing(sdk.open(sdk.fields([turn(HELLO)], ENDLESS))) as stream:
        next(iter(stream))
        assert busy_slots(server) == 1
    wait_until(lambda: busy_slots(server) == 0, "every slot is free")
    assert metric(server, "llamacpp:tokens_predicted_total") - before < ENDLESS


@each(ALL)
def test_errors_are_the_clients_own_exceptions(kind: type[Sdk], server: RealServer, guarded: RealServer) -> None:
    bad, wrong_key, unknown = kind.errors
    with kind(server, "tiny") as sdk:
        for say in (sdk.ask, sdk.stream):
            with pytest.raises(bad, match=r"context|too long"):
                say([turn("hello " * 20_000)], 5)
    with kind(guarded, "first", "wrong") as sdk, pytest.raises(wrong_key, match="Invalid API Key"):
        sdk.ask([turn(HELLO)], 5)
    with kind(guarded, "third", API_KEY) as sdk, pytest.raises(unknown, match="third"):
        sdk.ask([turn(HELLO)], 5)


@each(CHATS)
def test_a_tool_is_called_and_its_result_answered(kind: type[Sdk], demo: RealServer) -> None:
    with kind(demo, "demo") as sdk:
        first = sdk.stream([turn(WEATHER)], 200, **sdk.tool())
        assert first.calls == (("get_weather", {"city": "Paris"}),)
        last = sdk.ask([turn(WEATHER), *sdk.answered(first, SUNNY)], 200, **sdk.tool())
    assert last.calls == ()
    assert "sunny" in last.text
    assert "21" in last.text


@pytest.mark.parametrize(
    ("kind", "fields", "thinks", "stream"),
    [
        (OpenAiResponses, {"extra_body": {"temperature": 0, "enable_thinking": True}}, True, True),
        (OpenAiResponses, {"extra_body": {"temperature": 0, "enable_thinking": False}}, False, False),
        (Anthropic, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, True, True),
        (Anthropic, {"thinking": {"type": "adaptive"}}, True, False),
        (Anthropic, {"thinking": {"type": "disabled"}}, False, True),
        (OllamaChat, {"think": True}, True, True),
        (OllamaChat, {"think": False}, False, False),
    ],
)
def test_thoughts_are_apart_from_the_answer(
    kind: type[Sdk], fields: dict[str, Any], thinks: bool, stream: bool, demo: RealServer
) -> None:
    with kind(demo, "demo") as sdk:
        reply = (sdk.stream if stream else sdk.ask)([turn("What is the capital of France?")], 200, **fields)
    assert bool(reply.thoughts) is thinks
    assert "Paris" in reply.text
