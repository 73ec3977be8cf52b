"""Resumable streams (`X-Conversation-Id`, `/v1/stream`), and streams of a model that is still loading."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.types import Message

from server.pool.state import Status
from server.transport.resumable import KeptStream, KeptStreams
from tests.api.conftest import Api, Serve, until
from tests.api.inference.dialects import Dialect, Query, every_dialect, llamapool_dialects
from tests.api.streams import events, posting, scope_of, set_short_pings
from tests.api.transport.test_keys import bearer
from tests.support.fakes import FakeLoader

HI = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": HI, "stream": True, "max_tokens": 8, "temperature": 0}
ID = "conv::some/model:Q8_0"
STREAM_URL = f"/v1/stream?conv_id={quote(ID, safe='')}"
ID_HEADER = {"X-Conversation-Id": ID}
ON_DEMAND = {"late": {"path": "late.gguf"}}


def stepwise() -> tuple[FakeLoader, threading.Semaphore]:
    """Return a model that runs one step for each permit of the semaphore."""
    steps = threading.Semaphore(0)
    return FakeLoader(steps=steps, replies={"assistant\n": "one two three"}), steps


async def lookup(api: Api, *ids: str, **headers: str) -> list[dict[str, Any]]:
    reply = await api.expect("POST /v1/streams/lookup", {"conversation_ids": list(ids)}, headers=headers)
    streams: list[dict[str, Any]] = reply.json()
    return streams


@every_dialect
async def test_finished_stream_can_be_read_again_from_any_byte(client: httpx.AsyncClient, dialect: Dialect) -> None:
    body = dialect.body(Query(limit=4)) | dialect.stream_fields
    sent = (await client.post(dialect.path, json=body, headers=ID_HEADER)).content
    assert sent
    for query, offset in (("", 0), ("&from=0", 0), ("&from=7", 7), (f"&from={len(sent)}", len(sent))):
        again = await client.get(STREAM_URL + query)
        assert (again.status_code, again.content) == (200, sent[offset:])
        assert again.headers["content-type"].split(";")[0] == dialect.stream_type


async def test_stream_continues_after_its_client_disconnects(serve: Serve) -> None:
    loader, steps = stepwise()
    async with serve(loader) as api:
        async with posting(api.app, "/v1/chat/completions", CHAT, ID_HEADER) as exchange:
            steps.release(3)
            assert await exchange.start() == 200
            first = await exchange.chunk()
        (stream,) = await lookup(api, "conv")
        assert (stream["conversation_id"], stream["is_done"], stream["completed_at"]) == (ID, False, 0)
        reading = asyncio.create_task(api.client.get(STREAM_URL))
        steps.release(1000)
        whole = (await reading).content
        assert whole.startswith(first)
        choices = [choice for event in events(whole.decode()) for choice in event["choices"]]
        content = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert content == "one two "  # eight tokens of one byte
        (stream,) = await lookup(api, ID)
        assert (stream["is_done"], stream["total_bytes"]) == (True, len(whole))
        assert stream["completed_at"] >= stream["started_at"] > 0


async def test_delete_ends_generation_and_removes_the_stream(serve: Serve) -> None:
    loader, steps = stepwise()
    async with serve(loader) as api:
        loaded = api.loaded()
        endless = {**CHAT, "max_tokens": 200}
        async with posting(api.app, "/v1/chat/completions", endless, ID_HEADER) as exchange:
            steps.release(3)
            assert await exchange.start() == 200
            reading = asyncio.create_task(api.client.get(STREAM_URL))
            for _ in range(2):  # a second DELETE succeeds, too
                assert (await api.client.delete(STREAM_URL)).status_code == 204
            steps.release(1)  # the running step
            await until(lambda: not loaded.busy)
            assert [part async for part in exchange.chunks()]  # the earlier chunks, and the end
            await reading
        assert (await api.client.get(STREAM_URL)).status_code == 404
        assert await lookup(api, ID) == []


async def test_delete_while_the_model_loads_cancels_the_request(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=ON_DEMAND) as api:
        request = asyncio.create_task(api.client.post("/v1/chat/completions", json=CHAT, headers=ID_HEADER))
        await until(lambda: api.pool.state("late").status is Status.LOADING)
        early = await api.client.get(STREAM_URL)
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        assert (await api.client.delete(STREAM_URL)).status_code == 204
        cancelled = await request
        assert cancelled.status_code == 400
        assert "cancelled" in cancelled.json()["error"]["message"]
        assert (await api.client.get(STREAM_URL)).status_code == 404
        gate.set()


async def test_stream_continues_if_its_client_disconnects_while_the_model_loads(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=ON_DEMAND) as api:
        async with posting(api.app, "/v1/chat/completions", CHAT, ID_HEADER):
            await until(lambda: api.pool.state("late").status is Status.LOADING)
        gate.set()
        await until(lambda: api.pool.state("late").status is Status.READY)
        reply = await api.expect(f"GET {STREAM_URL}")
        assert events(reply.text)


async def test_request_that_fails_before_generation_leaves_no_stream(api: Api) -> None:
    path = "POST /v1/chat/completions"
    too_long = [{"role": "user", "content": "x" * 5000}]
    for fields in ({"temperature": "hot"}, {"messages": too_long}):
        await api.expect(path, {**CHAT, **fields}, 400, headers=ID_HEADER)
        await api.expect(f"GET {STREAM_URL}", None, 404)
    await api.expect(path, CHAT, 400, headers={"X-Conversation-Id": "x" * 1025})


async def test_reader_that_disconnects_before_the_first_byte_ends_its_request(serve: Serve) -> None:
    """Otherwise it would count against the server's limit of requests until the stream starts."""
    loader, steps = stepwise()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    async with serve(loader) as api, posting(api.app, "/v1/chat/completions", CHAT, ID_HEADER):
        await until(lambda: api.loaded().busy)
        query = STREAM_URL.partition("?")[2].encode()
        scope = scope_of("http", "/v1/stream", {}, method="GET", query_string=query)
        try:
            await asyncio.wait_for(api.app(scope, receive, send), 20)
        finally:
            steps.release(1000)


async def test_second_request_of_a_conversation_ends_the_first(serve: Serve) -> None:
    loader, steps = stepwise()
    async with serve(loader) as api:
        async with posting(api.app, "/v1/chat/completions", {**CHAT, "max_tokens": 200}, ID_HEADER) as first:
            steps.release(3)
            assert await first.start() == 200
            request = asyncio.create_task(api.client.post("/v1/chat/completions", json=CHAT, headers=ID_HEADER))
            assert [part async for part in first.chunks()]  # ended by the second request
            steps.release(1000)
            second = (await request).content
        assert (await api.client.get(STREAM_URL)).content == second


async def test_streams_are_private_to_their_key(serve: Serve) -> None:
    async with serve(server={"api_keys": ["one", "two"]}) as api:
        own, other = map(bearer, ("one", "two"))
        await api.expect("POST /v1/chat/completions", CHAT, headers=ID_HEADER | own)
        await api.expect(f"GET {STREAM_URL}", None, 404, headers=other)
        assert await lookup(api, ID, **other) == []
        await api.expect(f"DELETE {STREAM_URL}", None, 204, headers=other)
        await api.expect(f"GET {STREAM_URL}", headers=own)
        assert len(await lookup(api, "conv", **own)) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
async def test_id_in_the_header_may_be_utf_8_or_latin_1(api: Api, encoding: str) -> None:
    """Browsers send latin-1, most other clients UTF-8."""
    headers = {b"X-Conversation-Id": "é".encode(encoding)}
    await api.expect("POST /v1/chat/completions", CHAT, headers=headers)
    await api.expect("GET /v1/stream?conv_id=%C3%A9")


async def test_invalid_stream_and_lookup_requests_are_a_400(api: Api) -> None:
    await api.expect("POST /v1/chat/completions", CHAT, headers=ID_HEADER)
    invalid = (f"{STREAM_URL}&from={offset}" for offset in ("-1", "x", "1e3"))
    for url in ("/v1/stream", "/v1/stream?conv_id=", *invalid):
        await api.expect(f"GET {url}", None, 400)
    for empty in ({}, {"conversation_ids": None}, {"conversation_ids": [1, "", "unknown"]}):
        await api.expect("POST /v1/streams/lookup", empty, part="[]")
    await api.expect("POST /v1/streams/lookup", {"conversation_ids": [f"c{n}" for n in range(1001)]}, 400)
    assert await lookup(api, *["c1"] * 1001) == []


async def test_pings_count_as_bytes_of_a_resumable_stream(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=ON_DEMAND) as api:
        set_short_pings(api)
        async with posting(api.app, "/v1/chat/completions", CHAT, ID_HEADER) as exchange:
            assert await exchange.start() == 200
            assert (await exchange.chunk()).startswith(b":\n\n")
            gate.set()
            rest = b"".join([part async for part in exchange.chunks()])
        again = (await api.client.get(STREAM_URL)).content
        assert again.startswith(b":\n\n")
        assert again.endswith(rest)


async def test_long_stream_keeps_its_newest_bytes() -> None:
    stream = KeptStream("c", max_bytes=10)
    for chunk in (b"0123", b"4567", b"89ab"):
        stream.append(chunk)
    assert (stream.total_bytes, len(stream.content), stream.first) == (12, 10, 2)
    stream.stop()
    assert b"".join([part async for part in stream.read(2)]) == b"23456789ab"


async def test_finished_stream_is_freed_before_its_next_ping() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"123"

    stream = KeptStream("c")
    stream.produce(chunks(), error=lambda _: b"", ping=b":", ping_s=86400.0)
    await stream.stopped()
    reference = weakref.ref(stream)
    del stream
    gc.collect()
    assert reference() is None


async def test_deleted_stream_has_no_reference_cycle(api: Api) -> None:
    gc.disable()
    try:
        await api.expect("POST /v1/chat/completions", CHAT, headers=ID_HEADER)
        references = [*map(weakref.ref, api.app.state.services.streams._streams.values())]  # private: no other access
        assert (await api.client.delete(STREAM_URL)).status_code == 204
        await until(lambda: [reference() for reference in references] == [None])
    finally:
        gc.enable()


def add_finished(streams: KeptStreams, conversation: str, body: bytes) -> None:
    stream = streams.open("me", conversation)
    stream.append(body)
    stream.stop()
    streams.ended("me", stream)


async def test_oldest_streams_are_removed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.transport.resumable.MAX_STREAMS", 2)
    monkeypatch.setattr("server.transport.resumable.MAX_BYTES", 10)
    streams = KeptStreams()
    for name in "abc":
        add_finished(streams, name, b"123")
    assert [s.conversation for s in await streams.of("me", "abc")] == ["b", "c"]
    add_finished(streams, "d", b"12345678")
    assert [s.conversation for s in await streams.of("me", "abcd")] == ["d"]


async def test_finished_stream_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.transport.resumable.KEPT_S", 0.001)
    streams = KeptStreams()
    add_finished(streams, "a", b"123")
    await until(lambda: not streams._streams)


PINGS = {"messages": "ping", "responses": "keepalive"}
"""The event name of a ping. In the other dialects a ping is an empty comment."""


@llamapool_dialects
@pytest.mark.parametrize("failure", ["", "broken file"])
async def test_stream_sends_pings_until_the_model_is_loaded_or_fails(
    serve: Serve, dialect: Dialect, failure: str
) -> None:
    name = PINGS.get(dialect.name)
    ping = f'event: {name}\ndata: {{"type":"{name}"}}\n\n'.encode() if name else b":\n\n"
    body = dialect.body(Query(limit=2)) | dialect.stream_fields | {"model": "late"}
    gate = threading.Event()
    loader = FakeLoader(gate=gate)
    async with serve(loader, models=ON_DEMAND) as api:
        set_short_pings(api)
        async with posting(api.app, dialect.path, body) as exchange:
            assert await exchange.start() == 200
            assert [await exchange.chunk() for _ in range(3)] == [ping] * 3
            assert api.pool.state("late").status is Status.LOADING
            loader.failing = {"late": failure} if failure else {}
            gate.set()
            rest = b"".join([part async for part in exchange.chunks()]).decode()
        if failure:
            assert failure in dialect.stream_error(rest)
        else:
            assert dialect.streamed(rest).reason == dialect.finish_reasons["limit"]


async def test_failure_before_the_first_ping_has_an_error_status(serve: Serve) -> None:
    async with serve(FakeLoader(failing={"late": "broken file"}), models=ON_DEMAND) as api:
        for query in ("", "?autoload=0"):
            await api.expect(f"POST /v1/chat/completions{query}", {"messages": HI, "stream": True}, 503)


@pytest.mark.parametrize("started", [False, True])
async def test_disconnect_while_the_model_loads_ends_the_request(serve: Serve, started: bool) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=ON_DEMAND) as api:
        if started:
            set_short_pings(api)
        async with posting(api.app, "/v1/chat/completions", {"messages": HI, "stream": True}) as exchange:
            if started:
                assert await exchange.start() == 200
                await exchange.chunk()
            else:
                await until(lambda: api.pool.state("late").status is Status.LOADING)
        gate.set()
        await until(lambda: api.pool.state("late").status is not Status.LOADING)
