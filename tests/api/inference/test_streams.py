"""Streams that continue without their client, read again by their own one; streams whose model is loaded first."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.types import Message

from server.pool.state import Status
from server.transport.resumable import KeptStream, KeptStreams
from tests.api.conftest import Api, Serve, until
from tests.api.inference.dialects import Asked, Dialect, every, of_this_server
from tests.api.streams import events, posting, scope_of
from tests.api.transport.test_keys import bearer
from tests.support.fakes import FakeLoader

HI = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": HI, "stream": True, "max_tokens": 8, "temperature": 0}
ID = "conv::some/model:Q8_0"
AT = f"/v1/stream?conv_id={quote(ID, safe='')}"
NAMED = {"X-Conversation-Id": ID}
LATE = {"late": {"path": "late.gguf"}}
OF_LATE = {"model": "late"}


def stepwise() -> tuple[FakeLoader, threading.Semaphore]:
    """A model whose steps are let through one by one."""
    steps = threading.Semaphore(0)
    return FakeLoader(steps=steps, replies={"assistant\n": "one two three"}), steps


def let_all_through(steps: threading.Semaphore) -> None:
    steps.release(1000)


async def lookup(api: Api, *names: str, **headers: str) -> list[dict[str, Any]]:
    reply = await api.expect("POST /v1/streams/lookup", {"conversation_ids": list(names)}, headers=headers)
    found: list[dict[str, Any]] = reply.json()
    return found


@every
async def test_what_was_sent_can_be_read_again_from_any_byte(client: httpx.AsyncClient, dialect: Dialect) -> None:
    body = dialect.body(Asked(limit=4)) | dialect.streams
    sent = (await client.post(dialect.path, json=body, headers=NAMED)).content
    assert sent
    for offset in ("", "&from=0", "&from=7"):
        again = await client.get(AT + offset)
        assert again.status_code == 200
        assert again.content == sent[7 if "7" in offset else 0 :]
    assert (await client.get(f"{AT}&from={len(sent)}")).content == b""


async def test_a_stream_goes_on_when_its_client_leaves(serve: Serve) -> None:
    loader, steps = stepwise()
    async with serve(loader) as api:
        async with posting(api.app, "/v1/chat/completions", CHAT, NAMED) as exchange:
            steps.release(3)
            assert await exchange.start() == 200
            begun = await exchange.chunk()
        (shown,) = await lookup(api, "conv")
        assert (shown["conversation_id"], shown["is_done"], shown["completed_at"]) == (ID, False, 0)
        reading = asyncio.create_task(api.client.get(AT))
        let_all_through(steps)
        whole = (await reading).content
        assert whole.startswith(begun)
        said = "".join(e["choices"][0]["delta"].get("content") or "" for e in events(whole.decode()) if e["choices"])
        assert said == "one two "  # eight tokens, a byte each
        (shown,) = await lookup(api, ID)
        assert (shown["is_done"], shown["total_bytes"]) == (True, len(whole))
        assert shown["completed_at"] >= shown["started_at"] > 0


async def test_a_stop_ends_the_computing_and_forgets_the_stream(serve: Serve) -> None:
    loader, steps = stepwise()
    async with serve(loader) as api:
        loaded = api.loaded()
        endless = {**CHAT, "max_tokens": 200}
        async with posting(api.app, "/v1/chat/completions", endless, NAMED) as exchange:
            steps.release(3)
            assert await exchange.start() == 200
            reading = asyncio.create_task(api.client.get(AT))
            for _ in range(2):  # the second finds nothing, which is as good
                assert (await api.client.delete(AT)).status_code == 204
            steps.release(1)  # the step that had begun
            await until(lambda: not loaded.busy)
            assert [part async for part in exchange.chunks()]  # what there was, and the end
            await reading
        assert (await api.client.get(AT)).status_code == 404
        assert await lookup(api, ID) == []


async def test_a_stop_while_the_model_is_loaded_ends_the_request(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=LATE) as api:
        asking = asyncio.create_task(api.client.post("/v1/chat/completions", json=CHAT, headers=NAMED))
        await until(lambda: api.pool.state("late").status is Status.LOADING)
        early = await api.client.get(AT)
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        assert (await api.client.delete(AT)).status_code == 204
        told = await asking
        assert told.status_code == 400
        assert "cancelled" in told.json()["error"]["message"]
        assert (await api.client.get(AT)).status_code == 404
        gate.set()


async def test_a_client_that_leaves_while_the_model_is_loaded_finds_the_answer(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=LATE) as api:
        async with posting(api.app, "/v1/chat/completions", CHAT, NAMED):
            await until(lambda: api.pool.state("late").status is Status.LOADING)
        gate.set()
        await until(lambda: api.pool.state("late").status is Status.READY)
        reply = await api.expect(f"GET {AT}")
        assert events(reply.text)


async def test_what_fails_before_it_begins_leaves_no_stream(api: Api) -> None:
    path = "POST /v1/chat/completions"
    too_long = [{"role": "user", "content": "x" * 5000}]
    for wrong in ({"temperature": "hot"}, {"messages": too_long}):
        await api.expect(path, {**CHAT, **wrong}, 400, headers=NAMED)
        await api.expect(f"GET {AT}", None, 404)
    await api.expect(path, CHAT, 400, headers={"X-Conversation-Id": "x" * 1025})


async def test_a_reader_that_leaves_before_the_first_byte_ends_its_request(serve: Serve) -> None:
    """Otherwise it would count among the requests of the server until the stream begins."""
    loader, steps = stepwise()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    async with serve(loader) as api, posting(api.app, "/v1/chat/completions", CHAT, NAMED):
        await until(lambda: api.loaded().busy)
        query = AT.partition("?")[2].encode()
        scope = scope_of("http", "/v1/stream", {}, method="GET", query_string=query)
        try:
            await asyncio.wait_for(api.app(scope, receive, send), 20)
        finally:
            let_all_through(steps)


async def test_a_conversation_has_one_stream(serve: Serve) -> None:
    loader, steps = stepwise()
    async with serve(loader) as api:
        async with posting(api.app, "/v1/chat/completions", {**CHAT, "max_tokens": 200}, NAMED) as first:
            steps.release(3)
            assert await first.start() == 200
            asking = asyncio.create_task(api.client.post("/v1/chat/completions", json=CHAT, headers=NAMED))
            assert [part async for part in first.chunks()]  # ended by the other one
            let_all_through(steps)
            second = (await asking).content
        assert (await api.client.get(AT)).content == second


async def test_a_stream_belongs_to_its_key(serve: Serve) -> None:
    async with serve(server={"api_keys": ["one", "two"]}) as api:
        mine, other = map(bearer, ("one", "two"))
        await api.expect("POST /v1/chat/completions", CHAT, headers=NAMED | mine)
        await api.expect(f"GET {AT}", None, 404, headers=other)
        assert await lookup(api, ID, **other) == []
        await api.expect(f"DELETE {AT}", None, 204, headers=other)
        await api.expect(f"GET {AT}", headers=mine)
        assert len(await lookup(api, "conv", **mine)) == 1


async def test_a_wrong_question_is_told_so(api: Api) -> None:
    await api.expect("POST /v1/chat/completions", CHAT, headers=NAMED)
    for query in ("", "?conv_id=", f"{AT[10:]}&from=-1", f"{AT[10:]}&from=x", f"{AT[10:]}&from=1e3"):
        await api.expect(f"GET /v1/stream{query}", None, 400)
    for nothing in ({}, {"conversation_ids": None}, {"conversation_ids": [1, "", "unknown"]}):
        await api.expect("POST /v1/streams/lookup", nothing, part="[]")
    await api.expect("POST /v1/streams/lookup", {"conversation_ids": [f"c{n}" for n in range(1001)]}, 400)
    assert await lookup(api, *["c1"] * 1001) == []


async def test_pings_count_as_bytes(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=LATE) as api:
        ping_soon(api)
        async with posting(api.app, "/v1/chat/completions", CHAT, NAMED) as exchange:
            assert await exchange.start() == 200
            assert (await exchange.chunk()).startswith(b":\n\n")
            gate.set()
            rest = b"".join([part async for part in exchange.chunks()])
        again = (await api.client.get(AT)).content
        assert again.startswith(b":\n\n")
        assert again.endswith(rest)


async def test_of_a_long_stream_the_newest_is_kept() -> None:
    stream = KeptStream("c", max_bytes=10)
    for chunk in (b"0123", b"4567", b"89ab"):
        stream.append(chunk)
    assert (stream.total_bytes, len(stream.content), stream.first) == (12, 10, 2)
    stream.stop()
    assert b"".join([part async for part in stream.read(2)]) == b"23456789ab"


async def test_an_ended_stream_is_not_held_until_its_next_ping() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"123"

    stream = KeptStream("c")
    stream.produce(chunks(), error=lambda _: b"", ping=b":", ping_s=86400.0)
    await stream.stopped()
    held = weakref.ref(stream)
    del stream
    gc.collect()
    assert held() is None


async def test_a_forgotten_stream_is_freed_at_once(api: Api) -> None:
    gc.disable()
    try:
        await api.expect("POST /v1/chat/completions", CHAT, headers=NAMED)
        held = [*map(weakref.ref, api.app.state.services.streams._streams.values())]
        assert (await api.client.delete(AT)).status_code == 204
        await until(lambda: [stream() for stream in held] == [None])
    finally:
        gc.enable()


async def kept(streams: KeptStreams, name: str, body: bytes) -> KeptStream:
    stream = streams.open("me", name)
    stream.append(body)
    stream.stop()
    streams.ended("me", stream)
    return stream


async def test_the_oldest_streams_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.transport.resumable.MAX_STREAMS", 2)
    monkeypatch.setattr("server.transport.resumable.MAX_BYTES", 10)
    streams = KeptStreams()
    for name in "abc":
        await kept(streams, name, b"123")
    assert [s.conversation for s in await streams.of("me", "abc")] == ["b", "c"]
    await kept(streams, "d", b"12345678")
    assert [s.conversation for s in await streams.of("me", "abcd")] == ["d"]


async def test_a_stream_is_forgotten_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.transport.resumable.KEPT_S", 0.001)
    streams = KeptStreams()
    await kept(streams, "a", b"123")
    await until(lambda: not streams._streams)


PINGS = {"messages": "ping", "responses": "keepalive"}
"""The name of the event; in the other dialects a ping is an empty comment."""


def ping_soon(api: Api) -> None:
    """Sooner than the settings allow."""
    used = api.app.state.services
    api.app.state.services = replace(used, options=replace(used.options, sse_ping_interval=0.02))


@of_this_server
async def test_pings_come_while_it_is_loaded_then_the_answer(serve: Serve, dialect: Dialect) -> None:
    name = PINGS.get(dialect.name)
    ping = f'event: {name}\ndata: {{"type":"{name}"}}\n\n'.encode() if name else b":\n\n"
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=LATE) as api:
        ping_soon(api)
        async with posting(api.app, dialect.path, dialect.body(Asked(limit=2)) | dialect.streams | OF_LATE) as exchange:
            assert await exchange.start() == 200
            assert [await exchange.chunk() for _ in range(3)] == [ping] * 3
            assert api.pool.state("late").status is Status.LOADING
            gate.set()
            said = b"".join([part async for part in exchange.chunks()])
        assert dialect.streamed(said.decode()).reason == dialect.reasons["limit"]


@of_this_server
async def test_a_load_that_fails_is_told_in_the_stream(serve: Serve, dialect: Dialect) -> None:
    gate = threading.Event()
    loader = FakeLoader(gate=gate)
    async with serve(loader, models=LATE) as api:
        ping_soon(api)
        async with posting(api.app, dialect.path, dialect.body(Asked(limit=2)) | dialect.streams | OF_LATE) as exchange:
            assert await exchange.start() == 200
            loader.failing["late"] = "broken file"
            gate.set()
            said = b"".join([part async for part in exchange.chunks()])
        assert "broken file" in dialect.stream_error(said.decode())


async def test_what_fails_before_the_first_ping_has_its_status(serve: Serve) -> None:
    async with serve(FakeLoader(failing={"late": "broken file"}), models=LATE) as api:
        for query in ("", "?autoload=0"):
            await api.expect(f"POST /v1/chat/completions{query}", {"messages": HI, "stream": True}, 503)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_meanwhile_leaves_nothing_behind(serve: Serve, begun: bool) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), models=LATE) as api:
        if begun:
            ping_soon(api)
        async with posting(api.app, "/v1/chat/completions", {"messages": HI, "stream": True}) as exchange:
            if begun:
                assert await exchange.start() == 200
                await exchange.chunk()
            else:
                await until(lambda: api.pool.state("late").status is Status.LOADING)
        gate.set()
        await until(lambda: api.pool.state("late").status is not Status.LOADING)
