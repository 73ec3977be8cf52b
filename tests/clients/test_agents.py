"""An agent's whole loop on the default model: question, tool call, tool result, answer; streaming and not.

Through OpenAI's own client (chat), and through an agent library, Pydantic AI, over each of the three APIs that it can
speak. Anthropic's and OpenAI's Responses clients have their loops in the tests of these APIs.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest
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
HAS_SCHEMAS = ModelProfile(supports_json_schema_output=True)  # the library asks a table of Claude's models
GREEDY = ModelSettings(temperature=0, max_tokens=200)


class Report(BaseModel):
    """What an agent is asked to end with. Only what is finite: Anthropic's client takes bounds out of a schema."""

    city: Literal["Paris", "Rome"]
    sunny: bool


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
