"""langchain-openai."""

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import BadRequestError
from report import LONG, MODEL, PARIS, URL, Report, refused, step
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
        turn(bound, history, "It is sunny.", 1)
    with step(f"{kind}: parallel calls"):
        history.append(HumanMessage("BOTH-PLEASE"))
        turn(bound, history, "One is sunny, one rainy.", 2)
    with step(f"{kind}: a resumed session"):
        again = [type(message).model_validate_json(message.model_dump_json()) for message in history]
        assert bound.invoke([*again, HumanMessage("GO-ON")]).text == "The session goes on."
    for method in ("json_schema", "function_calling", "json_mode"):
        with step(f"{kind}: structured output by {method}"):
            question = "CALL-REPORT" if method == "function_calling" else "REPORT-PLEASE as JSON"
            made = chat.with_structured_output(Report, method=method).invoke(question)
            assert made == PARIS, made
    with step(f"{kind}: a cancelled stream"):
        stream = chat.stream("NEVER-END")
        for _ in range(10):
            next(stream)
        stream.close()
    with step(f"{kind}: a context overflow is reported"):
        with refused(BadRequestError) as told:  # its own class for it goes by words that are OpenAI's
            chat.invoke(LONG)
        assert told[0].code == "context_length_exceeded", told


def turn(bound: Any, history: list[Any], answer: str, n_calls: int) -> None:
    said: AIMessage = bound.invoke(history)
    assert len(said.tool_calls) == n_calls, said
    while said.tool_calls:
        history.append(said)
        for call in said.tool_calls:
            message = get_weather.invoke(call)
            assert isinstance(message, ToolMessage)
            history.append(message)
        said = bound.invoke(history)
    history.append(said)
    assert said.text == answer, said


for kind in ("chat", "responses"):
    loop(kind)
