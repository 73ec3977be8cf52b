"""What every official client does, over each API that it speaks: replies, streams, types, errors, hanging up.

`Sdk` asks the same things of each client. What the replies say is in `tests/api/inference/test_dialect_contract.py`.
"""

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


class Sdk:
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

    def fields(self, text: str, n: int) -> dict[str, Any]:
        raise NotImplementedError

    def ask(self, text: str, n: int) -> Said:
        raise NotImplementedError

    def stream(self, text: str, n: int) -> Said:
        raise NotImplementedError

    def open(self, asked: dict[str, Any]) -> Any:
        """Return the raw stream of a request, which the caller closes."""
        raise NotImplementedError

    def parse(self) -> Answer:
        """Return a reply that is held to `Answer`."""
        raise NotImplementedError


class OpenAiChat(Sdk):
    errors = (openai.BadRequestError, openai.AuthenticationError, openai.NotFoundError)

    def connect(self, url: str, key: str) -> Any:
        return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=REPLY_S)

    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "messages": [turn(text)], "max_tokens": n, "extra_body": GREEDY}

    def ask(self, text: str, n: int) -> Said:
        reply = self.client.chat.completions.create(**self.fields(text, n))
        return self.told(reply.choices[0].message.content, reply.choices, reply.usage)

    def stream(self, text: str, n: int) -> Said:
        *chunks, last = self.open(self.fields(text, n) | {"stream_options": {"include_usage": True}})
        choices = [chunk.choices[0] for chunk in chunks]
        return self.told("".join(choice.delta.content or "" for choice in choices), choices, last.usage)

    def told(self, text: str, choices: list[Any], usage: Any) -> Said:
        return Said(text, choices[-1].finish_reason == "length", usage.completion_tokens)

    def open(self, asked: dict[str, Any]) -> Any:
        return self.client.chat.completions.create(**asked, stream=True)

    def parse(self) -> Answer:
        reply = self.client.chat.completions.parse(
            model="tiny", messages=[turn(HELLO)], response_format=Answer, max_tokens=400
        )
        assert isinstance(reply.choices[0].message.parsed, Answer)
        return reply.choices[0].message.parsed


class OpenAiCompletions(OpenAiChat):
    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "prompt": text, "max_tokens": n, "extra_body": GREEDY}

    def ask(self, text: str, n: int) -> Said:
        reply = self.client.completions.create(**self.fields(text, n))
        return self.told(reply.choices[0].text, reply.choices, reply.usage)

    def stream(self, text: str, n: int) -> Said:
        *chunks, last = self.open(self.fields(text, n) | {"stream_options": {"include_usage": True}})
        choices = [chunk.choices[0] for chunk in chunks]
        return self.told("".join(choice.text for choice in choices), choices, last.usage)

    def open(self, asked: dict[str, Any]) -> Any:
        return self.client.completions.create(**asked, stream=True)


class OpenAiResponses(OpenAiChat):
    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "input": text, "max_output_tokens": n, "extra_body": GREEDY}

    def ask(self, text: str, n: int) -> Said:
        return self.response(self.client.responses.create(**self.fields(text, n)))

    def stream(self, text: str, n: int) -> Said:
        events = list(self.open(self.fields(text, n)))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        return self.response(events[-1].response)

    def response(self, found: Any) -> Said:
        return Said(found.output_text, found.status == "incomplete", found.usage.output_tokens)

    def open(self, asked: dict[str, Any]) -> Any:
        return self.client.responses.create(**asked, stream=True)

    def parse(self) -> Answer:
        reply = self.client.responses.parse(model="tiny", input=HELLO, text_format=Answer, max_output_tokens=400)
        assert isinstance(reply.output_parsed, Answer)
        return reply.output_parsed


class Anthropic(Sdk):
    errors = (anthropic.BadRequestError, anthropic.AuthenticationError, anthropic.NotFoundError)

    def connect(self, url: str, key: str) -> Any:
        return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=REPLY_S)

    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "messages": [turn(text)], "max_tokens": n, "extra_body": GREEDY}

    def told(self, message: Any) -> Said:
        text = "".join(block.text for block in message.content if block.type == "text")
        return Said(text, message.stop_reason == "max_tokens", message.usage.output_tokens)

    def ask(self, text: str, n: int) -> Said:
        return self.told(self.client.messages.create(**self.fields(text, n)))

    def stream(self, text: str, n: int) -> Said:
        with self.client.messages.stream(**self.fields(text, n)) as stream:
            return self.told(stream.get_final_message())

    def open(self, asked: dict[str, Any]) -> Any:
        return self.client.messages.create(**asked, stream=True)

    def parse(self) -> Answer:
        asked: Any = {"max_tokens": 400, "messages": [turn(HELLO)], "output_format": Answer}
        reply = self.client.messages.parse(model="tiny", **asked)
        assert isinstance(reply.parsed_output, Answer)
        return reply.parsed_output


class OllamaChat(Sdk):
    errors = (ollama.ResponseError,) * 3

    def connect(self, url: str, key: str) -> Any:
        return ollama.Client(host=url, headers={"Authorization": f"Bearer {key}"}, timeout=REPLY_S)

    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "messages": [turn(text)], "options": GREEDY | {"num_predict": n}}

    def send(self, asked: dict[str, Any]) -> Any:
        return self.client.chat(**asked)

    def text(self, part: Any) -> str:
        return part.message.content or ""

    def told(self, parts: list[Any]) -> Said:
        return Said("".join(map(self.text, parts)), parts[-1].done_reason == "length", parts[-1].eval_count)

    def ask(self, text: str, n: int) -> Said:
        return self.told([self.send(self.fields(text, n))])

    def stream(self, text: str, n: int) -> Said:
        return self.told(list(self.open(self.fields(text, n))))

    def open(self, asked: dict[str, Any]) -> Any:
        return self.send({**asked, "stream": True})

    def parse(self) -> Answer:
        reply = self.send(self.fields(HELLO, 400) | {"format": Answer.model_json_schema()})
        return Answer.model_validate_json(self.text(reply))


class OllamaGenerate(OllamaChat):
    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "prompt": text, "options": GREEDY | {"num_predict": n}}

    def send(self, asked: dict[str, Any]) -> Any:
        return self.client.generate(**asked)

    def text(self, part: Any) -> str:
        return part.response or ""


def turn(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


ALL = (OpenAiChat, OpenAiResponses, Anthropic, OllamaChat, OllamaGenerate, OpenAiCompletions)


def each(kinds: tuple[Callable[..., Sdk], ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


@each(ALL)
def test_a_stream_says_what_the_whole_reply_says(kind: type[Sdk], server: RealServer) -> None:
    with kind(server, "tiny") as sdk:
        whole, streamed = sdk.ask(HELLO, 30), sdk.stream(HELLO, 30)
    assert whole.text
    assert (whole.limited, whole.n_output) == (True, 30)
    assert streamed == whole


@each(ALL[:-1])
def test_a_type_shapes_the_reply(kind: type[Sdk], server: RealServer) -> None:
    with kind(server, "tiny") as sdk:
        assert sdk.parse().count in (10, 99)


@each((OpenAiChat, Anthropic, OllamaChat))
def test_hanging_up_frees_the_slot_before_the_end(kind: type[Sdk], server: RealServer) -> None:
    before = metric(server, "llamacpp:tokens_predicted_total")
    with kind(server, "tiny") as sdk, closing(sdk.open(sdk.fields(HELLO, ENDLESS))) as stream:
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
                say("hello " * 20_000, 5)
    with kind(guarded, "first", "wrong") as sdk, pytest.raises(wrong_key, match="Invalid API Key"):
        sdk.ask(HELLO, 5)
    with kind(guarded, "third", API_KEY) as sdk, pytest.raises(unknown, match="third"):
        sdk.ask(HELLO, 5)
