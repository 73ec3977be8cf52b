"""Anthropic's Messages API with the official client: replies, streams, errors, and an agent's whole loop.

The loop runs on the default model, which has learned to call tools; the rest on random weights.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal, cast

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from anthropic.types import Message, MessageParam, ToolChoiceParam, ToolParam
from pydantic import BaseModel

from tests.clients.conftest import API_KEY, ENDLESS
from tests.clients.slots import busy_slots, wait_until
from tests.support.real_server import REPLY_S, RealServer

HELLO: list[MessageParam] = [{"role": "user", "content": [{"type": "text", "text": "hello world"}]}]
GREEDY = {"temperature": 0, "ignore_eos": True}  # random weights may end at once
WEATHER: list[MessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
CITY: dict[str, object] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: ToolParam = {"name": "get_weather", "description": "Get the weather in a city", "input_schema": CITY}
SUNNY = '{"temperature": 21, "condition": "sunny"}'
CHOICES: list[ToolChoiceParam] = [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}]


def connect(server: RealServer, key: str = "sk-no-key-required") -> Anthropic:
    """As a user makes it; an error is raised at once instead of tried again."""
    return Anthropic(base_url=server.base_url, api_key=key, max_retries=0, timeout=REPLY_S)


@pytest.fixture
def claude(server: RealServer) -> Iterator[Anthropic]:
    with connect(server) as client:
        yield client


@pytest.fixture
def agent(demo: RealServer) -> Iterator[Anthropic]:
    with connect(demo) as client:
        yield client


@pytest.fixture
async def async_agent(demo: RealServer) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=demo.base_url, api_key="none", max_retries=0, timeout=REPLY_S) as client:
        yield client


def said(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message_has_content_usage_and_a_reason(claude: Anthropic) -> None:
    message = claude.messages.create(model="tiny", max_tokens=12, system="be brief", messages=HELLO, extra_body=GREEDY)
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert said(message)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 12


def test_a_stream_says_what_the_message_says(claude: Anthropic) -> None:
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 30, "messages": HELLO, "extra_body": GREEDY}
    whole = claude.messages.create(**options)
    with claude.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == said(final) == said(whole)
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    raw = [event.type for event in claude.messages.create(**options, stream=True)]
    assert (raw[0], raw[-1]) == ("message_start", "message_stop")


def test_a_stop_sequence_is_named(claude: Anthropic) -> None:
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 30, "messages": HELLO, "extra_body": GREEDY}
    text = said(claude.messages.create(**options))
    message = claude.messages.create(**options, stop_sequences=[text[5:7]])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[5:7])
    assert said(message) == text[: text.index(text[5:7])]


def test_parse_gives_an_object_of_the_wanted_type(claude: Anthropic) -> None:
    class Answer(BaseModel):
        colour: Literal["red", "green"]
        sure: bool

    reply = claude.messages.parse(model="tiny", max_tokens=300, messages=HELLO, output_format=Answer)
    assert isinstance(reply.parsed_output, Answer)


def test_models_are_listed_as_the_client_knows_them(claude: Anthropic) -> None:
    [listed] = claude.models.list(limit=1000)
    assert (listed.type, listed.id, listed.display_name) == ("model", "tiny", "tiny")
    assert claude.models.retrieve("tiny").max_input_tokens == listed.max_input_tokens
    assert listed.max_input_tokens


def test_what_only_anthropics_servers_can_do_is_left_out_with_a_warning(claude: Anthropic) -> None:
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    call: Any = {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {}}
    searched: Any = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    search: Any = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    raw = claude.beta.messages.with_raw_response.create(
        model="tiny",
        max_tokens=4,
        messages=[
            {"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]},
            {"role": "assistant", "content": [search, searched, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [image]}]},
            {"role": "user", "content": "hello"},
        ],
        tools=[{"type": "web_search_20250305", "name": "web_search"}, TOOL],
        mcp_servers=[{"type": "url", "name": "x", "url": "https://example.org"}],
        betas=["mcp-client-2025-04-04"],
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
    )
    assert raw.parse().stop_reason
    told = raw.headers["X-Llamapool-Warning"]
    assert all(name in told for name in ("mcp_servers", "clear_tool_uses_20250919", "web_search_20250305"))


def test_tokens_are_counted_as_they_are_used(claude: Anthropic) -> None:
    count = claude.messages.count_tokens(model="tiny", system="be brief", messages=HELLO, tools=[TOOL])
    message = claude.messages.create(model="tiny", max_tokens=1, system="be brief", messages=HELLO, tools=[TOOL])
    used = message.usage
    assert count.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_what_the_client_raises(claude: Anthropic, guarded: RealServer) -> None:
    options: dict[str, Any] = {"max_tokens": 5, "messages": HELLO}
    image: Any = {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0\.image: image input"):
        claude.messages.create(model="tiny", max_tokens=5, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        claude.messages.create(model="tiny", max_tokens=5, messages=HELLO * 9000)
    with connect(guarded, "wrong") as client, pytest.raises(anthropic.AuthenticationError) as caught:
        client.messages.create(model="first", **options)
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "Invalid API Key"},
    }
    with connect(guarded, API_KEY) as client:
        assert client.messages.create(model="first", **options).model == "first"
        with pytest.raises(anthropic.NotFoundError, match="known models"):
            client.messages.create(model="third", **options)


def test_hanging_up_frees_the_slot(claude: Anthropic, server: RealServer) -> None:
    options: dict[str, Any] = {"model": "tiny", "max_tokens": ENDLESS, "messages": HELLO, "extra_body": GREEDY}
    with claude.messages.stream(**options) as stream:
        next(iter(stream))
        assert busy_slots(server) == 1
    wait_until(lambda: busy_slots(server) == 0, "every slot is free")


def loop(agent: Anthropic, choice: ToolChoiceParam, *, stream: bool) -> tuple[Message, Message]:
    """Question, call, result, answer: what the model said first and last."""

    def ask(messages: list[MessageParam], choice: ToolChoiceParam) -> Message:
        options: dict[str, Any] = {"max_tokens": 200, "extra_body": {"temperature": 0}, "tools": [TOOL]}
        options |= {"model": "demo", "messages": messages, "tool_choice": choice}
        if not stream:
            return cast(Message, agent.messages.create(**options))
        with agent.messages.stream(**options) as running:
            return running.get_final_message()

    first = ask(WEATHER, choice)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result: MessageParam = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call.id, "content": SUNNY}],
    }
    return first, ask([*WEATHER, {"role": "assistant", "content": first.content}, result], {"type": "auto"})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice["type"])
def test_an_agent_asks_its_tool_and_answers(agent: Anthropic, choice: ToolChoiceParam, stream: bool) -> None:
    first, last = loop(agent, choice, stream=stream)
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    assert last.stop_reason == "end_turn"
    assert "sunny" in said(last)
    assert "21" in said(last)


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner_goes_round_by_itself(agent: Anthropic, stream: bool) -> None:
    asked: list[str] = []

    @beta_tool
    def get_weather(city: str) -> str:
        """Get the weather in a city"""
        asked.append(city)
        return SUNNY

    options: Any = {"stream": True} if stream else {}
    runner = agent.beta.messages.tool_runner(
        model="demo",
        max_tokens=200,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[get_weather],
        extra_body={"temperature": 0},
        **options,
    )
    final = runner.until_done()
    assert asked == ["Paris"]
    assert "21 degrees" in "".join(block.text for block in final.content if block.type == "text")


@pytest.mark.parametrize("kind", ["enabled", "adaptive", "disabled"])
async def test_thoughts_are_streamed_before_the_answer(async_agent: AsyncAnthropic, kind: str) -> None:
    thinking: Any = {"type": kind, **({"budget_tokens": 1024} if kind == "enabled" else {})}
    async with async_agent.messages.stream(
        model="demo",
        max_tokens=200,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        thinking=thinking,
        extra_body={"temperature": 0},
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert [block.type for block in final.content] == ["text"] if kind == "disabled" else ["thinking", "text"]
    assert ("thinking" in kinds) is (kind != "disabled")
    assert "Paris" in said(final)
