"""Save a conversation's KV state from one slot and continue in another without a new prefill.

The server needs --slot-save-path; `make serve` gives it one. A saved file also works in another process.
"""

import os
from typing import Any

import httpx

client = httpx.Client(base_url=os.environ.get("BASE_URL", "http://localhost:8080"), timeout=120)
messages: list[dict[str, str]] = [
    {"role": "system", "content": "Your name is Bob."},
    {"role": "user", "content": "Tell me a story about a fox."},
]


def chat(slot: int) -> dict[str, Any]:
    """Append the reply of a slot to the messages. Returns its timings."""
    body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 60, "id_slot": slot}
    reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
    timings: dict[str, Any] = reply["timings"]
    print(f"slot {slot}: {timings['prompt_n']} tokens computed, {timings['cache_n']} from the cache")
    return timings


def slot(number: int, action: str) -> dict[str, Any]:
    """Save, restore or erase a slot."""
    body = {"filename": "fox.bin"} if action != "erase" else {}
    reply = client.post(f"/slots/{number}", params={"action": action, "model": "demo"}, json=body)
    report: dict[str, Any] = reply.raise_for_status().json()
    print(f"{action} of slot {number}: { {k: v for k, v in report.items() if k.startswith('n_')} }")
    return report


chat(slot=0)
slot(0, "save")
slot(0, "erase")
slot(1, "restore")
messages.append({"role": "user", "content": "What is your name?"})
chat(slot=1)
