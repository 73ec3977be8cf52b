"""Stream two answers of a chat; print their speed and the cached part of the prompt."""

import os
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

client = OpenAI(base_url=os.environ.get("BASE_URL", "http://localhost:8080") + "/v1", api_key="none")
messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": "Your name is Bob."}]


def ask(question: str) -> dict[str, Any]:
    """Print the answer while it streams; return llama.cpp's timings from the last chunk."""
    timings: dict[str, Any] = {}
    answer = ""
    messages.append({"role": "user", "content": question})
    for chunk in client.chat.completions.create(
        model="demo", messages=messages, temperature=0, max_tokens=60, stream=True
    ):
        if chunk.choices:
            said = chunk.choices[0].delta.content or ""
            answer += said
            print(said, end="", flush=True)
        timings = (chunk.model_extra or {}).get("timings", timings)
    messages.append({"role": "assistant", "content": answer})
    print()
    return timings


for question in ("Tell me a story about a fox.", "What is your name?"):
    seen = ask(question)
    print(
        f"-- {seen['prompt_n']} tokens of the prompt computed, {seen['cache_n']} from the cache; "
        f"{seen['predicted_n']} tokens written, {seen['predicted_per_second']:.0f} a second"
    )
