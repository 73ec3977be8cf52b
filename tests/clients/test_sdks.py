"""The official clients with each of their APIs: replies, streams, structured output, errors, cancellation.

`Sdk` is the common interface of the clients. `tests/api/inference/test_dialect_contract.py` tests the contents of
replies.
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
GREEDY = {"temperature": 0, "ignore_eos": True}  # random weights may generate EOS first


class Answer(BaseModel):
    """The schema of structured replies."""

    colour: Literal["red", "green"]
    count: Literal[10, 99]  # Anthropic's client removes the bounds of numbers from schemas
    sure: bool


@dataclass
class Reply:
    text: str
    is_truncated: bool
    n_output: int


class Sdk:
    """One client with one API. `create` and `stream` greedily generate `n` tokens from `text`."""

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

    def create(self, text: str, n: int) -> Reply:
        raise NotImplementedError

    def stream(self, text: str, n: int) -> Reply:
        raise NotImplementedError

    def open(self, fields: dict[str, Any]) -> Any:
        """Return the raw stream of a request. The caller closes it."""
        raise NotImplementedError

    def parse(self) -> Answer:
        """Return a structured reply."""
        raise NotImplementedError


class OpenAi(Sdk):
    errors = (openai.BadRequestError, openai.AuthenticationError, openai.NotFoundError)

    def connect(self, url: str, key: str) -> Any:
        return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=REPLY_S)


class OpenAiCompletions(OpenAi):
    @property
    def endpoint(self) -> Any:
        return self.client.completions

    def text(self, choice: Any) -> str:
        return choice.text or ""

    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "prompt": text, "max_tokens": n, "extra_body": GREEDY}

    def create(self, text: str, n: int) -> Reply:
        reply = self.endpoint.create(**self.fields(text, n))
        return self.reply(reply.choices, reply.usage)

    def stream(self, text: str, n: int) -> Reply:
        *chunks, last = self.open(self.fields(text, n) | {"stream_options": {"include_usage": True}})
        return self.reply([chunk.choices[0] for chunk in chunks], last.usage)

    def reply(self, choices: list[Any], usage: Any) -> Reply:
        is_truncated = choices[-1].finish_reason == "length"
        return Reply("".join(map(self.text, choices)), is_truncated, usage.completion_tokens)

    def open(self, fields: dict[str, Any]) -> Any:
        return self.endpoint.create(**fields, stream=True)


class OpenAiChat(OpenAiCompletions):
    @property
    def endpoint(self) -> Any:
        return self.client.chat.completions

    def text(self, choice: Any) -> str:
        return (choice.delta if hasattr(choice, "delta") else choice.message).content or ""

    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "messages": [user(text)], "max_tokens": n, "extra_body": GREEDY}

    def parse(self) -> Answer:
        reply = self.endpoint.parse(model="tiny", messages=[user(HELLO)], response_format=Answer, max_tokens=400)
        assert isinstance(reply.choices[0].message.parsed, Answer)
        return reply.choices[0].message.parsed


class OpenAiResponses(OpenAi):
    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "input": text, "max_output_tokens": n, "extra_body": GREEDY}

    def create(self, text: str, n: int) -> Reply:
        return self.reply(self.client.responses.create(**self.fields(text, n)))

    def stream(self, text: str, n: int) -> Reply:
        events = list(self.open(self.fields(text, n)))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        return self.reply(events[-1].response)

    def reply(self, response: Any) -> Reply:
        return Reply(response.output_text, response.status == "incomplete", response.usage.output_tokens)

    def open(self, fields: dict[str, Any]) -> Any:
        return self.client.responses.create(**fields, stream=True)

    def parse(self) -> Answer:
        reply = self.client.responses.parse(model="tiny", input=HELLO, text_format=Answer, max_output_tokens=400)
        assert isinstance(reply.output_parsed, Answer)
        return reply.output_parsed


class Anthropic(Sdk):
    errors = (anthropic.BadRequestError, anthropic.AuthenticationError, anthropic.NotFoundError)

    def connect(self, url: str, key: str) -> Any:
        return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=REPLY_S)

    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "messages": [user(text)], "max_tokens": n, "extra_body": GREEDY}

    def reply(self, message: Any) -> Reply:
        text = "".join(block.text for block in message.content if block.type == "text")
        return Reply(text, message.stop_reason == "max_tokens", message.usage.output_tokens)

    def create(self, text: str, n: int) -> Reply:
        return self.reply(self.client.messages.create(**self.fields(text, n)))

    def stream(self, text: str, n: int) -> Reply:
        with self.client.messages.stream(**self.fields(text, n)) as stream:
            return self.reply(stream.get_final_message())

    def open(self, fields: dict[str, Any]) -> Any:
        return self.client.messages.create(**fields, stream=True)

    def parse(self) -> Answer:
        fields: Any = {"max_tokens": 400, "messages": [user(HELLO)], "output_format": Answer}
        reply = self.client.messages.parse(model="tiny", **fields)
        assert isinstance(reply.parsed_output, Answer)
        return reply.parsed_output


class OllamaChat(Sdk):
    errors = (ollama.ResponseError,) * 3

    def connect(self, url: str, key: str) -> Any:
        return ollama.Client(host=url, headers={"Authorization": f"Bearer {key}"}, timeout=REPLY_S)

    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "messages": [user(text)], "options": GREEDY | {"num_predict": n}}

    def send(self, fields: dict[str, Any]) -> Any:
        return self.client.chat(**fields)

    def text(self, part: Any) -> str:
        return part.message.content or ""

    def reply(self, parts: list[Any]) -> Reply:
        return Reply("".join(map(self.text, parts)), parts[-1].done_reason == "length", parts[-1].eval_count)

    def create(self, text: str, n: int) -> Reply:
        return self.reply([self.send(self.fields(text, n))])

    def stream(self, text: str, n: int) -> Reply:
        return self.reply(list(self.open(self.fields(text, n))))

    def open(self, fields: dict[str, Any]) -> Any:
        return self.send({**fields, "stream": True})

    def parse(self) -> Answer:
        reply = self.send(self.fields(HELLO, 400) | {"format": Answer.model_json_schema()})
        return Answer.model_validate_json(self.text(reply))


class OllamaGenerate(OllamaChat):
    def fields(self, text: str, n: int) -> dict[str, Any]:
        return {"model": self.model, "prompt": text, "options": GREEDY | {"num_predict": n}}

    def send(self, fields: dict[str, Any]) -> Any:
        return self.client.generate(**fields)

    def text(self, part: Any) -> str:
        return part.response or ""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


SDKS = (OpenAiChat, OpenAiResponses, Anthropic, OllamaChat, OllamaGenerate, OpenAiCompletions)


def each(kinds: tuple[Callable[..., Sdk], ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


@each(SDKS)
def test_a_stream_is_equal_to_the_whole_reply(kind: type[Sdk], server: RealServer) -> None:
    with kind(server, "tiny") as sdk:
        whole, streamed = sdk.create(HELLO, 30), sdk.stream(HELLO, 30)
    assert whole.text
    assert (whole.is_truncated, whole.n_output) == (True, 30)
    assert streamed == whole


@each(SDKS[:-1])
def test_structured_output_is_parsed_into_its_type(kind: type[Sdk], server: RealServer) -> None:
    with kind(server, "tiny") as sdk:
        assert sdk.parse().count in (10, 99)


@each((OpenAiChat, Anthropic, OllamaChat))
def test_closing_a_stream_frees_the_slot_before_the_reply_ends(kind: type[Sdk], server: RealServer) -> None:
    before = metric(server, "llamacpp:tokens_predicted_total")
    with kind(server, "tiny") as sdk, closing(sdk.open(sdk.fields(HELLO, ENDLESS))) as stream:
        next(iter(stream))
        assert busy_slots(server) == 1
    wait_until(lambda: busy_slots(server) == 0, "every slot is free")
    assert metric(server, "llamacpp:tokens_predicted_total") - before < ENDLESS


@each(SDKS)
def test_errors_raise_the_clients_exceptions(kind: type[Sdk], server: RealServer, keyed_server: RealServer) -> None:
    bad, wrong_key, unknown = kind.errors
    with kind(server, "tiny") as sdk:
        for generate in (sdk.create, sdk.stream):
            with pytest.raises(bad, match=r"context|too long"):
                generate("hello " * 20_000, 5)
    with kind(keyed_server, "first", "wrong") as sdk, pytest.raises(wrong_key, match="Invalid API Key"):
        sdk.create(HELLO, 5)
    with kind(keyed_server, "third", API_KEY) as sdk, pytest.raises(unknown, match="third"):
        sdk.create(HELLO, 5)
