"""Stored state through the official clients of OpenAI and Anthropic, across `kill -9` of a real server.

The clients validate every reply, page and event against their own types.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic import NotFoundError as AnthropicNotFound
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response, ResponseCompletedEvent
from pydantic import TypeAdapter

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


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OpenAI, Anthropic]]:
    with served(tmp_path_factory.mktemp("state") / "state.sqlite3") as (_, openai, anthropic):
        yield openai, anthropic


def test_files(clients: tuple[OpenAI, Anthropic]) -> None:
    client, _ = clients
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    files = [
        client.files.create(file=(f"{n}.txt", b"hello"), purpose="user_data", expires_after=expiry) for n in range(3)
    ]
    client.files.create(file=("vision.png", b"png"), purpose="vision")
    ids = [file.id for file in files]
    assert [each.id for each in client.files.list(purpose="user_data", order="asc", limit=2)] == ids
    assert [each.id for each in client.files.list(purpose="user_data", after=ids[2], order="desc")] == ids[1::-1]
    assert [len(page.data) for page in client.files.list(limit=3).iter_pages()] == [3, 1]
    assert client.files.retrieve(ids[0]) == files[0]
    assert files[0].expires_at == files[0].created_at + 3600
    assert client.files.content(ids[0]).read() == b"hello"
    assert client.files.wait_for_processing(ids[0]).status == "processed"
    assert client.files.delete(ids[0]).deleted
    with pytest.raises(NotFoundError):
        client.files.content(ids[0])


def test_conversations(clients: tuple[OpenAI, Anthropic]) -> None:
    client, _ = clients
    items: Any = [
        MESSAGE,
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello Ada.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "nothing"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}], "id": "msg_own"},
        {"type": "message", "role": "developer", "content": "Be short.", "id": "msg_text"},
    ]
    include: Any = ["message.output_text.logprobs"]
    conversation = client.conversations.create(items=items[:1], metadata={"topic": "names"})
    added = client.conversations.items.create(conversation.id, items=items[1:], include=include)
    listed = list(client.conversations.items.list(conversation.id, order="asc", limit=2, include=include))
    ids = [item.id or "" for item in listed]
    newest = client.conversations.items.list(conversation.id, after=ids[4])
    one = client.conversations.items.retrieve(ids[2], conversation_id=conversation.id, include=include)
    assert [item.type for item in added.data] == [item.get("type", "message") for item in items[1:]]
    assert len(listed) == len(items)
    assert [item.id for item in newest.data] == ids[3::-1]
    assert one == listed[2]
    assert client.conversations.items.delete(ids[0], conversation_id=conversation.id).id == conversation.id
    with pytest.raises(NotFoundError):
        client.conversations.items.retrieve(ids[0], conversation_id=conversation.id)
    assert client.conversations.update(conversation.id, metadata={"topic": "b"}).metadata == {"topic": "b"}
    assert client.conversations.retrieve(conversation.id).metadata == {"topic": "b"}
    before = respond(client, "Hi", conversation=conversation.id)
    after = respond(client, "Hi", conversation={"id": conversation.id})
    assert before.usage
    assert after.usage
    assert after.usage.input_tokens > before.usage.input_tokens
    assert len(list(client.conversations.items.list(conversation.id, limit=100))) == len(items) - 1 + 4
    assert client.conversations.delete(conversation.id).deleted
    for use in (client.conversations.retrieve, client.conversations.items.list, client.conversations.delete):
        with pytest.raises(NotFoundError):
            use(conversation.id)


def test_responses(clients: tuple[OpenAI, Anthropic]) -> None:
    client, _ = clients
    texts: Any = [{"role": "user", "content": f"number {n}"} for n in range(4)]
    include: Any = ["message.output_text.logprobs"]
    response = client.responses.create(model="demo", input=texts, include=include, max_output_tokens=4)
    assert client.responses.retrieve(response.id, include=include).output == response.output
    listed = list(client.responses.input_items.list(response.id, order="asc", limit=3, include=include))
    assert [item.content[0].text for item in listed if item.type == "message"] == [t["content"] for t in texts]  # type: ignore[union-attr]
    rest = client.responses.input_items.list(response.id, after=listed[1].id, order="asc")
    assert [item.id for item in rest.data] == [item.id for item in listed[2:]]
    counted = client.responses.input_tokens.count(model="demo", input=texts)
    assert response.usage
    assert counted.input_tokens == response.usage.input_tokens
    compacted = client.responses.compact(model="demo", input=texts, instructions="Be kind.")
    continued: Any = [compacted.output[0].to_dict(), {"role": "user", "content": "Hi"}]
    assert [item.type for item in compacted.output] == ["compaction"]
    assert client.responses.create(model="demo", input=continued, max_output_tokens=4).usage
    with pytest.raises(BadRequestError):
        client.responses.cancel(response.id)
    client.responses.delete(response.id)
    for use in (client.responses.retrieve, client.responses.input_items.list, client.responses.cancel):
        with pytest.raises(NotFoundError):
            use(response.id)


def test_background_responses(clients: tuple[OpenAI, Anthropic]) -> None:
    client, _ = clients
    endless: Any = {"ignore_eos": True}
    queued = client.responses.create(model="demo", input="Hi", background=True)
    events = list(client.responses.retrieve(queued.id, stream=True))
    done = client.responses.retrieve(queued.id)
    resumed = list(client.responses.retrieve(queued.id, stream=True, starting_after=2, include_obfuscation=False))
    assert (queued.status, done.status) == ("queued", "completed")
    assert isinstance(events[-1], ResponseCompletedEvent)
    assert resumed == events[3:]
    streamed = client.responses.create(model="demo", input="Hi", background=True, stream=True, max_output_tokens=200)
    first = [next(streamed) for _ in range(3)]
    streamed.close()  # the response goes on without its client
    response_id = first[0].response.id  # type: ignore[union-attr]
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=first[-1].sequence_number))
    assert [e.sequence_number for e in (*first, *rest)] == list(range(len(first) + len(rest)))
    running = client.responses.create(model="demo", input="Hi", background=True, extra_body=endless)
    assert client.responses.cancel(running.id).status == "cancelled"
    assert client.responses.retrieve(running.id).status == "cancelled"
    client.responses.delete(running.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(running.id)


def test_batches(clients: tuple[OpenAI, Anthropic]) -> None:
    client, _ = clients
    lines = [line(1, 5), line(2, 5, temperature="hot"), line(3, 5)]
    file = client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    batches = [
        client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window=WINDOW,
            metadata={"n": str(n)},
            output_expires_after=expiry,
        )
        for n in range(3)
    ]
    done = ended_batch(client, batches[0].id)
    good, bad = results(client, done.output_file_id), results(client, done.error_file_id)
    assert done.request_counts
    assert done.request_counts.model_dump() == {"total": 3, "completed": 2, "failed": 1}
    assert done.usage
    assert [each["custom_id"] for each in good] == ["n1", "n3"]
    assert (bad[0]["custom_id"], bad[0]["response"]["status_code"]) == ("n2", 400)
    output = client.files.retrieve(done.output_file_id or "")
    assert output.expires_at == output.created_at + 3600
    ids = [batch.id for batch in batches]
    assert [batch.id for batch in client.batches.list(limit=2)] == ids[::-1]
    assert [batch.id for batch in client.batches.list(after=ids[2])] == ids[1::-1]
    many = client.files.create(file=("in.jsonl", b"\n".join(line(n, 400) for n in range(40))), purpose="batch")
    long = client.batches.create(input_file_id=many.id, endpoint="/v1/chat/completions", completion_window=WINDOW)
    assert client.batches.cancel(long.id).status == "cancelling"
    cancelled = ended_batch(client, long.id)
    assert cancelled.status == "cancelled"
    assert {each["error"]["code"] for each in results(client, cancelled.error_file_id) if each["error"]} == {
        "batch_cancelled"
    }


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 4}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 4}),
        ("/v1/chat/completions", {"messages": [MESSAGE], "max_tokens": 4}),
    ],
)
def test_batches_of_each_endpoint(clients: tuple[OpenAI, Anthropic], endpoint: Any, body: dict[str, Any]) -> None:
    client, _ = clients
    request = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": "demo", **body}}
    file = client.files.create(file=("in.jsonl", json.dumps(request).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=WINDOW)
    (found,) = results(client, ended_batch(client, batch.id).output_file_id)
    if endpoint == "/v1/responses":
        response = TypeAdapter(Response).validate_python(found["response"]["body"])
        assert client.responses.retrieve(response.id).output_text == response.output_text


def test_message_batches(clients: tuple[OpenAI, Anthropic]) -> None:
    _, client = clients
    params: Any = {"model": "demo", "max_tokens": 8, "messages": [MESSAGE]}
    wrong: Any = {"model": "demo", "max_tokens": 8, "messages": 5}
    ids = []
    for _ in range(3):
        requests: Any = [{"custom_id": "good", "params": params}, {"custom_id": "bad", "params": wrong}]
        ids.append(client.messages.batches.create(requests=requests).id)
    while (done := client.messages.batches.retrieve(ids[0])).processing_status != "ended":
        pass
    good, bad = list(client.messages.batches.results(ids[0]))
    assert (good.custom_id, good.result.type, bad.custom_id, bad.result.type) == (
        *("good", "succeeded"),
        *("bad", "errored"),
    )
    assert done.request_counts.model_dump() == {
        "canceled": 0, "errored": 1, "expired": 0, "processing": 0, "succeeded": 1
    }  # fmt: skip
    assert [batch.id for batch in client.messages.batches.list(limit=2)] == ids[::-1]
    assert [batch.id for batch in client.messages.batches.list(after_id=ids[2], limit=1).data] == [ids[1]]
    assert [batch.id for batch in client.messages.batches.list(before_id=ids[0]).data] == ids[:0:-1]
    long: Any = [{"custom_id": str(n), "params": {**params, "max_tokens": 400}} for n in range(40)]
    running = client.messages.batches.create(requests=long)
    cancelled = client.messages.batches.cancel(running.id)
    assert cancelled.processing_status in ("canceling", "ended")
    while client.messages.batches.retrieve(running.id).processing_status != "ended":
        pass
    assert "canceled" in {each.result.type for each in client.messages.batches.results(running.id)}
    assert client.messages.batches.delete(ids[0]).id == ids[0]
    with pytest.raises(AnthropicNotFound):
        client.messages.batches.retrieve(ids[0])
