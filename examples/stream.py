"""Stream two replies of a chat. Print their speed and the cached part of the prompt."""

import os
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

client = OpenAI(base_url=os.environ.get("BASE_URL", "http://localhost:8080") + "/v1", api_key="none")
messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": "Your name is Bob."}]


def stream_reply(question: str) -> dict[str, Any]:
    """Print the reply while it streams. Returns llama.cpp's timings from the last chunk."""
    timings: dict[str, Any] = {}
    reply = ""
    messages.append({"role": "user", "content": question})
    for chunk in client.chat.completions.create(
        model="demo", messages=messages, temperature=0, max_tokens=60, stream=True
    ):
        if chunk.choices:
            text = chunk.choices[0].delta.content or ""
            reply += text
            print(text, end="", flush=True)
        timings = (chunk.model_extra or {}).get("timings", timings)
    messages.append({"role": "assistant", "content": reply})
    print()
    return timings


for question in ("Tell me a story about a fox.", "What is your name?"):
    timings = stream_reply(question)
    print(
        f"-- {timings['prompt_n']} prompt tokens computed, {timings['cache_n']} from the cache; "
        f"{timings['predicted_n']} tokens generated, {timings['predicted_per_second']:.0f} per second"
    )
