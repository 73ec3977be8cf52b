"""Stored state through OpenAI's client, across `kill -9` of a real server."""

import json
from pathlib import Path

from openai import OpenAI

from harness.real_server import ROOT, RealServer, llamapool

MODEL = ROOT / "models" / "demo.gguf"
ENDED = ("completed", "failed", "cancelled", "expired")


def served(state: Path) -> RealServer:
    return llamapool(
        MODEL, "-c", "8192", "-np", "4", "-t", "1", "-a", "demo", environment={"LLAMAPOOL_SERVER__STATE": str(state)}
    )


def client_of(server: RealServer) -> OpenAI:
    server.wait_until_ready()
    return OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)


def killed(server: RealServer) -> None:
    server.ends_with = -9
    server.process.kill()
    server.process.wait()


def line(number: int, n_tokens: int) -> bytes:
    messages = [{"role": "user", "content": f"Tell me a story about {number} foxes."}]
    body = {"model": "demo", "messages": messages, "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0}
    return json.dumps(
        {"custom_id": f"n{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    ).encode()


def test_responses_conversations_and_batches_survive_a_kill(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite3"
    with served(state) as server:
        client = client_of(server)
        first = client.responses.create(model="demo", input="What is the capital of France?", temperature=0)
        conversation = client.conversations.create(items=[{"role": "user", "content": "My name is Ada."}])
        background = client.responses.create(
            model="demo", input="Tell me a story.", background=True, extra_body={"ignore_eos": True}
        )
        lines = [line(number, 200) for number in range(12)]
        file = client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        while not (counts := client.batches.retrieve(batch.id).request_counts) or not counts.completed:
            pass
        n_before = counts.completed
        killed(server)
    with served(state) as server:
        client = client_of(server)
        second = client.responses.create(
            model="demo", input="And of Italy?", previous_response_id=first.id, temperature=0, max_output_tokens=8
        )
        kept = client.conversations.items.list(conversation.id)
        interrupted = client.responses.retrieve(background.id)
        while (done := client.batches.retrieve(batch.id)).status not in ENDED:
            pass
        assert done.output_file_id
        results = [json.loads(each) for each in client.files.content(done.output_file_id).text.splitlines()]
    assert first.usage
    assert second.usage
    assert second.usage.input_tokens > first.usage.total_tokens
    assert len(kept.data) == 1
    assert interrupted.status in ("failed", "completed")
    assert done.status == "completed"
    assert n_before < len(lines)
    assert [each["custom_id"] for each in results] == [f"n{number}" for number in range(12)]
