"""Ollama's Python client."""

from typing import Any

from ollama import Client, ResponseError
from report import LONG, MODEL, PARIS, URL, Report, expect_error, get_weather, step

CLIENT = Client(host=URL)


def run_tools(history: list[Any], answer: str, n_calls: int) -> None:
    message = CLIENT.chat(MODEL, history, tools=[get_weather]).message
    assert len(message.tool_calls or []) == n_calls, message
    while message.tool_calls:
        history.append(message)
        for call in message.tool_calls:
            text = get_weather(**call.function.arguments)
            history.append({"role": "tool", "tool_name": call.function.name, "content": text})
        message = CLIENT.chat(MODEL, history, tools=[get_weather]).message
    history.append(message)
    assert message.content == answer, message


with step("model list"):
    assert any(each.model.startswith(MODEL) for each in CLIENT.list().models)  # type: ignore[union-attr]
with step("model details"):
    assert CLIENT.show(MODEL).capabilities
with step("a streamed reply"):
    parts = list(CLIENT.chat(MODEL, [{"role": "user", "content": "SAY-HELLO"}], stream=True))
    assert len(parts) > 2
    assert parts[-1].done
    assert "".join(part.message.content or "" for part in parts) == "Hello from the script."
with step("generate"):
    assert CLIENT.generate(MODEL, "SAY-HELLO").response == "Hello from the script."
HISTORY: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "WEATHER-PLEASE"}]
with step("a tool call and its result"):
    run_tools(HISTORY, "It is sunny.", 1)
with step("parallel calls"):
    HISTORY.append({"role": "user", "content": "BOTH-PLEASE"})
    run_tools(HISTORY, "One is sunny, one rainy.", 2)
with step("reasoning"):
    message: Any = CLIENT.chat(MODEL, [{"role": "user", "content": "THINK-FIRST"}], think=True).message
    assert (message.thinking, message.content) == ("Two and two.", "It is four."), message
with step("structured output"):
    reply = CLIENT.chat(MODEL, [{"role": "user", "content": "REPORT-PLEASE"}], format=Report.model_json_schema())
    assert Report.model_validate_json(reply.message.content) == PARIS
with step("a resumed session"):
    restored = [each if isinstance(each, dict) else each.model_dump() for each in HISTORY]
    reply = CLIENT.chat(MODEL, [*restored, {"role": "user", "content": "GO-ON"}], tools=[get_weather])
    assert reply.message.content == "The session goes on."
with step("loaded models"):
    assert CLIENT.ps().models
with step("a cancelled stream"):
    stream: Any = CLIENT.chat(MODEL, [{"role": "user", "content": "NEVER-END"}], stream=True)
    for _ in range(10):
        next(stream)
    stream.close()
with step("a context overflow is reported"):
    with expect_error(ResponseError) as errors:
        CLIENT.chat(MODEL, [{"role": "user", "content": LONG}])
    assert "context" in errors[0].error, errors
