"""Send a thousand prompts with progress and retries, as many concurrently as there are slots."""

import asyncio
import os
import random
import sys
from typing import Any

import httpx
from tqdm import tqdm

base_url = os.environ.get("BASE_URL", "http://localhost:8080")
N_PROMPTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
MOST_TRIES = 8
WORTH_ANOTHER_TRY = {429, 502, 503}  # a full queue, a proxy without a server, a model that is loading


async def ask(client: httpx.AsyncClient, prompt: str) -> str:
    """Return one answer. Raises `httpx.HTTPError` after the last retry."""
    body = {"model": "demo", "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 24}
    for tried in range(1, MOST_TRIES + 1):
        wait_s = random.uniform(0.5, 1.0) * 2 ** min(tried, 5)
        try:
            reply = await client.post("/v1/chat/completions", json=body)
            if reply.status_code not in WORTH_ANOTHER_TRY or tried == MOST_TRIES:
                return str(reply.raise_for_status().json()["choices"][0]["message"]["content"])
            wait_s = float(reply.headers.get("retry-after", wait_s))  # the server knows better
        except httpx.TransportError:
            if tried == MOST_TRIES:
                raise
        await asyncio.sleep(wait_s)
    raise AssertionError("unreachable")


async def main() -> None:
    prompts = [f"What is {a} + {b}?" for a in range(11) for b in range(11)]
    prompts = [prompts[i % len(prompts)] for i in range(N_PROMPTS)]
    async with httpx.AsyncClient(base_url=base_url, timeout=120) as client:
        props: dict[str, Any] = (await client.get("/props", params={"model": "demo"})).raise_for_status().json()
        turns = asyncio.Semaphore(2 * props["total_slots"])  # the next ones wait in the server, so that no slot idles
        with tqdm(total=len(prompts), unit="prompt") as progress:

            async def one(prompt: str) -> str:
                async with turns:
                    answer = await ask(client, prompt)
                progress.update()
                return answer

            answers = await asyncio.gather(*(one(prompt) for prompt in prompts))
    for prompt, answer in list(zip(prompts, answers, strict=True))[24:27]:
        print(f"{prompt} {answer}")
    print(f"-- {len(answers)} answers")


asyncio.run(main())
