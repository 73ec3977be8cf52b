"""The ollama client."""

from typing import Any

from ollama import Client, ResponseError
from report import LONG, MODEL, PARIS, URL, Report, get_weather, refused, step

CLIENT = Client(host=URL)


def turn(history: list[Any], answer: str, n_calls: int) -> None:
    said = CLIENT.chat(MODEL, history, tools=[get_weather]).message
    assert len(said.tool_calls or []) == n_calls, said
    while said.tool_calls:
        history.append(said)
        for call in said.tool_calls:
            text = get_weather(**call.function.arguments)
            history.append({"role": "tool", "tool_name": call.function.name, "content": text})
        said = CLIENT.chat(MODEL, history, tools=[get_weather]).message
    history.append(said)
    assert said.content == answer, said


with step("model list"):
    assert any(one.model.startswith(MODEL) for one in CLIENT.list().models)  # type: ignore[union-attr]
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
    turn(HISTORY, "It is sunny.", 1)
with step("parallel calls"):
    HISTORY.append({"role": "user", "content": "BOTH-PLEASE"})
    turn(HISTORY, "One is sunny, one rainy.", 2)
with step("reasoning"):
    said: Any = CLIENT.chat(MODEL, [{"role": "user", "content": "THINK-FIRST"}], think=True).message
    assert (said.thinking, said.content) == ("Two and two.", "It is four."), said
with step("structured output"):
    said = CLIENT.chat(MODEL, [{"role": "user", "content": "REPORT-PLEASE"}], format=Report.model_json_schema())
    assert Report.model_validate_json(said.message.content) == PARIS
with step("a resumed session"):
    again = [one if isinstance(one, dict) else one.model_dump() for one in HISTORY]
    said = CLIENT.chat(MODEL, [*again, {"role": "user", "content": "GO-ON"}], tools=[get_weather])
    assert said.message.content == "The session goes on."
with step("loaded models"):
    assert CLIENT.ps().models
with step("a cancelled stream"):
    stream: Any = CLIENT.chat(MODEL, [{"role": "user", "content": "NEVER-END"}], stream=True)
    for _ in range(10):
        next(stream)
    stream.close()
with step("a context overflow is reported"):
    with refused(ResponseError) as told:
        CLIENT.chat(MODEL, [{"role": "user", "content": LONG}])
    assert "context" in told[0].error, told
