"""langchain-openai, with Chat Completions and Responses."""

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import BadRequestError
from report import LONG, MODEL, PARIS, URL, Report, expect_error, step
from report import get_weather as weather

get_weather = tool(weather)


def loop(kind: str) -> None:
    chat = ChatOpenAI(
        model=MODEL, base_url=f"{URL}/v1", api_key="none", max_retries=0, use_responses_api=kind == "responses"
    )
    bound = chat.bind_tools([get_weather])
    with step(f"{kind}: a streamed reply"):
        parts = list(chat.stream([SystemMessage("Be brief."), HumanMessage("SAY-HELLO")]))
        assert len(parts) > 2
        assert "".join(part.text for part in parts) == "Hello from the script."
    history = [HumanMessage("WEATHER-PLEASE")]
    with step(f"{kind}: a tool call and its result"):
        run_tools(bound, history, "It is sunny.", 1)
    with step(f"{kind}: parallel calls"):
        history.append(HumanMessage("BOTH-PLEASE"))
        run_tools(bound, history, "One is sunny, one rainy.", 2)
    with step(f"{kind}: a resumed session"):
        restored = [type(message).model_validate_json(message.model_dump_json()) for message in history]
        assert bound.invoke([*restored, HumanMessage("GO-ON")]).text == "The session goes on."
    for method in ("json_schema", "function_calling", "json_mode"):
        with step(f"{kind}: structured output by {method}"):
            question = "CALL-REPORT" if method == "function_calling" else "REPORT-PLEASE as JSON"
            output = chat.with_structured_output(Report, method=method).invoke(question)
            assert output == PARIS, output
    with step(f"{kind}: a cancelled stream"):
        stream = chat.stream("NEVER-END")
        for _ in range(10):
            next(stream)
        stream.close()
    with step(f"{kind}: a context overflow is reported"):
        with expect_error(BadRequestError) as errors:  # langchain's own class for it matches OpenAI's error text
            chat.invoke(LONG)
        assert errors[0].code == "context_length_exceeded", errors


def run_tools(bound: Any, history: list[Any], answer: str, n_calls: int) -> None:
    reply: AIMessage = bound.invoke(history)
    assert len(reply.tool_calls) == n_calls, reply
    while reply.tool_calls:
        history.append(reply)
        for call in reply.tool_calls:
            message = get_weather.invoke(call)
            assert isinstance(message, ToolMessage)
            history.append(message)
        reply = bound.invoke(history)
    history.append(reply)
    assert reply.text == answer, reply


for kind in ("chat", "responses"):
    loop(kind)
