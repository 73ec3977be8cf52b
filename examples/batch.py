"""Send a thousand prompts with progress and retries, two concurrent requests per slot."""

import asyncio
import os
import random
import sys
from typing import Any

import httpx
from tqdm import tqdm

base_url = os.environ.get("BASE_URL", "http://localhost:8080")
N_PROMPTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
MAX_TRIES = 8
RETRY_STATUSES = {429, 502, 503}  # the queue is full, the proxy has no server, the model is loading


async def complete(client: httpx.AsyncClient, prompt: str) -> str:
    """Return one answer. Raises `httpx.HTTPError` after the last retry."""
    body = {"model": "demo", "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 24}
    for attempt in range(1, MAX_TRIES + 1):
        wait_s = random.uniform(0.5, 1.0) * 2 ** min(attempt, 5)
        try:
            reply = await client.post("/v1/chat/completions", json=body)
            if reply.status_code not in RETRY_STATUSES or attempt == MAX_TRIES:
                return str(reply.raise_for_status().json()["choices"][0]["message"]["content"])
            wait_s = float(reply.headers.get("retry-after", wait_s))  # the server's hint
        except httpx.TransportError:
            if attempt == MAX_TRIES:
                raise
        await asyncio.sleep(wait_s)
    raise AssertionError("unreachable")


async def main() -> None:
    prompts = [f"What is {a} + {b}?" for a in range(11) for b in range(11)]
    prompts = [prompts[i % len(prompts)] for i in range(N_PROMPTS)]
    async with httpx.AsyncClient(base_url=base_url, timeout=120) as client:
        props: dict[str, Any] = (await client.get("/props", params={"model": "demo"})).raise_for_status().json()
        limit = asyncio.Semaphore(2 * props["total_slots"])  # some requests wait in the server, so no slot idles
        with tqdm(total=len(prompts), unit="prompt") as progress:

            async def run(prompt: str) -> str:
                async with limit:
                    answer = await complete(client, prompt)
                progress.update()
                return answer

            answers = await asyncio.gather(*(run(prompt) for prompt in prompts))
    for prompt, answer in list(zip(prompts, answers, strict=True))[24:27]:
        print(f"{prompt} {answer}")
    print(f"-- {len(answers)} answers")


asyncio.run(main())
