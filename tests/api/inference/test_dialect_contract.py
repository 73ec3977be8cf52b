"""What every dialect promises: text, calls, reasoning, usage, stops, schemas, images, errors and cancellation.

A dialect's own file tests only what is particular to it. `dialects.py` has a client for each.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from tests.api.conftest import Api, Serve
from tests.api.inference.dialects import ANSWER, BY_NAME, Answer, Asked, Dialect, Ollama, call, each, every, having
from tests.api.scripted import CHATML, TURN
from tests.api.streams import posting
from tests.support.fakes import FakeLoader, FakeRunner

OTHER_NAMES = {
    "/chat/completions": BY_NAME["chat"],
    "/completions": BY_NAME["native"],
    "/responses": BY_NAME["responses"],
}
CODES: dict[str, str | int] = {"chat": "context_length_exceeded", "completions": "context_length_exceeded"}
CODES |= {"responses": "context_length_exceeded", "native": 400}
"""The `code` of a prompt past the context; agents compact on it."""


@asynccontextmanager
async def saying(serve: Serve, reply: str, result: str = "", **runner: Any) -> AsyncIterator[Api]:
    """Serve a model that answers "Hi" with `reply`, as a chat and as a plain prompt; a tool's result with `result`."""
    replies = {f"Hi{TURN}": reply, "Hi": reply, f"</tool_response>{TURN}": result}
    async with serve(FakeLoader(**{"n_ctx_seq": 2048, "replies": replies, **runner}), models=CHATML) as api:
        yield api


async def ask(api: Api, dialect: Dialect, asked: Asked, *, stream: bool) -> Answer:
    reply = await api.client.post(
        dialect.path, json=dialect.body(asked) | (dialect.streams if stream else {"stream": False})
    )
    assert reply.status_code == 200, reply.text
    kind = dialect.stream_type if stream else "application/json"
    assert reply.headers["content-type"].startswith(kind)
    return dialect.streamed(reply.text) if stream else dialect.whole(reply.json())


async def both(api: Api, dialect: Dialect, asked: Asked = Asked()) -> Answer:  # noqa: B008 (frozen)
    """Return the whole reply. The stream must say the same, apart from ids."""
    whole = await ask(api, dialect, asked, stream=False)
    streamed = await ask(api, dialect, asked, stream=True)
    for name in ("text", "reasoning", "reason", "n_prompt", "n_output"):
        assert getattr(streamed, name) == getattr(whole, name), name
    assert [known[1:] for known in streamed.calls] == [known[1:] for known in whole.calls]
    return whole


@every
async def test_a_stream_says_what_the_whole_reply_says(serve: Serve, dialect: Dialect) -> None:
    async with saying(serve, "Héllo 👋 there!") as api:
        answer = await both(api, dialect)
    assert (answer.text, answer.reasoning, answer.calls) == ("Héllo 👋 there!", "", [])
    assert answer.reason == dialect.reasons["end"]


@every
async def test_usage_counts_the_prompt_the_output_and_what_was_cached(serve: Serve, dialect: Dialect) -> None:
    async with saying(serve, "Hello there!") as api:
        asked = Asked(text="Please say: Hi")
        first, second = [await ask(api, dialect, asked, stream=stream) for stream in (False, True)]
    assert first.n_prompt == second.n_prompt == (34 if "chat" in dialect.features else 15)
    assert first.n_output == second.n_output == len("Hello there!") + 1
    assert first.n_cached in (0, None)
    assert second.n_cached is None or 0 < second.n_cached < second.n_prompt


@each(having(where=lambda dialect: bool(dialect.counts)))
@pytest.mark.parametrize("more", [{}, {"tools": True}, {"image": True}], ids=str)
async def test_a_prompt_is_counted_as_it_is_read(serve: Serve, dialect: Dialect, more: dict[str, Any]) -> None:
    async with saying(serve, "Yes.", media=frozenset({"image"})) as api:
        counted = await api.expect(f"POST {dialect.counts}", dialect.body(Asked(limit=None, **more)))
        answer = await ask(api, dialect, Asked(limit=1, **more), stream=False)
    assert answer.n_prompt == counted.json()["input_tokens"]


@every
async def test_a_limit_is_the_reason_of_an_early_end(serve: Serve, dialect: Dialect) -> None:
    async with saying(serve, "Hello there!") as api:
        answer = await both(api, dialect, Asked(limit=5))
    assert (answer.text, answer.n_output, answer.reason) == ("Hello", 5, dialect.reasons["limit"])


@each(having(where=lambda dialect: "stop" in dialect.reasons))
async def test_a_stop_string_ends_the_text_before_it(serve: Serve, dialect: Dialect) -> None:
    async with saying(serve, "yes STOP no") as api:
        answer = await both(api, dialect, Asked(stop="STOP"))
    assert (answer.text, answer.reason) == ("yes ", dialect.reasons["stop"])


@every
async def test_each_event_is_a_chunk_of_its_own(serve: Serve, dialect: Dialect) -> None:
    async with (
        saying(serve, "Hello there!") as api,
        posting(api.app, dialect.path, dialect.body(Asked()) | {"stream": True}) as exchange,
    ):
        assert await exchange.start() == 200
        chunks = [chunk.decode() async for chunk in exchange.chunks()]
    end = "\n" if dialect.stream_type == "application/x-ndjson" else "\n\n"
    assert all(chunk.endswith(end) and chunk.count(end) == 1 for chunk in chunks)
    assert len(chunks) > 3


@pytest.mark.parametrize("path", OTHER_NAMES)
async def test_an_endpoint_has_the_same_reply_under_its_other_name(serve: Serve, path: str) -> None:
    dialect = OTHER_NAMES[path]
    async with saying(serve, "Hello there!") as api:
        answer = dialect.whole((await api.client.post(path, json=dialect.body(Asked()))).json())
        if dialect.counts:
            counted = await api.expect(f"POST {dialect.counts.removeprefix('/v1')}", dialect.body(Asked(limit=None)))
            assert counted.json()["input_tokens"] == answer.n_prompt
    assert answer.text == "Hello there!"


@each(having("reasoning"))
async def test_reasoning_is_apart_from_the_text(serve: Serve, dialect: Dialect) -> None:
    async with saying(serve, "<think>\nhmm\n</think>\n\nYes.") as api:
        answer = await both(api, dialect)
    assert (answer.reasoning, answer.text) == ("hmm", "Yes.")


@each(having("calls"))
async def test_calls_have_ids_names_and_arguments(serve: Serve, dialect: Dialect) -> None:
    async with saying(serve, "I look.\n" + call({"at": "sky"}, {"at": "sea"})) as api:
        answer = await both(api, dialect, Asked(tools=True, limit=300))
    assert answer.text.strip() == "I look."
    assert [known[1:] for known in answer.calls] == [("look", {"at": "sky"}), ("look", {"at": "sea"})]
    assert answer.reason == dialect.reasons["calls"]


@each(having("calls"))
async def test_a_calls_result_leads_to_the_answer(serve: Serve, dialect: Dialect) -> None:
    async with saying(serve, call({"at": "sky"}), "It is blue.") as api:
        asked = await ask(api, dialect, Asked(tools=True), stream=False)
        answer = await both(api, dialect, Asked(tools=True, turn=asked, result="blue"))
    assert (answer.text, answer.calls, answer.reason) == ("It is blue.", [], dialect.reasons["end"])
    assert answer.n_prompt > asked.n_prompt


@each(having("schema"))
async def test_a_schema_constrains_the_reply(serve: Serve, dialect: Dialect) -> None:
    async with saying(serve, '{"a":"y"}') as api:
        answer = await both(api, dialect, Asked(schema=True))
    assert orjson.loads(answer.text) == {"a": ANSWER["properties"]["a"]["enum"][0]}  # type: ignore[index]


@each(having("images"))
async def test_an_image_is_shown_where_it_stands(serve: Serve, dialect: Dialect) -> None:
    seen = "(image 1x1)Hi" if isinstance(dialect, Ollama) else "Hi(image 1x1)"
    replies = {f"<|im_start|>user\n{seen}{TURN}": "A dot."}
    async with serve(FakeLoader(replies=replies, media=frozenset({"image"})), models=CHATML) as api:
        answer = await both(api, dialect, Asked(image=True))
    assert answer.text == "A dot."


@each(having("images"))
@pytest.mark.parametrize("stream", [False, True])
async def test_an_image_that_the_model_cannot_see_is_a_400(serve: Serve, dialect: Dialect, stream: bool) -> None:
    async with saying(serve, "A cat.") as api:
        reply = await api.client.post(dialect.path, json=dialect.body(Asked(image=True)) | {"stream": stream})
    assert reply.status_code == 400, reply.text
    assert "mmproj" in dialect.error(reply.json())


@every
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_past_the_context_is_a_400(serve: Serve, dialect: Dialect, stream: bool) -> None:
    async with saying(serve, "", n_ctx_seq=256) as api:
        reply = await api.client.post(dialect.path, json=dialect.body(Asked(text="x" * 1000)) | {"stream": stream})
    assert reply.status_code == 400
    assert "256" in dialect.error(reply.json())
    if dialect.name in CODES:
        error = reply.json()["error"]
        assert (error["code"], error["type"]) == (CODES[dialect.name], "exceed_context_size_error")


@every
async def test_errors_before_generation_have_the_dialects_shape(serve: Serve, dialect: Dialect) -> None:
    models = {name: {"path": f"{name}.gguf", "load": "on_demand"} for name in ("one", "two")}
    body, key = dialect.body(Asked()), {"Authorization": "Bearer secret"}
    loader = FakeLoader(failing={"two": "no such file"})
    async with serve(loader, models=models, server={"api_keys": ["secret"]}) as api:
        post = api.client.post
        for reply, status, said in (
            (await post(dialect.path, json=body), 401, ""),
            (await post(dialect.path, content=b"{", headers=key), 400, ""),
            (await post(dialect.path, json=body | {"model": "three"}, headers=key), 404, "three"),
            (await post(dialect.path, json=body | {"model": "two"}, headers=key), 503, "no such file"),
        ):
            assert reply.status_code == status, reply.text
            assert said in dialect.error(reply.json())
        assert api.loader.loaded == []


@every
async def test_a_fault_in_the_middle_is_the_streams_last_event(serve: Serve, dialect: Dialect) -> None:
    def fail_later(entries: object) -> None:
        if len(runner.batches) >= 3:
            raise RuntimeError("the decode is broken")

    runner = FakeRunner(n_ctx_seq=2048, on_decode=fail_later)
    async with serve(FakeLoader(runner=lambda: runner), models=CHATML) as api:
        reply = await api.client.post(dialect.path, json=dialect.body(Asked()) | {"stream": True})
    assert reply.status_code == 200
    assert dialect.stream_error(reply.text)
    assert "[DONE]" not in reply.text


@every
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_frees_its_slot(serve: Serve, dialect: Dialect, stream: bool) -> None:
    steps, stopped = threading.Semaphore(3), asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(_: object) -> None:
        if len(runner.batches) == 2:
            loop.call_soon_threadsafe(stopped.set)

    runner = FakeRunner(n_ctx_seq=2048, steps=steps, on_decode=tell)
    body = dialect.body(Asked(limit=1000)) | {"stream": stream, "ignore_eos": True}
    async with serve(FakeLoader(runner=lambda: runner), models=CHATML) as api:
        async with posting(api.app, dialect.path, body) as exchange:
            await stopped.wait()
            exchange.disconnect()
            await asyncio.wait([exchange.task])
        steps.release(10_000)
    assert 0 < len(runner.samplers[0].accepted) < 60, "the prompt and few tokens more"
