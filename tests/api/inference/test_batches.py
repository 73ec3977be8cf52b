"""Files and batches, through the official clients over a scripted model."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Never

import httpx2
import pytest
from anthropic import AsyncAnthropic
from anthropic import BadRequestError as AnthropicBadRequest
from openai import AsyncOpenAI, NotFoundError
from openai.types import Batch

from server.dialects.usage import Usage
from server.dialects.warnings import WARNING_HEADER
from server.routes import batches, conversations
from server.routes.batches import _message_result
from server.serving import batch_runner
from server.telemetry.record import REQUEST_ID
from server.transport.body import MAX_VALUES
from tests.api.conftest import Api, Serve
from tests.api.scripted import opened as serving
from tests.api.transport.test_keys import key_file

REPLIES = {f"number {n}": f"reply {n}" for n in range(50)}
ENDED = ("completed", "failed", "cancelled", "expired")


def opened(
    serve: Serve, steps: threading.Semaphore | None = None, **server: Any
) -> AbstractAsyncContextManager[tuple[Api, AsyncOpenAI]]:
    return serving(serve, REPLIES, steps, n_parallel=2, **server)


def chat(number: int, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": f"number {number}"}], "max_tokens": 20, **fields}


def line(number: int, **fields: Any) -> dict[str, Any]:
    body = chat(number, **fields)
    return {"custom_id": f"id-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


async def start(client: AsyncOpenAI, lines: Sequence[Any]) -> Batch:
    data = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines).encode()
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"k": "v"}
    )


async def ended(api: Api, client: AsyncOpenAI, batch_id: str) -> Batch:
    """Wait for the batch's end; each look yields to the event loop through a request."""
    while (batch := await client.batches.retrieve(batch_id)).status not in ENDED:
        pass
    return batch


async def output(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    content = await client.files.content(file_id)
    return [json.loads(each) for each in content.text.splitlines()]


def upload(**data: str) -> dict[str, Any]:
    """A form with a file."""
    return {"data": {"purpose": "batch", **data}, "files": {"file": b"x"}}


def anthropic(api: Api) -> AsyncAnthropic:
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(api.app), base_url="http://test")
    return AsyncAnthropic(base_url="http://test", api_key="sk-one", http_client=http, max_retries=0)


async def test_a_file_is_uploaded_listed_read_and_deleted(serve: Serve) -> None:
    async with opened(serve) as (_, client):
        file = await client.files.create(file=("a.txt", b"hello"), purpose="user_data")
        other = await client.files.create(file=("b.jsonl", b"{}"), purpose="batch")
        assert [each.id async for each in client.files.list(purpose="user_data")] == [file.id]
        assert (await client.files.content(file.id)).read() == b"hello"
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(NotFoundError):
            await client.files.retrieve(file.id)
        assert (await client.files.retrieve(other.id)).filename == "b.jsonl"
    assert (file.filename, file.bytes, file.purpose) == ("a.txt", 5, "user_data")


async def test_lists_have_pages(serve: Serve) -> None:
    async with opened(serve) as (api, client):
        files = [(await client.files.create(file=(f"{n}.txt", b"x"), purpose="user_data")).id for n in range(3)]
        upwards = client.files.list(purpose="user_data", order="asc", limit=2)
        assert [each.id async for each in upwards] == files
        before = client.files.list(purpose="user_data", after=files[2], order="desc")
        assert [each.id async for each in before] == files[1::-1]
        batches = [(await start(client, [line(n)])).id for n in range(3)]
        assert [each.id async for each in client.batches.list(after=batches[2])] == batches[1::-1]
        for batch_id in batches:
            await ended(api, client, batch_id)
        claude = anthropic(api)
        request: Any = {"custom_id": "one", "params": chat(4)}
        ids = [(await claude.messages.batches.create(requests=[request])).id for _ in range(3)]
        for batch_id in ids:
            while (await claude.messages.batches.retrieve(batch_id)).processing_status != "ended":
                pass
        assert [each.id for each in (await claude.messages.batches.list(after_id=ids[2], limit=1)).data] == [ids[1]]
        assert [each.id for each in (await claude.messages.batches.list(before_id=ids[0])).data] == ids[:0:-1]


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"data": {"purpose": "batch"}, "files": {"other": b"x"}}, "file"),
        (upload(purpose="fun"), "purpose"),
        (upload(**{"expires_after[anchor]": "now"}), "expires_after.anchor"),
        (upload(**{"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"}), "expires_after.seconds"),
    ],
)
async def test_a_wrong_upload_names_the_field(api: Api, form: dict[str, Any], param: str) -> None:
    reply = await api.client.post("/v1/files", **form)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_batch_writes_its_results_in_file_order(serve: Serve) -> None:
    async with opened(serve) as (api, client):
        order = [7, 3, 9, 1]
        batch = await start(client, [line(n, stream=True) for n in order])
        done = await ended(api, client, batch.id)
        results = await output(client, done.output_file_id)
        assert [each.id async for each in client.batches.list()] == [batch.id]
    assert done.request_counts
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (4, 4, 0)
    assert (done.error_file_id, done.metadata) == (None, {"k": "v"})
    assert [each["custom_id"] for each in results] == [f"id-{n}" for n in order]
    texts = [each["response"]["body"]["choices"][0]["message"]["content"] for each in results]
    assert texts == [f"reply {n}" for n in order]


async def test_a_batch_runs_beside_a_model_that_only_embeds(serve: Serve) -> None:
    embedder = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
    async with opened(serve, models={"embedder": embedder}) as (api, client):
        embeds = {"input": "hi", "model": "embedder"}
        assert (await api.client.post("/v1/embeddings", json=embeds)).status_code == 200
        done = await ended(api, client, (await start(client, [line(1)])).id)
    assert done.status == "completed"


async def test_a_request_that_fails_is_in_the_error_file(serve: Serve) -> None:
    async with opened(serve) as (api, client):
        batch = await start(client, [line(1), line(2, temperature="hot"), line(3, max_tokens="many")])
        done = await ended(api, client, batch.id)
        good, bad = await output(client, done.output_file_id), await output(client, done.error_file_id)
    assert done.status == "completed"
    assert [each["custom_id"] for each in good] == ["id-1"]
    assert [(each["custom_id"], each["response"]["status_code"]) for each in bad] == [("id-2", 400), ("id-3", 400)]
    assert "temperature" in bad[0]["response"]["body"]["error"]["message"]


async def test_a_batch_may_not_use_more_tokens_than_its_key(serve: Serve, tmp_path: Path) -> None:
    keys = key_file(tmp_path, **{"sk-one": {"tokens_per_day": 1}})
    async with opened(serve, keys_file=str(keys)) as (api, client):
        done = await ended(api, client, (await start(client, [line(n) for n in range(20)])).id)
        bad = await output(client, done.error_file_id)
    assert done.request_counts
    assert 0 < done.request_counts.completed < 20
    assert {each["response"]["status_code"] for each in bad} == {429}
    assert "tokens per day" in bad[0]["response"]["body"]["error"]["message"]


async def test_a_wrong_file_fails_with_the_lines(serve: Serve) -> None:
    async with opened(serve) as (_, client):
        lines = [line(1), "{", line(1), {**line(2), "url": "/v1/embeddings"}, {**line(3), "method": "GET"}, "5"]
        batch = await start(client, lines)
        empty = await start(client, [""])
        wrong = await start(client, ["{"] * 1000)
    assert batch.status == empty.status == wrong.status == "failed"
    assert len(wrong.errors.data or []) == batch_runner.MAX_ERRORS  # type: ignore[union-attr]
    assert batch.errors
    assert [each.line for each in batch.errors.data or []] == [2, 3, 4, 5, 6]


def test_a_line_of_millions_of_values_is_wrong_and_not_parsed() -> None:
    found = batch_runner.read_lines(b"[" + b"[1]," * MAX_VALUES, "/v1/chat/completions")
    assert [(each["code"], each["line"]) for each in found.errors] == [("invalid_json_line", 1)]
    assert str(MAX_VALUES) in found.errors[0]["message"]


def test_a_large_file_is_sorted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sort holds the GIL: all requests of the largest batch in one go stalled the server for half a second."""
    lengths: list[int] = []

    def watched(values: Any, **options: Any) -> list[Any]:
        lengths.append(len(values))
        return sorted(values, **options)

    monkeypatch.setattr(batch_runner, "sorted", watched, raising=False)
    n = 20_000
    lines = (json.dumps(line(number * 7919 % n)) for number in range(n))
    found = batch_runner.read_lines("\n".join(lines).encode(), "/v1/chat/completions")
    prompts = [json.loads(each.body)["messages"][0]["content"] for each in found.lines]
    assert prompts == sorted(prompts)
    assert max(lengths) < 5000


def test_a_file_is_not_in_memory_as_the_values_of_all_its_lines() -> None:
    """Each number takes 36 bytes: a file of 64 MiB could take a gigabyte."""
    program = r"""
import re
from server.serving.batch_runner import read_lines
line = b'{"custom_id":"%d","method":"POST","url":"/v1/chat/completions","body":{"x":[' + b"999," * 100_000 + b"1]}}"
data = b"\n".join(line % number for number in range(40))
def peak():
    return int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
before = peak()
found = read_lines(data, "/v1/chat/completions")
print(len(found.lines), len(found.errors), (peak() - before) // len(data))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    n_lines, n_errors, n_times = map(int, done.stdout.split())
    assert (n_lines, n_errors) == (40, 0)
    assert n_times < 6


async def test_a_cancelled_batch_keeps_its_results(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with opened(serve, steps) as (api, client):
        batch = await start(client, [line(n, ignore_eos=True, max_tokens=500) for n in range(10)])
        cancelling = await client.batches.cancel(batch.id)
        steps.release(100_000)
        done = await ended(api, client, batch.id)
        bad = await output(client, done.error_file_id)
    assert cancelling.status == "cancelling"
    assert done.status == "cancelled"
    assert {each["error"]["code"] for each in bad} == {"batch_cancelled"}


async def test_a_cancellation_that_meets_the_expiry_ends_the_batch(serve: Serve) -> None:
    begun, ending, leave = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn(*_: object) -> Never:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ending.set()
            await leave.wait()
        raise AssertionError

    async with opened(serve) as (api, client), asyncio.timeout(60):
        runner: batch_runner.BatchRunner = api.app.state.services.batches
        runner.call = stubborn
        batch = await start(client, [line(1)])
        await begun.wait()
        (limit,) = runner._limits.values()
        limit.reschedule(0)  # as if it had expired
        await ending.wait()
        await client.batches.cancel(batch.id)
        try:
            await runner._look()
        finally:
            leave.set()
        done = await ended(api, client, batch.id)
    assert done.status == "cancelled"


async def test_a_batch_continues_after_a_restart_and_no_request_runs_twice(serve: Serve, tmp_path: Path) -> None:
    file = str(tmp_path / "state.sqlite3")
    steps = threading.Semaphore(30)
    async with opened(serve, steps, state=file, drain_s=0) as (first, client):
        batch = await start(client, [line(n) for n in range(8)])
        while not (counts := (await client.batches.retrieve(batch.id)).request_counts) or not counts.completed:
            pass
        n_before = counts.completed
        steps.release(100_000)
    async with opened(serve, state=file) as (api, client):
        done = await ended(api, client, batch.id)
        results = await output(client, done.output_file_id)
    assert n_before > 0
    assert requests_run(first) + requests_run(api) == 8
    assert [each["custom_id"] for each in results] == [f"id-{n}" for n in range(8)]
    assert done.error_file_id is None


def requests_run(api: Api) -> int:
    """Return how many chats the server has answered, also after its end."""
    text = api.app.state.services.metrics.render("")[0].decode()
    found = re.findall(r'http_requests_total\{.*"POST".*"/v1/chat/completions".*"200".*\} (\S+)', text)
    return sum(int(float(n)) for n in found)


async def test_a_batch_that_waits_for_another_one_can_be_cancelled(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with opened(serve, steps) as (api, client):
        first = await start(client, [line(n) for n in range(3)])
        second = await start(client, [line(n) for n in range(3)])
        await client.batches.cancel(second.id)
        cancelled = await ended(api, client, second.id)
        waiting = await client.batches.retrieve(first.id)
        steps.release(100_000)
        done = await ended(api, client, first.id)
    assert (cancelled.status, waiting.status, done.status) == ("cancelled", "in_progress", "completed")


async def test_a_batch_is_run_by_its_server_and_by_another_one_after_its_end(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_runner, "POLL_S", 0.01)
    file, steps = str(tmp_path / "state.sqlite3"), threading.Semaphore(0)
    async with opened(serve, state=file) as (api, client):
        async with opened(serve, steps, state=file, drain_s=0) as (second_api, second):
            left = await start(second, [line(n) for n in range(4)])
            stopped = await start(second, [line(n) for n in range(4)])
            await client.batches.cancel(stopped.id)  # through the other server
            cancelled = await ended(second_api, second, stopped.id)
            waiting = await client.batches.retrieve(left.id)
            n_before = requests_run(api)
            steps.release(100_000)
        done = await ended(api, client, left.id)
        results = await output(client, done.output_file_id)
    assert (cancelled.status, waiting.status, done.status, n_before) == ("cancelled", "in_progress", "completed", 0)
    assert [each["custom_id"] for each in results] == [f"id-{n}" for n in range(4)]


async def test_files_of_a_batch_expire_and_its_usage_is_summed(serve: Serve) -> None:
    async with opened(serve, state_days=7) as (api, client):
        batch = await start(client, [line(1), line(2)])
        given = await client.files.retrieve(batch.input_file_id)
        kept = await client.batches.create(
            input_file_id=batch.input_file_id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            output_expires_after={"anchor": "created_at", "seconds": 3600},
        )
        ends = [await ended(api, client, each.id) for each in (batch, kept)]
        files = [await client.files.retrieve(each.output_file_id or "") for each in ends]
        results = await output(client, files[0].id)
    days = 7 * 86400
    assert [each.expires_at and each.expires_at - each.created_at for each in (given, *files)] == [days, days, 3600]
    assert ends[0].usage
    assert ends[0].usage.total_tokens == sum(each["response"]["body"]["usage"]["total_tokens"] for each in results)
    assert ends[0].model == "demo"


async def test_a_long_body_and_the_usage_of_a_batch_are_read_beside_the_event_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, list[bool]] = {}  # for each call, whether it was on the event loop
    loop = threading.get_ident()

    def watch(of: Any, name: str, key: str) -> None:
        original = getattr(of, name)

        def watched(*arguments: Any) -> Any:
            threads.setdefault(key, []).append(threading.get_ident() == loop)
            return original(*arguments)

        monkeypatch.setattr(of, name, watched)

    watch(batches, "unused_fields", "batch")
    watch(conversations, "unused_fields", "conversation")
    watch(Usage, "__add__", "usage")
    padding = {"metadata": {}, "padding": "x" * (1 << 15)}
    async with opened(serve) as (api, client):
        conversation = await client.conversations.create()
        before = await ended(api, client, (await start(client, [line(n) for n in range(5)])).id)
        threads.clear()
        batch = await client.batches.create(
            input_file_id=before.input_file_id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            extra_body=padding,
        )
        assert (await ended(api, client, batch.id)).usage
        updated = await api.client.post(f"/v1/conversations/{conversation.id}", json=padding)
    assert (updated.status_code, "'padding' is ignored" in updated.headers[WARNING_HEADER]) == (200, True)
    assert (threads["batch"], threads["conversation"]) == ([False], [False])
    assert sorted(threads["usage"]) == [*[False] * 5, True], "only both files' sums are added on the event loop"


async def test_a_batch_needs_a_file_of_its_own_client(serve: Serve) -> None:
    async with opened(serve, api_keys=["sk-one", "sk-two"]) as (api, client):
        file = await client.files.create(file=("in.jsonl", json.dumps(line(1)).encode()), purpose="batch")
        other = client.with_options(api_key="sk-two")
        with pytest.raises(NotFoundError):
            await other.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        batch = await start(client, [line(1)])
        with pytest.raises(NotFoundError):
            await other.batches.retrieve(batch.id)
        assert (await ended(api, client, batch.id)).status == "completed"


async def test_a_wrong_batch_names_the_field(api: Api) -> None:
    right = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": "file-1"}
    soon = {"anchor": "created_at", "seconds": 5}
    for fields, param in (
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"metadata": 5}, "metadata"),
        ({"output_expires_after": soon}, "output_expires_after.seconds"),
    ):
        await api.expect("POST /v1/batches", right | fields, 400, {"error": {"param": param}})


async def test_a_live_request_is_served_while_a_batch_holds_every_slot(serve: Serve) -> None:
    steps = threading.Semaphore(20)
    async with opened(serve, steps) as (api, client):
        batch = await start(client, [line(n, ignore_eos=True, max_tokens=1500) for n in range(6)])
        loaded = api.loaded()
        while not loaded.busy:
            await client.batches.retrieve(batch.id)
        steps.release(10_000)
        reply = await client.chat.completions.create(**chat(5))
        still = await client.batches.retrieve(batch.id)
        steps.release(100_000)
        await client.batches.cancel(batch.id)
        await ended(api, client, batch.id)
    assert reply.choices[0].message.content == "reply 5"
    assert still.request_counts
    assert still.request_counts.completed < 6


async def test_anthropics_batches(serve: Serve) -> None:
    async with opened(serve) as (api, _):
        client = anthropic(api)
        requests: Any = [{"custom_id": "good", "params": chat(4)}, {"custom_id": "bad", "params": chat(4, messages=5)}]
        batch = await client.messages.batches.create(requests=requests)
        while (done := await client.messages.batches.retrieve(batch.id)).processing_status != "ended":
            pass
        good, bad = [each async for each in await client.messages.batches.results(batch.id)]
        assert [each.id async for each in client.messages.batches.list()] == [batch.id]
        await client.messages.batches.delete(batch.id)
        assert [each.id async for each in client.messages.batches.list()] == []
        with pytest.raises(AnthropicBadRequest):
            await client.messages.batches.create(requests=[requests[0], requests[0]])
    assert (done.request_counts.succeeded, done.request_counts.errored) == (1, 1)
    assert good.result.type == "succeeded"
    assert [getattr(part, "text", None) for part in good.result.message.content] == ["reply 4"]
    assert bad.result.type == "errored"
    assert bad.result.error.error.type == "invalid_request_error"


def test_an_error_in_another_format_has_the_id_of_its_own_request() -> None:
    token = REQUEST_ID.set("of-the-download")
    result = {"status_code": 404, "request_id": "of-the-line", "body": {"error": {"code": 404, "message": "no"}}}
    found = [_message_result({**result, "request_id": id_})["error"]["request_id"] for id_ in ("of-the-line", "")]
    REQUEST_ID.reset(token)
    assert found == ["of-the-line", None]
