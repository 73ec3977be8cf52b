"""litellm, with its providers for OpenAI's, vLLM's, Anthropic's and Ollama's APIs."""

import json
from typing import Any

import litellm
from report import LONG, TOOL, URL, expect_error, get_weather, step

litellm.telemetry = False
ROUTES = {
    "openai": {"model": "openai/scripted", "api_base": f"{URL}/v1"},
    "hosted_vllm": {"model": "hosted_vllm/scripted", "api_base": f"{URL}/v1"},
    "anthropic": {"model": "anthropic/scripted", "api_base": URL},
    "ollama_chat": {"model": "ollama_chat/scripted", "api_base": URL},
}


def loop(name: str, route: dict[str, str]) -> None:
    def complete(messages: list[Any], **options: object) -> Any:
        return litellm.completion(messages=messages, api_key="none", num_retries=0, **route, **options)

    def run_tools(history: list[Any], answer: str, n_calls: int) -> None:
        message = complete(history, tools=[TOOL]).choices[0].message
        assert len(message.tool_calls or []) == n_calls, message
        while message.tool_calls:
            history.append(message.model_dump())
            for call in message.tool_calls:
                text = get_weather(**json.loads(call.function.arguments))
                history.append({"role": "tool", "tool_call_id": call.id, "content": text})
            message = complete(history, tools=[TOOL]).choices[0].message
        history.append(message.model_dump())
        assert message.content == answer, message

    with step(f"{name}: a streamed reply"):
        parts = list(complete([{"role": "user", "content": "SAY-HELLO"}], stream=True))
        assert "".join(part.choices[0].delta.content or "" for part in parts) == "Hello from the script."
    history: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "WEATHER-PLEASE"}]
    with step(f"{name}: a tool call and its result"):
        run_tools(history, "It is sunny.", 1)
    with step(f"{name}: parallel calls"):
        history.append({"role": "user", "content": "BOTH-PLEASE"})
        run_tools(history, "One is sunny, one rainy.", 2)
    with step(f"{name}: a resumed session"):
        restored = json.loads(json.dumps(history, default=str))
        message = complete([*restored, {"role": "user", "content": "GO-ON"}], tools=[TOOL]).choices[0].message
        assert message.content == "The session goes on."
    with step(f"{name}: a cancelled stream"):
        stream = complete([{"role": "user", "content": "NEVER-END"}], stream=True)
        for _ in range(10):
            next(iter(stream))
        del stream
    with step(f"{name}: a context overflow is reported"):
        # litellm raises BadRequestError for every 400 of Ollama, and a subclass for the others.
        kind = litellm.BadRequestError if name == "ollama_chat" else litellm.ContextWindowExceededError
        with expect_error(kind) as errors:
            complete([{"role": "user", "content": LONG}])
        assert "too long" in str(errors[0]) or "context size" in str(errors[0]), errors


for name, route in ROUTES.items():
    loop(name, route)
with step("responses: a streamed reply"):
    events = list(litellm.responses(input="SAY-HELLO", stream=True, api_key="none", **ROUTES["openai"]))
    assert events[-1].response.output_text == "Hello from the script."
