"""Anthropic's Messages API with the official client: replies, streams, errors, and an agent's whole loop.

The loop runs on the default model, which has learned to call tools; the rest on random weights.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, beta_tool

from tests.support.real_server import REPLY_S, RealServer

SUNNY = '{"temperature": 21, "condition": "sunny"}'


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


def test_models_are_listed_as_the_client_knows_them(claude: Anthropic) -> None:
    [listed] = claude.models.list(limit=1000)
    assert (listed.type, listed.id, listed.display_name) == ("model", "tiny", "tiny")
    assert claude.models.retrieve("tiny").max_input_tokens == listed.max_input_tokens
    assert listed.max_input_tokens


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
