"""openai-agents, with Chat Completions and Responses."""

import asyncio
import os
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, BadRequestError
from report import LONG, MODEL, PARIS, URL, Report, expect_error, get_weather, step


async def loop(kind: str) -> None:
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    model = (OpenAIChatCompletionsModel if kind == "chat" else OpenAIResponsesModel)(MODEL, client)
    tool = function_tool(get_weather)
    agent = Agent(name="Weather", instructions="Answer briefly.", model=model, tools=[tool])
    with step(f"{kind}: a streamed reply"):
        running = Runner.run_streamed(agent, "SAY-HELLO")
        kinds = [event.type async for event in running.stream_events()]
        assert "raw_response_event" in kinds
        assert running.final_output == "Hello from the script."
    session = SQLiteSession(kind, os.path.join(os.environ["HOME"], "sessions.db"))
    with step(f"{kind}: a tool call and its result"):
        assert (await Runner.run(agent, "WEATHER-PLEASE", session=session)).final_output == "It is sunny."
    with step(f"{kind}: parallel calls"):
        running = Runner.run_streamed(agent, "BOTH-PLEASE", session=session)
        async for _ in running.stream_events():
            pass
        assert running.final_output == "One is sunny, one rainy."
    with step(f"{kind}: a resumed session"):
        again = SQLiteSession(kind, os.path.join(os.environ["HOME"], "sessions.db"))
        assert len(await again.get_items()) > 6
        assert (await Runner.run(agent, "GO-ON", session=again)).final_output == "The session goes on."
    with step(f"{kind}: structured output"):
        typed = agent.clone(output_type=Report, tools=[], model_settings=ModelSettings(temperature=0))
        assert (await Runner.run(typed, "REPORT-PLEASE")).final_output == PARIS
    with step(f"{kind}: reasoning"):
        assert (await Runner.run(agent, "THINK-FIRST")).final_output == "It is four."
    with step(f"{kind}: a cancelled stream"):
        running = Runner.run_streamed(agent, "NEVER-END")
        n = 0
        async for event in running.stream_events():
            n += event.type == "raw_response_event"
            if n == 10:
                running.cancel()
        assert n >= 10
    with step(f"{kind}: a context overflow is reported"):
        with expect_error(BadRequestError) as errors:
            await Runner.run(agent, LONG)
        assert errors[0].code == "context_length_exceeded", errors


set_tracing_disabled(True)
for kind in sys.argv[1:] or ("chat", "responses"):
    asyncio.run(loop(kind))
