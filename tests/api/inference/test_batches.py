"""The files and batches APIs of OpenAI and Anthropic, called by their official clients over a scripted model."""

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

import pytest
from anthropic import AsyncAnthropic
from anthropic import BadRequestError as AnthropicBadRequest
from anthropic.types.messages import MessageBatch
from openai import AsyncOpenAI, NotFoundError
from openai.types import Batch

from server.dialects.usage import Usage
from server.dialects.warnings import WARNING_HEADER
from server.routes import batches, conversations
from server.routes.batches import _message_result
from server.serving import batch_runner
from server.telemetry.record import REQUEST_ID
from server.transport.body import MAX_VALUES
from server.transport.internal import InternalReply
from tests.api.conftest import Api, Serve, until
from tests.api.scripted import CHATML, anthropic_client, serve_scripted
from tests.api.transport.test_keys import key_file

REPLIES = {f"number {n}": f"reply {n}" for n in range(50)}
ENDED = ("completed", "failed", "cancelled", "expired")


def serving(
    serve: Serve, steps: threading.Semaphore | None = None, **server: Any
) -> AbstractAsyncContextManager[tuple[Api, AsyncOpenAI]]:
    return serve_scripted(serve, REPLIES, steps, n_parallel=2, **server)


def chat_body(number: int, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": f"number {number}"}], "max_tokens": 20, **fields}


def line(number: int, **fields: Any) -> dict[str, Any]:
    """Return one line of a batch's input file."""
    body = chat_body(number, **fields)
    return {"custom_id": f"id-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


async def create_batch(client: AsyncOpenAI, file_id: str, **fields: Any) -> Batch:
    endpoint: Any = "/v1/chat/completions"
    return await client.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h", **fields)


async def start_batch(client: AsyncOpenAI, lines: Sequence[Any]) -> Batch:
    data = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines).encode()
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await create_batch(client, file.id, metadata={"k": "v"})


async def wait_for_end(client: AsyncOpenAI, batch_id: str) -> Batch:
    """Poll until the batch has ended. Each request yields to the event loop."""
    while (batch := await client.batches.retrieve(batch_id)).status not in ENDED:
        pass
    return batch


async def wait_for_message_batch(client: AsyncAnthropic, batch_id: str) -> MessageBatch:
    while (batch := await client.messages.batches.retrieve(batch_id)).processing_status != "ended":
        pass
    return batch


async def run_batch(client: AsyncOpenAI, lines: Sequence[Any]) -> Batch:
    return await wait_for_end(client, (await start_batch(client, lines)).id)


async def read_results(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    content = await client.files.content(file_id)
    return [json.loads(each) for each in content.text.splitlines()]


def file_form(**data: str) -> dict[str, Any]:
    """Return httpx's arguments for the upload of a file with these form fields."""
    return {"data": {"purpose": "batch", **data}, "files": {"file": b"x"}}


async def test_files_are_uploaded_listed_downloaded_and_deleted(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        file = await client.files.create(file=("a.txt", b"hello"), purpose="user_data")
        other = await client.files.create(file=("b.jsonl", b"{}"), purpose="batch")
        assert [each.id async for each in client.files.list(purpose="user_data")] == [file.id]
        assert (await client.files.content(file.id)).read() == b"hello"
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(NotFoundError):
            await client.files.retrieve(file.id)
        assert (await client.files.retrieve(other.id)).filename == "b.jsonl"
    assert (file.filename, file.bytes, file.purpose) == ("a.txt", 5, "user_data")


async def test_files_and_batches_are_listed_in_pages(serve: Serve) -> None:
    async with serving(serve) as (api, client):
        files = [(await client.files.create(file=(f"{n}.txt", b"x"), purpose="user_data")).id for n in range(3)]
        ascending = client.files.list(purpose="user_data", order="asc", limit=2)
        assert [each.id async for each in ascending] == files
        descending = client.files.list(purpose="user_data", after=files[2], order="desc")
        assert [each.id async for each in descending] == files[1::-1]
        batches = [(await start_batch(client, [line(n)])).id for n in range(3)]
        assert [each.id async for each in client.batches.list(after=batches[2])] == batches[1::-1]
        for batch_id in batches:
            await wait_for_end(client, batch_id)
        anthropic = anthropic_client(api)
        request: Any = {"custom_id": "one", "params": chat_body(4)}
        message_batches = anthropic.messages.batches
        ids = [(await message_batches.create(requests=[request])).id for _ in range(3)]
        for batch_id in ids:
            await wait_for_message_batch(anthropic, batch_id)
        assert [each.id for each in (await message_batches.list(after_id=ids[2], limit=1)).data] == [ids[1]]
        assert [each.id for each in (await message_batches.list(before_id=ids[0])).data] == ids[:0:-1]


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"data": {"purpose": "batch"}, "files": {"other": b"x"}}, "file"),
        (file_form(purpose="fun"), "purpose"),
        (file_form(**{"expires_after[anchor]": "now"}), "expires_after.anchor"),
        (file_form(**{"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"}), "expires_after.seconds"),
    ],
)
async def test_upload_error_names_the_invalid_field(api: Api, form: dict[str, Any], param: str) -> None:
    reply = await api.client.post("/v1/files", **form)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_batch_results_are_in_the_order_of_the_input_file(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        order = [7, 3, 9, 1]
        done = await run_batch(client, [line(n, stream=True) for n in order])
        results = await read_results(client, done.output_file_id)
        assert [each.id async for each in client.batches.list()] == [done.id]
    assert done.request_counts
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (4, 4, 0)
    assert (done.error_file_id, done.metadata) == (None, {"k": "v"})
    assert [each["custom_id"] for each in results] == [f"id-{n}" for n in order]
    texts = [each["response"]["body"]["choices"][0]["message"]["content"] for each in results]
    assert texts == [f"reply {n}" for n in order]


async def test_batch_sends_no_fields_that_the_endpoint_does_not_know(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    embedder = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
    caplog.set_level("INFO", "server.dialects.warnings")
    embedding = line(2) | {"url": "/v1/embeddings", "body": {"input": "hi", "model": "embedder"}}
    async with serving(serve, models={"embedder": embedder}) as (_, client):
        assert (await run_batch(client, [line(1)])).status == "completed"
        data = json.dumps(embedding).encode()
        file = await client.files.create(file=("in.jsonl", data), purpose="batch")
        batch = await client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
        done = await wait_for_end(client, batch.id)
    assert (done.status, done.error_file_id) == ("completed", None)
    assert "is ignored" not in caplog.text


def test_batch_file_may_begin_with_a_byte_order_mark() -> None:
    parsed = batch_runner.read_lines(json.dumps(line(1)).encode("utf-8-sig"), "/v1/chat/completions")
    assert (len(parsed.lines), parsed.errors) == (1, [])


async def test_batch_runs_while_an_embedding_model_is_loaded(serve: Serve) -> None:
    embedder = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
    async with serving(serve, models={"embedder": embedder}) as (api, client):
        await api.expect("POST /v1/embeddings", {"input": "hi", "model": "embedder"})
        assert (await run_batch(client, [line(1)])).status == "completed"


async def test_failed_requests_of_a_batch_are_in_its_error_file(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        done = await run_batch(client, [line(1), line(2, temperature="hot"), line(3, max_tokens="many")])
        good, bad = await read_results(client, done.output_file_id), await read_results(client, done.error_file_id)
    assert done.status == "completed"
    assert [each["custom_id"] for each in good] == ["id-1"]
    assert [(each["custom_id"], each["response"]["status_code"]) for each in bad] == [("id-2", 400), ("id-3", 400)]
    assert "temperature" in bad[0]["response"]["body"]["error"]["message"]


async def test_batch_requests_count_against_the_token_quota_of_the_key(serve: Serve, tmp_path: Path) -> None:
    keys = key_file(tmp_path, **{"sk-one": {"tokens_per_day": 1}})
    async with serving(serve, keys_file=str(keys)) as (_, client):
        done = await run_batch(client, [line(n) for n in range(20)])
        bad = await read_results(client, done.error_file_id)
    assert done.request_counts
    assert 0 < done.request_counts.completed < 20
    assert {each["response"]["status_code"] for each in bad} == {429}
    assert "tokens per day" in bad[0]["response"]["body"]["error"]["message"]


async def test_batch_that_waits_for_capacity_does_not_stop_the_batches_of_other_owners(
    serve: Serve, tmp_path: Path
) -> None:
    keys, n_refused = key_file(tmp_path, **{"sk-one": {}, "sk-two": {}}), 0
    async with serving(serve, keys_file=str(keys)) as (api, one), asyncio.timeout(60):
        runner: batch_runner.BatchRunner = api.app.state.services.batches
        call = runner.call

        async def refuse_first_owner(key_name: str, path: str, body: bytes) -> InternalReply:
            nonlocal n_refused
            if key_name != "sk-one":
                return await call(key_name, path, body)
            n_refused += 1
            return InternalReply(503, {b"retry-after": b"3600"}, b"{}")

        runner.call = refuse_first_owner
        waiting = await start_batch(one, [line(n) for n in range(20)])
        await until(lambda: n_refused == runner.n_parallel())
        two = one.with_options(api_key="sk-two")
        done = await run_batch(two, [line(n) for n in range(6)])
        await one.batches.cancel(waiting.id)
        cancelled = await wait_for_end(one, waiting.id)
    assert (done.status, cancelled.status) == ("completed", "cancelled")
    assert n_refused < 20, "further requests of a batch start while as many as may run wait"


async def test_batch_of_a_model_that_cannot_load_does_not_stop_those_of_other_models(serve: Serve) -> None:
    other = {"other": CHATML["demo"] | {"path": "other.gguf"}}
    async with serve_scripted(serve, REPLIES, models=other) as (api, client), asyncio.timeout(60):
        runner: batch_runner.BatchRunner = api.app.state.services.batches
        call, paths = runner.call, list[str]()

        async def refuse_other(key_name: str, path: str, body: bytes) -> InternalReply:
            model = json.loads(body)["model"]
            paths.append(model)
            return (
                await call(key_name, path, body)
                if model == "demo"
                else InternalReply(503, {b"retry-after": b"3600"}, b"{}")
            )

        runner.call = refuse_other
        waiting = [await start_batch(client, [line(n, model="other") for n in range(9)]) for _ in range(2)]
        assert (await run_batch(client, [line(n) for n in range(6)])).status == "completed"
        assert paths.count("other") == runner.n_parallel(), "the second batch of the model waits for the first"
        for each in waiting:
            await client.batches.cancel(each.id)
            assert (await wait_for_end(client, each.id)).status == "cancelled"


async def test_batch_with_invalid_lines_fails_and_lists_them(serve: Serve) -> None:
    async with serving(serve) as (_, client):
        lines = [
            line(1),
            "{",
            line(1),
            {**line(2), "url": "/v1/embeddings"},
            {**line(3), "method": "GET"},
            "5",
        ]
        batch = await start_batch(client, lines)
        empty = await start_batch(client, [""])
        wrong = await start_batch(client, ["{"] * 1000)
    assert batch.status == empty.status == wrong.status == "failed"
    assert len(wrong.errors.data or []) == batch_runner.MAX_ERRORS  # type: ignore[union-attr]
    assert batch.errors
    assert [each.line for each in batch.errors.data or []] == [2, 3, 4, 5, 6]


def test_line_with_too_many_json_values_is_rejected_before_parsing() -> None:
    parsed = batch_runner.read_lines(b"[" + b"[1]," * MAX_VALUES, "/v1/chat/completions")
    assert [(each["code"], each["line"]) for each in parsed.errors] == [("invalid_json_line", 1)]
    assert str(MAX_VALUES) in parsed.errors[0]["message"]


def test_requests_of_a_large_batch_are_sorted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sort holds the GIL. One sort of all requests of the largest batch blocked the server for half a second."""
    lengths: list[int] = []

    def watched(values: Any, **options: Any) -> list[Any]:
        lengths.append(len(values))
        return sorted(values, **options)

    monkeypatch.setattr(batch_runner, "sorted", watched, raising=False)
    n = 20_000
    lines = (json.dumps(line(number * 7919 % n)) for number in range(n))
    parsed = batch_runner.read_lines("\n".join(lines).encode(), "/v1/chat/completions")
    prompts = [json.loads(each.body)["messages"][0]["content"] for each in parsed.lines]
    assert prompts == sorted(prompts)
    assert max(lengths) < 5000


def test_reading_a_batch_does_not_keep_the_parsed_values_of_all_lines() -> None:
    """A parsed number takes 36 bytes: all values of a file of 64 MiB could take a gigabyte."""
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
    n_lines, n_errors, growth = map(int, done.stdout.split())
    assert (n_lines, n_errors) == (40, 0)
    assert growth < 6, "times the size of the file"


async def test_cancelled_requests_of_a_batch_are_in_its_error_file(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serving(serve, steps) as (_, client):
        batch = await start_batch(client, [line(n, ignore_eos=True, max_tokens=500) for n in range(10)])
        cancelling = await client.batches.cancel(batch.id)
        steps.release(100_000)
        done = await wait_for_end(client, batch.id)
        bad = await read_results(client, done.error_file_id)
    assert cancelling.status == "cancelling"
    assert done.status == "cancelled"
    assert {each["error"]["code"] for each in bad} == {"batch_cancelled"}


async def test_batch_that_is_cancelled_while_it_expires_ends(serve: Serve) -> None:
    started, expiring, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def end_late(*_: object) -> Never:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            expiring.set()
            await may_end.wait()
        raise AssertionError

    async with serving(serve) as (api, client), asyncio.timeout(60):
        runner: batch_runner.BatchRunner = api.app.state.services.batches
        runner.call = end_late
        batch = await start_batch(client, [line(1)])
        await started.wait()
        (limit,) = runner._limits.values()  # private: a batch expires after hours
        limit.reschedule(0)
        await expiring.wait()
        await client.batches.cancel(batch.id)
        try:
            await runner._look()
        finally:
            may_end.set()
        done = await wait_for_end(client, batch.id)
    assert done.status == "cancelled"


async def test_batch_continues_after_a_restart_without_repeating_requests(serve: Serve, tmp_path: Path) -> None:
    file = str(tmp_path / "state.sqlite3")
    steps = threading.Semaphore(30)
    async with serving(serve, steps, state=file, drain_s=0) as (first, client):
        batch = await start_batch(client, [line(n) for n in range(8)])
        while not (counts := (await client.batches.retrieve(batch.id)).request_counts) or not counts.completed:
            pass
        n_before = counts.completed
        steps.release(100_000)
    async with serving(serve, state=file) as (api, client):
        done = await wait_for_end(client, batch.id)
        results = await read_results(client, done.output_file_id)
    assert n_before > 0
    assert requests_run(first) + requests_run(api) == 8
    assert [each["custom_id"] for each in results] == [f"id-{n}" for n in range(8)]
    assert done.error_file_id is None


def requests_run(api: Api) -> int:
    """Return how many chat requests the server has answered. Works after the server has stopped."""
    text = api.app.state.services.metrics.render("")[0].decode()
    counts = re.findall(r'http_requests_total\{.*"POST".*"/v1/chat/completions".*"200".*\} (\S+)', text)
    return sum(int(float(n)) for n in counts)


async def test_replica_cancels_queued_batches_and_takes_over_from_a_stopped_replica(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_runner, "POLL_S", 0.01)
    file, steps = str(tmp_path / "state.sqlite3"), threading.Semaphore(0)
    async with serving(serve, state=file) as (api, client):
        async with serving(serve, steps, state=file, drain_s=0) as (_, second):
            running = await start_batch(second, [line(n) for n in range(4)])
            queued = await start_batch(second, [line(n) for n in range(4)])
            await client.batches.cancel(queued.id)  # through the other replica
            cancelled = await wait_for_end(second, queued.id)
            waiting = await client.batches.retrieve(running.id)
            n_before = requests_run(api)
            steps.release(100_000)
        done = await wait_for_end(client, running.id)
        results = await read_results(client, done.output_file_id)
    assert (cancelled.status, waiting.status, done.status, n_before) == ("cancelled", "in_progress", "completed", 0)
    assert [each["custom_id"] for each in results] == [f"id-{n}" for n in range(4)]


async def test_batch_reports_expiry_of_its_files_and_total_usage(serve: Serve) -> None:
    async with serving(serve, state_days=7) as (_, client):
        batch = await start_batch(client, [line(1), line(2)])
        input_file = await client.files.retrieve(batch.input_file_id)
        expiry = {"anchor": "created_at", "seconds": 3600}
        short_lived = await create_batch(client, batch.input_file_id, output_expires_after=expiry)
        ends = [await wait_for_end(client, each.id) for each in (batch, short_lived)]
        files = [await client.files.retrieve(each.output_file_id or "") for each in ends]
        results = await read_results(client, files[0].id)
    days = 7 * 86400
    lifetimes = [each.expires_at and each.expires_at - each.created_at for each in (input_file, *files)]
    assert lifetimes == [days, days, 3600]
    assert ends[0].usage
    assert ends[0].usage.total_tokens == sum(each["response"]["body"]["usage"]["total_tokens"] for each in results)
    assert ends[0].model == "demo"


async def test_long_bodies_and_batch_usage_are_parsed_in_worker_threads(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, list[bool]] = {}  # whether each call ran on the event loop
    loop = threading.get_ident()

    def watch(owner: Any, name: str, key: str) -> None:
        original = getattr(owner, name)

        def watched(*arguments: Any) -> Any:
            threads.setdefault(key, []).append(threading.get_ident() == loop)
            return original(*arguments)

        monkeypatch.setattr(owner, name, watched)

    watch(batches, "unused_fields", "batch")
    watch(conversations, "unused_fields", "conversation")
    watch(Usage, "__add__", "usage")
    padding = {"metadata": {}, "padding": "x" * (1 << 15)}
    async with serving(serve) as (api, client):
        conversation = await client.conversations.create()
        before = await run_batch(client, [line(n) for n in range(5)])
        threads.clear()
        batch = await create_batch(client, before.input_file_id, extra_body=padding)
        assert (await wait_for_end(client, batch.id)).usage
        updated = await api.client.post(f"/v1/conversations/{conversation.id}", json=padding)
    assert (updated.status_code, "'padding' is ignored" in updated.headers[WARNING_HEADER]) == (200, True)
    assert (threads["batch"], threads["conversation"]) == ([False], [False])
    assert sorted(threads["usage"]) == [*[False] * 5, True], "only both files' sums are added on the event loop"


async def test_batch_error_names_the_invalid_field(api: Api) -> None:
    valid = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": "file-1"}
    too_soon = {"anchor": "created_at", "seconds": 5}
    for fields, param in (
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"metadata": 5}, "metadata"),
        ({"output_expires_after": too_soon}, "output_expires_after.seconds"),
    ):
        await api.expect("POST /v1/batches", valid | fields, 400, {"error": {"param": param}})


async def test_interactive_request_is_served_while_a_batch_uses_every_slot(serve: Serve) -> None:
    steps = threading.Semaphore(20)
    async with serving(serve, steps) as (api, client):
        batch = await start_batch(client, [line(n, ignore_eos=True, max_tokens=1500) for n in range(6)])
        loaded = api.loaded()
        while not loaded.busy:
            await client.batches.retrieve(batch.id)
        steps.release(10_000)
        reply = await client.chat.completions.create(**chat_body(5))
        running = await client.batches.retrieve(batch.id)
        steps.release(100_000)
        await client.batches.cancel(batch.id)
        await wait_for_end(client, batch.id)
    assert reply.choices[0].message.content == "reply 5"
    assert running.request_counts
    assert running.request_counts.completed < 6


async def test_anthropic_message_batches_report_results_and_errors(serve: Serve) -> None:
    async with serving(serve) as (api, _):
        client = anthropic_client(api)
        good_request: Any = {"custom_id": "good", "params": chat_body(4)}
        bad_request: Any = {"custom_id": "bad", "params": chat_body(4, messages=5)}
        batch = await client.messages.batches.create(requests=[good_request, bad_request])
        done = await wait_for_message_batch(client, batch.id)
        good, bad = [each async for each in await client.messages.batches.results(batch.id)]
        assert [each.id async for each in client.messages.batches.list()] == [batch.id]
        await client.messages.batches.delete(batch.id)
        assert [each.id async for each in client.messages.batches.list()] == []
        with pytest.raises(AnthropicBadRequest):
            await client.messages.batches.create(requests=[good_request, good_request])
    assert (done.request_counts.succeeded, done.request_counts.errored) == (1, 1)
    assert good.result.type == "succeeded"
    assert [getattr(part, "text", None) for part in good.result.message.content] == ["reply 4"]
    assert bad.result.type == "errored"
    assert bad.result.error.error.type == "invalid_request_error"


def test_message_batch_error_has_the_id_of_its_own_request() -> None:
    """The error must not have the id of the request that downloads the results."""
    token = REQUEST_ID.set("of-the-download")
    result = {"status_code": 404, "body": {"error": {"code": 404, "message": "no"}}}
    ids = [_message_result({**result, "request_id": id_})["error"]["request_id"] for id_ in ("of-the-line", "")]
    REQUEST_ID.reset(token)
    assert ids == ["of-the-line", None]
