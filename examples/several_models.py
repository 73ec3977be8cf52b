"""List, load and unload the models of a server, and select one by name."""

import os
from typing import Any

import httpx

client = httpx.Client(base_url=os.environ.get("BASE_URL", "http://localhost:8080"), timeout=120)


def states() -> dict[str, str]:
    """Return the status of each model by id."""
    models: list[dict[str, Any]] = client.get("/models").raise_for_status().json()["data"]
    return {model["id"]: model["status"]["value"] for model in models}


def wait_for(model: str, state: str) -> None:
    """Wait until the model has this status. `/models/sse` sends all changes."""
    with client.stream("GET", "/models/sse") as events:
        if states()[model] == state:
            return
        for line in events.iter_lines():
            if line.startswith("data:") and states()[model] == state:
                return


print(states())
client.post("/models/load", json={"model": "demo-embed"})  # otherwise the first request loads it
wait_for("demo-embed", "loaded")
print(states())

vector = client.post("/v1/embeddings", json={"model": "demo-embed", "input": "a fox"}).json()["data"][0]["embedding"]
reply = client.post("/v1/chat/completions", json={"model": "demo", "messages": [{"role": "user", "content": "Hello!"}]})
print(len(vector), reply.json()["choices"][0]["message"]["content"])

client.post("/models/unload", json={"model": "demo-embed"}).raise_for_status()
wait_for("demo-embed", "unloaded")
print(states())
