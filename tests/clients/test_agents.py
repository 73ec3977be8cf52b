"""An agent's whole loop on the default model: question, tool call, tool result, answer; streaming and not.

Through OpenAI's own client (chat), and through an agent library, Pydantic AI, over each of the three APIs that it can
speak. Anthropic's and OpenAI's Responses clients have their loops in the tests of these APIs.
"""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.support.real_server import RealServer

QUESTION = "What is the weather in Paris?"
SUNNY = '{"temperature": 21, "condition": "sunny"}'
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather in a city", "parameters": CITY}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
HAS_SCHEMAS = ModelProfile(supports_json_schema_output=True)  # the library asks a table of Claude's models
GREEDY = ModelSettings(temperature=0, max_tokens=200)


class Report(BaseModel):
    """What an agent is asked to end with. Only what is finite: Anthropic's client takes bounds out of a schema."""

    city: Literal["Paris", "Rome"]
    sunny: bool


def say(client: OpenAI, messages: list[ChatCompletionMessageParam], *, stream: bool, **more: Any) -> Any:
    """One turn: its only choice."""
    options: dict[str, Any] = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 200, **more}
    options["tools"] = [{"type": "function", "function": FUNCTION}]
    if not stream:
        return client.chat.completions.create(**options).choices[0]
    with client.chat.completions.stream(**options) as running:
        return running.get_final_completion().choices[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
def test_the_chat_client_goes_through_the_loop(demo_client: OpenAI, choice: Any, stream: bool) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
    first = say(demo_client, messages, stream=stream, tool_choice=choice)
    assert first.finish_reason == "tool_calls"
    message: ChatCompletionMessage = first.message
    (call,) = message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))  # type: ignore[arg-type]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": SUNNY})
    last = say(demo_client, messages, stream=stream)
    assert last.finish_reason == "stop"
    assert "sunny" in last.message.content
    assert "21" in last.message.content


@pytest.fixture(params=["chat", "responses", "messages"])
async def model(request: pytest.FixtureRequest, demo: RealServer) -> AsyncIterator[Model]:
    """The default model as Pydantic AI knows it: over one of the three APIs."""
    openai = OpenAIProvider(base_url=f"{demo.base_url}/v1", api_key="none")
    anthropic = AnthropicProvider(base_url=demo.base_url, api_key="none")
    makers: dict[str, Callable[[], Model]] = {
        "chat": lambda: OpenAIChatModel("demo", provider=openai),
        "responses": lambda: OpenAIResponsesModel("demo", provider=openai),
        "messages": lambda: AnthropicModel("demo", provider=anthropic, profile=HAS_SCHEMAS),
    }
    made: Model = makers[request.param]()
    async with made:
        yield made


def agent_with_a_tool(model: Model, asked: list[str], **more: Any) -> Agent[None, Any]:
    """It may ask for the weather; the cities that it asked for are written down."""
    agent: Agent[None, Any] = Agent(model, model_settings=GREEDY, **more)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather in a city"""
        asked.append(city)
        return SUNNY

    return agent


async def test_an_agent_library_goes_through_the_loop(model: Model) -> None:
    asked: list[str] = []
    result = await agent_with_a_tool(model, asked).run(QUESTION)
    assert asked == ["Paris"]
    assert result.output == "The weather in Paris is sunny with 21 degrees."
    assert (result.usage.requests, result.usage.tool_calls) == (2, 1)
    assert result.usage.cache_read_tokens > 0  # the second turn goes on where the first ended


async def test_an_agent_library_streams_the_loop(model: Model) -> None:
    asked: list[str] = []
    async with agent_with_a_tool(model, asked).run_stream(QUESTION) as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert asked == ["Paris"]
    assert "".join(pieces) == "The weather in Paris is sunny with 21 degrees."
    assert len(pieces) > 1


@pytest.mark.parametrize("form", [ToolOutput, NativeOutput], ids=["as a call", "as a schema"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_library_gets_the_type_that_it_enforces(model: Model, form: Any, stream: bool) -> None:
    agent: Agent[None, Report] = Agent(model, model_settings=GREEDY, output_type=form(Report, strict=True))
    question = f"{QUESTION} It is sunny with 21 degrees."
    if stream:
        async with agent.run_stream(question) as running:
            report = await running.get_output()
    else:
        report = (await agent.run(question)).output
    assert isinstance(report, Report)
