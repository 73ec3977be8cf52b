"""Run the functions that the model calls and return their results until it answers with text."""

import json
import os
from collections.abc import Callable
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

client = OpenAI(base_url=os.environ.get("BASE_URL", "http://localhost:8080") + "/v1", api_key="none")


def get_weather(city: str) -> dict[str, Any]:
    """Return invented weather; a real function would call a service."""
    return {"city": city, "temperature": 4 + len(city), "condition": "rainy"}


FUNCTIONS: dict[str, Callable[..., Any]] = {"get_weather": get_weather}
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def run(question: str, max_rounds: int = 4) -> str:
    """Return the answer to `question` after at most `max_rounds` rounds of calls."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    for _ in range(max_rounds):
        reply = client.chat.completions.create(model="demo", messages=messages, tools=TOOLS, temperature=0)
        message = reply.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.to_dict())  # type: ignore[arg-type]  # a reply's message as a request's
        for call in message.tool_calls:
            assert call.type == "function"
            # The arguments match the schema, because the server constrains them.
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            print(f"{call.function.name}({call.function.arguments}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    return "(no answer)"


print(run("What is the weather in Oslo?"))
