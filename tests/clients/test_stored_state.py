"""Stored state through the official clients of OpenAI and Anthropic, across `kill -9` of a real server.

The clients validate every reply, page and event against their own types.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from anthropic import Anthropic
from openai import OpenAI
from openai.types.responses import Response

from tests.support.real_server import ROOT, RealServer, llamapool

MODEL = ROOT / "models" / "demo.gguf"
ENDED = ("completed", "failed", "cancelled", "expired")
MESSAGE: Any = {"role": "user", "content": "My name is Ada."}
WINDOW: Any = "24h"


@contextmanager
def served(state: Path) -> Iterator[tuple[RealServer, OpenAI, Anthropic]]:
    """Serve the demo model with this state file; close the clients and stop the server at the end."""
    flags = ("-c", "8192", "-np", "4", "-t", "1", "-a", "demo", "--state", str(state))
    with ExitStack() as up:
        server = up.enter_context(llamapool(MODEL, *flags))
        server.wait_until_ready()
        strict: Any = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True}
        openai = up.enter_context(OpenAI(base_url=f"{server.base_url}/v1", **strict))
        anthropic = up.enter_context(Anthropic(base_url=server.base_url, **strict))
        yield server, openai, anthropic


def killed(server: RealServer) -> None:
    server.ends_with = -9
    server.process.kill()
    server.process.wait()


def line(number: int, n_tokens: int, **fields: object) -> bytes:
    messages = [{"role": "user", "content": f"Tell me a story about {number} foxes."}]
    body = {"model": "demo", "messages": messages, "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0}
    request = {"custom_id": f"n{number}", "method": "POST", "url": "/v1/chat/completions", "body": {**body, **fields}}
    return json.dumps(request).encode()


def respond(client: OpenAI, text: str, **fields: Any) -> Response:
    found = client.responses.create(model="demo", input=text, max_output_tokens=8, **fields)
    assert isinstance(found, Response)
    return found


def ended_batch(client: OpenAI, batch_id: str) -> Any:
    while (batch := client.batches.retrieve(batch_id)).status not in ENDED:
        pass
    return batch


def results(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(each) for each in client.files.content(file_id).text.splitlines()]


def test_responses_conversations_and_batches_survive_a_kill(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite3"
    with served(state) as (server, client, anthropic):
        first = respond(client, "What is the capital of France?", temperature=0)
        conversation = client.conversations.create(items=[MESSAGE], metadata={"k": "v"})
        background = client.responses.create(
            model="demo", input="Tell me a story.", background=True, extra_body={"ignore_eos": True}
        )
        lines = [line(number, 200) for number in range(12)]
        file = client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window=WINDOW)
        params: Any = {"model": "demo", "max_tokens": 200, "messages": [MESSAGE]}
        message_batch = anthropic.messages.batches.create(
            requests=[{"custom_id": f"m{number}", "params": params} for number in range(3)]
        )
        while not (counts := client.batches.retrieve(batch.id).request_counts) or not counts.completed:
            pass
        n_before = counts.completed
        killed(server)
    with served(state) as (_, client, anthropic):
        second = respond(client, "And of Italy?", previous_response_id=first.id, temperature=0)
        kept = client.conversations.items.list(conversation.id)
        assert client.conversations.retrieve(conversation.id).metadata == {"k": "v"}
        while (interrupted := client.responses.retrieve(background.id)).status in ("queued", "in_progress"):
            pass
        done = ended_batch(client, batch.id)
        found = results(client, done.output_file_id)
        while anthropic.messages.batches.retrieve(message_batch.id).processing_status != "ended":
            pass
        messages = list(anthropic.messages.batches.results(message_batch.id))
        assert client.files.content(file.id).read() == b"\n".join(lines)
    assert first.usage
    assert second.usage
    assert second.usage.input_tokens > first.usage.total_tokens
    assert len(kept.data) == 1
    assert interrupted.status in ("failed", "completed")
    assert done.status == "completed"
    assert 0 < n_before < len(lines)
    assert [each["custom_id"] for each in found] == [f"n{number}" for number in range(12)]
    assert [(each.custom_id, each.result.type) for each in messages] == [(f"m{n}", "succeeded") for n in range(3)]


def test_a_killed_servers_batch_is_taken_over_by_another_one(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite3"
    with served(state) as (_, other, _), served(state) as (server, client, _):
        file = client.files.create(file=("in.jsonl", b"\n".join(line(n, 100) for n in range(12))), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window=WINDOW)
        while not (counts := client.batches.retrieve(batch.id).request_counts) or not counts.completed:
            pass
        killed(server)
        found = results(other, ended_batch(other, batch.id).output_file_id)
    assert [each["custom_id"] for each in found] == [f"n{number}" for number in range(12)]
