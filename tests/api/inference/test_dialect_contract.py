"""The contract of all dialects: text, calls, reasoning, usage, stop strings, schemas, images, errors, cancellation.

The test file of a dialect tests only its own features. `dialects.py` has a client for each dialect.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from tests.api.conftest import Api, Serve
from tests.api.inference.dialects import (
    BY_NAME,
    SCHEMA,
    Answer,
    Dialect,
    Ollama,
    Query,
    dialects_with,
    every_dialect,
    tool_calls,
)
from tests.api.scripted import CHATML, TURN
from tests.api.streams import posting
from tests.support.fakes import FakeLoader, FakeRunner

ALIASES = {
    "/chat/completions": BY_NAME["chat"],
    "/completions": BY_NAME["native"],
    "/responses": BY_NAME["responses"],
}
CONTEXT_EXCEEDED: dict[str, str | int] = {"chat": "context_length_exceeded", "completions": "context_length_exceeded"}
CONTEXT_EXCEEDED |= {"responses": "context_length_exceeded", "native": 400}
"""The `code` of the error for a prompt longer than the context. Agents compact their history when they receive it."""


@asynccontextmanager
async def replying(serve: Serve, reply: str, after_tool: str = "", **runner: Any) -> AsyncIterator[Api]:
    """Serve a model that answers "Hi", as a chat or plain prompt, with `reply`, and tool results with `after_tool`."""
    replies = {f"Hi{TURN}": reply, "Hi": reply, f"</tool_response>{TURN}": after_tool}
    async with serve(FakeLoader(**{"n_ctx_seq": 2048, "replies": replies, **runner}), models=CHATML) as api:
        yield api


async def generate(api: Api, dialect: Dialect, query: Query, *, stream: bool) -> Answer:
    mode = dialect.stream_fields if stream else {"stream": False}
    reply = await api.expect(f"POST {dialect.path}", dialect.body(query) | mode)
    kind = dialect.stream_type if stream else "application/json"
    assert reply.headers["content-type"].startswith(kind)
    return dialect.streamed(reply.text) if stream else dialect.whole(reply.json())


async def generate_both(api: Api, dialect: Dialect, query: Query = Query()) -> Answer:  # noqa: B008 (frozen)
    """Send `query` without and with streaming. Both replies must be equal except for ids. Return the first."""
    whole = await generate(api, dialect, query, stream=False)
    streamed = await generate(api, dialect, query, stream=True)
    for name in ("text", "reasoning", "reason", "n_prompt", "n_output"):
        assert getattr(streamed, name) == getattr(whole, name), name
    assert [call[1:] for call in streamed.calls] == [call[1:] for call in whole.calls]
    return whole


@every_dialect
async def test_stream_and_plain_reply_are_equal(serve: Serve, dialect: Dialect) -> None:
    async with replying(serve, "Héllo 👋 there!") as api:
        answer = await generate_both(api, dialect)
    assert (answer.text, answer.reasoning, answer.calls) == ("Héllo 👋 there!", "", [])
    assert answer.reason == dialect.finish_reasons["end"]


@every_dialect
async def test_usage_counts_prompt_output_and_cached_tokens(serve: Serve, dialect: Dialect) -> None:
    async with replying(serve, "Hello there!") as api:
        query = Query(text="Please say: Hi")
        first, second = [await generate(api, dialect, query, stream=stream) for stream in (False, True)]
    assert first.n_prompt == second.n_prompt == (34 if "chat" in dialect.features else 15)
    assert first.n_output == second.n_output == len("Hello there!") + 1
    assert first.n_cached in (0, None)
    assert second.n_cached is None or 0 < second.n_cached < second.n_prompt


@dialects_with(where=lambda dialect: bool(dialect.count_path))
@pytest.mark.parametrize("more", [{}, {"tools": True}, {"image": True}], ids=str)
async def test_count_endpoint_returns_the_prompt_tokens_of_the_reply(
    serve: Serve, dialect: Dialect, more: dict[str, Any]
) -> None:
    async with replying(serve, "Yes.", media=frozenset({"image"})) as api:
        counted = await api.expect(f"POST {dialect.count_path}", dialect.body(Query(limit=None, **more)))
        answer = await generate(api, dialect, Query(limit=1, **more), stream=False)
    assert answer.n_prompt == counted.json()["input_tokens"]


@every_dialect
async def test_token_limit_and_stop_string_end_the_reply_with_their_reasons(serve: Serve, dialect: Dialect) -> None:
    async with replying(serve, "yes STOP no") as api:
        limited = await generate_both(api, dialect, Query(limit=5))
        assert (limited.text, limited.n_output, limited.reason) == ("yes S", 5, dialect.finish_reasons["limit"])
        if "stop" in dialect.finish_reasons:
            stopped = await generate_both(api, dialect, Query(stop="STOP"))
            assert (stopped.text, stopped.reason) == ("yes ", dialect.finish_reasons["stop"])


@every_dialect
async def test_each_stream_event_is_sent_as_one_chunk(serve: Serve, dialect: Dialect) -> None:
    async with (
        replying(serve, "Hello there!") as api,
        posting(api.app, dialect.path, dialect.body(Query()) | {"stream": True}) as exchange,
    ):
        assert await exchange.start() == 200
        chunks = [chunk.decode() async for chunk in exchange.chunks()]
    end = "\n" if dialect.stream_type == "application/x-ndjson" else "\n\n"
    assert all(chunk.endswith(end) and chunk.count(end) == 1 for chunk in chunks)
    assert len(chunks) > 3


@pytest.mark.parametrize("path", ALIASES)
async def test_endpoint_aliases_reply_in_the_same_dialect(serve: Serve, path: str) -> None:
    dialect = ALIASES[path]
    async with replying(serve, "Hello there!") as api:
        answer = dialect.whole((await api.client.post(path, json=dialect.body(Query()))).json())
        if dialect.count_path:
            count_alias = dialect.count_path.removeprefix("/v1")
            counted = await api.expect(f"POST {count_alias}", dialect.body(Query(limit=None)))
            assert counted.json()["input_tokens"] == answer.n_prompt
    assert answer.text == "Hello there!"


@dialects_with("reasoning")
async def test_reasoning_is_separated_from_content(serve: Serve, dialect: Dialect) -> None:
    async with replying(serve, "<think>\nhmm\n</think>\n\nYes.") as api:
        answer = await generate_both(api, dialect)
    assert (answer.reasoning, answer.text) == ("hmm", "Yes.")


@dialects_with("calls")
async def test_tool_calls_have_names_and_arguments(serve: Serve, dialect: Dialect) -> None:
    async with replying(serve, "I look.\n" + tool_calls({"at": "sky"}, {"at": "sea"})) as api:
        answer = await generate_both(api, dialect, Query(tools=True, limit=300))
    assert answer.text.strip() == "I look."
    assert [call[1:] for call in answer.calls] == [("look", {"at": "sky"}), ("look", {"at": "sea"})]
    assert answer.reason == dialect.finish_reasons["calls"]


@dialects_with("calls")
async def test_tool_result_is_part_of_the_next_prompt(serve: Serve, dialect: Dialect) -> None:
    async with replying(serve, tool_calls({"at": "sky"}), "It is blue.") as api:
        first = await generate(api, dialect, Query(tools=True), stream=False)
        answer = await generate_both(api, dialect, Query(tools=True, previous=first, result="blue"))
    assert (answer.text, answer.calls, answer.reason) == ("It is blue.", [], dialect.finish_reasons["end"])
    assert answer.n_prompt > first.n_prompt


@dialects_with("schema")
async def test_schema_constrains_the_reply(serve: Serve, dialect: Dialect) -> None:
    async with replying(serve, '{"a":"y"}') as api:
        answer = await generate_both(api, dialect, Query(schema=True))
    assert orjson.loads(answer.text) == {"a": SCHEMA["properties"]["a"]["enum"][0]}  # type: ignore[index]


@dialects_with("images")
async def test_image_is_at_its_position_in_the_prompt(serve: Serve, dialect: Dialect) -> None:
    prompt = "(image 1x1)Hi" if isinstance(dialect, Ollama) else "Hi(image 1x1)"
    replies = {f"<|im_start|>user\n{prompt}{TURN}": "A dot."}
    async with serve(FakeLoader(replies=replies, media=frozenset({"image"})), models=CHATML) as api:
        answer = await generate_both(api, dialect, Query(image=True))
    assert answer.text == "A dot."


@dialects_with("images")
@pytest.mark.parametrize("stream", [False, True])
async def test_image_for_a_text_only_model_is_a_400(serve: Serve, dialect: Dialect, stream: bool) -> None:
    async with replying(serve, "A cat.") as api:
        reply = await api.expect(f"POST {dialect.path}", dialect.body(Query(image=True)) | {"stream": stream}, 400)
    assert "mmproj" in dialect.error(reply.json())


@every_dialect
@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_longer_than_the_context_is_a_400(serve: Serve, dialect: Dialect, stream: bool) -> None:
    async with replying(serve, "", n_ctx_seq=256) as api:
        body = dialect.body(Query(text="x" * 1000)) | {"stream": stream}
        reply = await api.expect(f"POST {dialect.path}", body, 400)
    assert "256" in dialect.error(reply.json())
    if dialect.name in CONTEXT_EXCEEDED:
        error = reply.json()["error"]
        assert (error["code"], error["type"]) == (CONTEXT_EXCEEDED[dialect.name], "exceed_context_size_error")


@every_dialect
async def test_errors_before_generation_have_the_dialects_shape(serve: Serve, dialect: Dialect) -> None:
    models = {name: {"path": f"{name}.gguf", "load": "on_demand"} for name in ("one", "two")}
    body, key = dialect.body(Query()), {"Authorization": "Bearer secret"}
    loader = FakeLoader(failing={"two": "no such file"})
    async with serve(loader, models=models, server={"api_keys": ["secret"]}) as api:
        post = api.client.post
        for reply, status, message in (
            (await post(dialect.path, json=body), 401, ""),
            (await post(dialect.path, content=b"{", headers=key), 400, ""),
            (await post(dialect.path, json=body | {"model": "three"}, headers=key), 404, "three"),
            (await post(dialect.path, json=body | {"model": "two"}, headers=key), 503, "no such file"),
        ):
            assert reply.status_code == status, reply.text
            assert message in dialect.error(reply.json())
        assert api.loader.loaded == []


@every_dialect
async def test_fault_during_generation_is_the_last_event_of_the_stream(serve: Serve, dialect: Dialect) -> None:
    def fail_later(entries: object) -> None:
        if len(runner.batches) >= 3:
            raise RuntimeError("the decode is broken")

    runner = FakeRunner(n_ctx_seq=2048, on_decode=fail_later)
    async with serve(FakeLoader(runner=lambda: runner), models=CHATML) as api:
        reply = await api.expect(f"POST {dialect.path}", dialect.body(Query()) | {"stream": True})
    assert dialect.stream_error(reply.text)
    assert "[DONE]" not in reply.text


@every_dialect
@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_ends_generation_and_frees_the_slot(serve: Serve, dialect: Dialect, stream: bool) -> None:
    steps, third_decode = threading.Semaphore(3), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_decode(_: object) -> None:
        if len(runner.batches) == 2:
            loop.call_soon_threadsafe(third_decode.set)

    runner = FakeRunner(n_ctx_seq=2048, steps=steps, on_decode=on_decode)
    body = dialect.body(Query(limit=1000)) | {"stream": stream, "ignore_eos": True}
    async with serve(FakeLoader(runner=lambda: runner), models=CHATML) as api:
        async with posting(api.app, dialect.path, body) as exchange:
            await third_decode.wait()
            exchange.disconnect()
            await asyncio.wait([exchange.task])
        steps.release(10_000)
    assert 0 < len(runner.samplers[0].accepted) < 60, "more tokens than the prompt and a few steps"
