"""Pydantic AI, with Chat Completions, Responses and Anthropic's Messages."""

import asyncio
from typing import Any

from pydantic_ai import Agent, ModelHTTPError, ModelMessagesTypeAdapter, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from report import LONG, MODEL, PARIS, URL, Report, expect_error, get_weather, step

OPENAI = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
MODELS: dict[str, Any] = {
    "chat": OpenAIChatModel(MODEL, provider=OPENAI),
    "responses": OpenAIResponsesModel(MODEL, provider=OPENAI),
    "messages": AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key="none")),
}


async def loop(kind: str) -> None:
    agent = Agent(MODELS[kind], tools=[get_weather], instructions="Be brief.")
    with step(f"{kind}: a streamed reply"):
        async with agent.run_stream("SAY-HELLO") as running:
            parts = [text async for text in running.stream_text(delta=True, debounce_by=None)]
        assert len(parts) > 1
        assert "".join(parts) == "Hello from the script."
    with step(f"{kind}: a tool call and its result"):
        result = await agent.run("WEATHER-PLEASE")
        assert result.output == "It is sunny."
    with step(f"{kind}: parallel calls"):
        result = await agent.run("BOTH-PLEASE", message_history=result.all_messages())
        assert result.output == "One is sunny, one rainy."
    with step(f"{kind}: reasoning is sent back"):
        result = await agent.run("THINK-FIRST", message_history=result.all_messages())
        assert result.output == "It is four."
    with step(f"{kind}: a resumed session"):
        history = ModelMessagesTypeAdapter.validate_json(result.all_messages_json())
        assert (await agent.run("GO-ON", message_history=history)).output == "The session goes on."
    if kind != "messages":
        with step(f"{kind}: structured output"):
            typed = Agent(MODELS[kind], output_type=NativeOutput(Report))
            assert (await typed.run("REPORT-PLEASE")).output == PARIS
    with step(f"{kind}: output through a tool"):
        typed = Agent(MODELS[kind], output_type=Report)
        assert (await typed.run("CALL-FINAL")).output == PARIS
    with step(f"{kind}: a cancelled stream"):
        async with agent.run_stream("NEVER-END") as running:
            n = 0
            async for _ in running.stream_text(delta=True, debounce_by=None):
                n += 1
                if n == 10:
                    break
    with step(f"{kind}: a context overflow is reported"):
        with expect_error(ModelHTTPError) as errors:
            await agent.run(LONG)
        assert errors[0].status_code == 400, errors


for kind in MODELS:
    asyncio.run(loop(kind))
