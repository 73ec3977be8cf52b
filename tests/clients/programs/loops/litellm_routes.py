"""litellm: over chat, over responses, as llamafile's neighbour, over Anthropic's and over Ollama's API."""

import json
from typing import Any

import litellm
from report import LONG, TOOL, URL, get_weather, refused, step

litellm.telemetry = False
ROUTES = {
    "openai": {"model": "openai/scripted", "api_base": f"{URL}/v1"},
    "hosted_vllm": {"model": "hosted_vllm/scripted", "api_base": f"{URL}/v1"},
    "anthropic": {"model": "anthropic/scripted", "api_base": URL},
    "ollama_chat": {"model": "ollama_chat/scripted", "api_base": URL},
}


def loop(name: str, route: dict[str, str]) -> None:
    def ask(messages: list[Any], **more: object) -> Any:
        return litellm.completion(messages=messages, api_key="none", num_retries=0, **route, **more)

    def turn(history: list[Any], answer: str, n_calls: int) -> None:
        said = ask(history, tools=[TOOL]).choices[0].message
        assert len(said.tool_calls or []) == n_calls, said
        while said.tool_calls:
            history.append(said.model_dump())
            for call in said.tool_calls:
                text = get_weather(**json.loads(call.function.arguments))
                history.append({"role": "tool", "tool_call_id": call.id, "content": text})
            said = ask(history, tools=[TOOL]).choices[0].message
        history.append(said.model_dump())
        assert said.content == answer, said

    with step(f"{name}: a streamed reply"):
        parts = list(ask([{"role": "user", "content": "SAY-HELLO"}], stream=True))
        assert "".join(part.choices[0].delta.content or "" for part in parts) == "Hello from the script."
    history: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "WEATHER-PLEASE"}]
    with step(f"{name}: a tool call and its result"):
        turn(history, "It is sunny.", 1)
    with step(f"{name}: parallel calls"):
        history.append({"role": "user", "content": "BOTH-PLEASE"})
        turn(history, "One is sunny, one rainy.", 2)
    with step(f"{name}: a resumed session"):
        again = json.loads(json.dumps(history, default=str))
        said = ask([*again, {"role": "user", "content": "GO-ON"}], tools=[TOOL]).choices[0].message
        assert said.content == "The session goes on."
    with step(f"{name}: a cancelled stream"):
        stream = ask([{"role": "user", "content": "NEVER-END"}], stream=True)
        for _ in range(10):
            next(iter(stream))
        del stream
    with step(f"{name}: a context overflow is reported"):
        # What it makes of every 400 of Ollama is a BadRequestError, and of the others' its child.
        with refused(litellm.BadRequestError if name == "ollama_chat" else litellm.ContextWindowExceededError) as told:
            ask([{"role": "user", "content": LONG}])
        assert "too long" in str(told[0]) or "context size" in str(told[0]), told


for name, route in ROUTES.items():
    loop(name, route)
with step("responses: a streamed reply"):
    events = list(litellm.responses(input="SAY-HELLO", stream=True, api_key="none", **ROUTES["openai"]))
    assert events[-1].response.output_text == "Hello from the script."
