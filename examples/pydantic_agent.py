"""A Pydantic AI agent with a tool, a typed dependency, and the usage of the run."""

import os
from dataclasses import dataclass

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

base_url = os.environ.get("BASE_URL", "http://localhost:8080") + "/v1"


@dataclass
class Stations:
    """The tool's data."""

    celsius: dict[str, int]


agent = Agent(
    OpenAIChatModel("demo", provider=OpenAIProvider(base_url=base_url, api_key="none")),
    deps_type=Stations,
    model_settings={"temperature": 0},
)


@agent.tool
def get_weather(context: RunContext[Stations], city: str) -> dict[str, object]:
    """Get the weather in a city"""
    return {"temperature": context.deps.celsius.get(city, 20), "condition": "sunny"}


result = agent.run_sync("What is the weather in Lima?", deps=Stations({"Oslo": 4, "Lima": 23}))
print(result.output)
print(f"-- {result.usage.requests} requests, {result.usage.tool_calls} call")
