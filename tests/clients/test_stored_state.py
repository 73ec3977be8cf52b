"""Stored responses, conversations and batches survive `kill -9` of a real server.

The official clients of OpenAI and Anthropic validate each reply, page and event against their types.
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
FINAL_STATUSES = ("completed", "failed", "cancelled", "expired")
MESSAGE: Any = {"role": "user", "content": "My name is Ada."}
COMPLETION_WINDOW: Any = "24h"
N_REQUESTS = 12  # of a batch


@contextmanager
def served(state: Path) -> Iterator[tuple[RealServer, OpenAI, Anthropic]]:
    """Serve the demo model with this state file; yield the server and two clients."""
    flags = ("-c", "8192", "-np", "4", "-t", "1", "-a", "demo", "--state", str(state))
    with ExitStack() as stack:
        server = stack.enter_context(llamapool(MODEL, *flags))
        server.wait_until_ready()
        strict: Any = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True}
        openai = stack.enter_context(OpenAI(base_url=f"{server.base_url}/v1", **strict))
        anthropic = stack.enter_context(Anthropic(base_url=server.base_url, **strict))
        yield server, openai, anthropic


def kill(server: RealServer) -> None:
    server.ends_with = -9
    server.process.kill()
    server.process.wait()


def batch_lines(n_tokens: int) -> bytes:
    """Return the file of a batch whose requests have the custom ids n0, n1, and so on."""
    lines = []
    for number in range(N_REQUESTS):
        messages = [{"role": "user", "content": f"Tell me a story about {number} foxes."}]
        body = {"model": "demo", "messages": messages, "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0}
        line = {"custom_id": f"n{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines.append(json.dumps(line).encode())
    return b"\n".join(lines)


def create_batch(client: OpenAI, n_tokens: int) -> tuple[str, str]:
    """Return the ids of the uploaded file and of the batch."""
    file = client.files.create(file=("in.jsonl", batch_lines(n_tokens)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window=COMPLETION_WINDOW
    )
    return file.id, batch.id


def n_completed(client: OpenAI, batch_id: str) -> int:
    """Return the number of completed requests of a batch, after the first has completed."""
    while not (counts := client.batches.retrieve(batch_id).request_counts) or not counts.completed:
        pass
    return counts.completed


def respond(client: OpenAI, text: str, **fields: Any) -> Response:
    response = client.responses.create(model="demo", input=text, max_output_tokens=8, **fields)
    assert isinstance(response, Response)
    return response


def finished_batch(client: OpenAI, batch_id: str) -> Any:
    while (batch := client.batches.retrieve(batch_id)).status not in FINAL_STATUSES:
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
        file_id, batch_id = create_batch(client, 200)
        params: Any = {"model": "demo", "max_tokens": 200, "messages": [MESSAGE]}
        message_batch = anthropic.messages.batches.create(
            requests=[{"custom_id": f"m{number}", "params": params} for number in range(3)]
        )
        n_before = n_completed(client, batch_id)
        kill(server)
    with served(state) as (_, client, anthropic):
        second = respond(client, "And of Italy?", previous_response_id=first.id, temperature=0)
        items = client.conversations.items.list(conversation.id)
        assert client.conversations.retrieve(conversation.id).metadata == {"k": "v"}
        while (interrupted := client.responses.retrieve(background.id)).status in ("queued", "in_progress"):
            pass
        done = finished_batch(client, batch_id)
        outputs = results(client, done.output_file_id)
        while anthropic.messages.batches.retrieve(message_batch.id).processing_status != "ended":
            pass
        messages = list(anthropic.messages.batches.results(message_batch.id))
        assert client.files.content(file_id).read() == batch_lines(200)
    assert first.usage
    assert second.usage
    assert second.usage.input_tokens > first.usage.total_tokens
    assert len(items.data) == 1
    assert interrupted.status in ("failed", "completed")
    assert done.status == "completed"
    assert 0 < n_before < N_REQUESTS
    assert [each["custom_id"] for each in outputs] == [f"n{number}" for number in range(N_REQUESTS)]
    assert [(each.custom_id, each.result.type) for each in messages] == [(f"m{n}", "succeeded") for n in range(3)]


def test_another_server_takes_over_the_batch_of_a_killed_server(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite3"
    with served(state) as (_, other, _), served(state) as (server, client, _):
        _, batch_id = create_batch(client, 100)
        n_completed(client, batch_id)
        kill(server)
        outputs = results(other, finished_batch(other, batch_id).output_file_id)
    assert [each["custom_id"] for each in outputs] == [f"n{number}" for number in range(N_REQUESTS)]
