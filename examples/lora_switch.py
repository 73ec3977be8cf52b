"""Use different LoRA scales in concurrent requests."""

import asyncio
import os

import httpx

base_url = os.environ.get("BASE_URL", "http://localhost:8080")


async def complete(client: httpx.AsyncClient, scale: float) -> str:
    """Return the reply with the adapter at `scale`; 0 = off."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 40,
        "lora": [{"id": 0, "scale": scale}],
    }
    reply = (await client.post("/v1/chat/completions", json=body)).raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])


async def main() -> None:
    async with httpx.AsyncClient(base_url=base_url, timeout=60) as client:
        for adapter in (await client.get("/lora-adapters", params={"model": "demo"})).raise_for_status().json():
            print(f"adapter {adapter['id']}: {adapter['path']}, scale {adapter['scale']}")
        plain, pirate = await asyncio.gather(complete(client, 0.0), complete(client, 1.0))
        print(f"without: {plain}\nwith:    {pirate}")


asyncio.run(main())
