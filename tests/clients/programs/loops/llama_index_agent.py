"""llama-index: `OpenAILike` and `FunctionAgent`."""

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context
from llama_index.llms.openai_like import OpenAILike
from openai import BadRequestError
from report import LONG, MODEL, PARIS, URL, Report, expect_error, get_weather, step

LLM = OpenAILike(
    model=MODEL, api_base=f"{URL}/v1", api_key="none", is_chat_model=True, is_function_calling_model=True,
    context_window=32768, max_retries=0,
)  # fmt: skip


async def loop() -> None:
    with step("a streamed reply"):
        parts = list(LLM.stream_chat([ChatMessage(role="system", content="Be brief."), ChatMessage("SAY-HELLO")]))
        assert len(parts) > 2
        assert parts[-1].message.content == "Hello from the script."
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(get_weather)], llm=LLM, system_prompt="Be brief.")
    context = Context(agent)
    with step("a tool call and its result"):
        assert str(await agent.run("WEATHER-PLEASE", ctx=context)) == "It is sunny."
    with step("parallel calls"):
        assert str(await agent.run("BOTH-PLEASE", ctx=context)) == "One is sunny, one rainy."
    with step("a resumed session"):
        restored = Context.from_dict(agent, context.to_dict())
        assert str(await agent.run("GO-ON", ctx=restored)) == "The session goes on."
    with step("structured output"):
        output = LLM.as_structured_llm(Report).complete("CALL-REPORT").raw
        assert output == PARIS, output
    with step("a completion"):
        assert LLM.model_copy(update={"is_chat_model": False}).complete("SAY-HELLO", max_tokens=30).text
    with step("a cancelled stream"):
        stream = LLM.stream_chat([ChatMessage("NEVER-END")])
        for _ in range(10):
            next(stream)
        stream.close()
    with step("a context overflow is reported"):
        with expect_error(BadRequestError) as errors:
            LLM.chat([ChatMessage(LONG)])
        assert errors[0].code == "context_length_exceeded", errors


asyncio.run(loop())
