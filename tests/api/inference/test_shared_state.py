"""Two replicas share responses, streams, limits and usage in a real Redis, and continue while Redis is down."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, InternalServerError, NotFoundError
from openai.types.responses import Response

from server.serving import background
from server.state.redis import Redis
from server.transport.resumable import KeptStreams
from tests.api.conftest import Api, Serve, until
from tests.api.inference.test_streams import CHAT, ID, ID_HEADER, STREAM_URL, lookup
from tests.api.scripted import serve_scripted
from tests.api.streams import posting
from tests.api.transport.test_keys import bearer, chat, key_file
from tests.support.redis_server import RedisServer, needs_redis, running_redis

pytestmark = needs_redis
REPLIES = {"Hi": "Hello!", "Bye": "Farewell."}


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RedisServer]:
    monkeypatch.setattr("server.state.redis.RETRY_S", 0.0)
    monkeypatch.setattr("server.state.usage.RETRY_S", 0.01)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # the folder of batches
    with running_redis() as server:
        yield server


@dataclass(frozen=True)
class Replica:
    api: Api
    client: AsyncOpenAI


@asynccontextmanager
async def replicas(
    serve: Serve, redis: RedisServer, steps: threading.Semaphore | None = None, **server: Any
) -> AsyncIterator[tuple[Replica, Replica]]:
    """Serve two applications. Each decode of the first takes one permit of `steps`."""
    async with (
        serve_scripted(serve, REPLIES, steps, state=redis.url, **server) as first,
        serve_scripted(serve, REPLIES, state=redis.url, **server) as second,
    ):
        yield Replica(*first), Replica(*second)


async def create_response(replica: Replica, text: str = "Hi", **fields: Any) -> Response:
    response = await replica.client.responses.create(model="demo", input=text, **fields)
    assert isinstance(response, Response)
    return response


def is_stored(response: Response) -> Any:
    return (response.model_extra or {})["store"]


async def test_replicas_share_responses_conversations_and_files(serve: Serve, redis: RedisServer) -> None:
    async with replicas(serve, redis) as (a, b):
        first = await create_response(a)
        second = await create_response(b, "Bye", previous_response_id=first.id)
        assert second.output_text == "Farewell."
        assert (await a.client.responses.retrieve(second.id)).output_text == "Farewell."
        conversation = await b.client.conversations.create(items=[{"role": "user", "content": "Hi"}])
        await create_response(a, "Bye", conversation=conversation.id)
        items = await b.client.conversations.items.list(conversation.id)
        assert len(items.data) == 3
        file = await a.client.files.create(file=("a.txt", b"hello"), purpose="user_data")
        assert (await b.client.files.content(file.id)).content == b"hello"
        await b.client.responses.delete(second.id)
        with pytest.raises(NotFoundError):
            await a.client.responses.retrieve(second.id)


async def test_rate_limits_apply_to_all_replicas_together(serve: Serve, redis: RedisServer, tmp_path: Path) -> None:
    keys = key_file(tmp_path, ada={"requests_per_minute": 3}, bert={"tokens_per_minute": 5}, carl={})
    async with replicas(serve, redis, keys_file=str(keys)) as (a, b):
        replies = [await chat(each.api, "ada") for each in (a, b, a)]
        assert [reply.headers["x-ratelimit-remaining-requests"] for reply in replies] == ["2", "1", "0"]
        refused = await chat(b.api, "ada")
        assert refused.status_code == 429
        assert "limit of 3 requests per minute" in refused.text
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert (await chat(a.api, "bert")).status_code == 200
        await until(lambda: not a.api.app.state.services.rates._charging)
        assert (await chat(b.api, "bert")).status_code == 429
        assert (await chat(b.api, "carl")).status_code == 200


async def test_usage_and_budgets_apply_to_all_replicas_together(
    serve: Serve, redis: RedisServer, tmp_path: Path
) -> None:
    keys = key_file(tmp_path, ada={"tokens_per_day": 1, "scopes": ["infer", "metrics"]}, bert={})
    async with replicas(serve, redis, keys_file=str(keys)) as (a, b):
        for each, name in ((a, "ada"), (b, "bert"), (a, "bert")):
            assert (await chat(each.api, name)).status_code == 200
        await a.api.client.get("/v1/usage", headers=bearer("ada"))  # writes the counts of this replica
        await b.api.client.get("/v1/usage", headers=bearer("ada"))
        rows = (await b.api.client.get("/v1/usage", headers=bearer("ada"))).json()["data"]
        assert [(row["key"], row["requests"]) for row in rows] == [("ada", 1), ("bert", 2)]
        assert "tokens per day" in (await chat(b.api, "ada")).text


async def test_stream_is_read_and_deleted_through_another_replica(serve: Serve, redis: RedisServer) -> None:
    steps = threading.Semaphore(0)
    async with replicas(serve, redis, steps) as (a, b):
        async with posting(a.api.app, "/v1/chat/completions", CHAT, ID_HEADER) as exchange:
            steps.release(3)
            assert await exchange.start() == 200
            first = await exchange.chunk()
        async with asyncio.timeout(60):
            while not (await b.api.client.post("/v1/streams/lookup", json={"conversation_ids": [ID]})).json():
                pass
        reading = asyncio.create_task(b.api.client.get(STREAM_URL))
        steps.release(1000)
        whole = (await reading).content
        assert whole.startswith(first)
        assert whole == (await a.api.client.get(STREAM_URL)).content
        assert (await b.api.client.get(f"{STREAM_URL}&from=7")).content == whole[7:]
        assert (await b.api.client.get(f"{STREAM_URL}&from={len(whole) + 1}")).content == b""
        (stream,) = await lookup(b.api, ID)
        assert (stream["is_done"], stream["total_bytes"]) == (True, len(whole))
        assert (await b.api.client.delete(STREAM_URL)).status_code == 204
        assert await lookup(b.api, ID) == []


async def test_delete_through_another_replica_ends_generation(serve: Serve, redis: RedisServer) -> None:
    steps = threading.Semaphore(0)
    async with replicas(serve, redis, steps) as (a, b):
        loaded = a.api.loaded()
        endless = {**CHAT, "messages": [{"role": "user", "content": "Go on"}], "max_tokens": 3000}
        async with posting(a.api.app, "/v1/chat/completions", endless, ID_HEADER) as exchange:
            steps.release(3)
            assert await exchange.start() == 200
            await exchange.chunk()
            while not await lookup(b.api, ID):
                pass
            assert (await b.api.client.delete(STREAM_URL)).status_code == 204
            async with asyncio.timeout(60):
                while loaded.busy:
                    steps.release()
                    await asyncio.sleep(0)
        assert await lookup(a.api, ID) == []


async def test_stream_of_another_replica_has_its_media_type(redis: RedisServer) -> None:
    clients = [Redis(redis.url) for _ in range(2)]
    streams, reader = map(KeptStreams, clients)
    stream = streams.open("me", ID, media_type="application/x-ndjson")
    stream.append(b"{}")
    stream.finish()
    await asyncio.gather(*streams._copying)
    found = await reader.find("me", ID)
    assert found is not None
    assert found.media_type == "application/x-ndjson"
    for client in clients:
        await client.close()


class RenamingRedis(Redis):
    """A Redis client that simulates another replica: each lookup is followed by the name of a newer stream."""

    async def do(self, command: str, *args: Any, **options: Any) -> Any:
        result = await super().do(command, *args, **options)
        if command in ("hget", "hgetall"):
            await self.client.hset("llamapool:streams:me", ID, "llamapool:stream:new 2")
        return result


async def shared_bytes(streams: KeptStreams) -> int:
    """Return the bytes of the shared stream, or -1 if there is none."""
    stream = await streams.find("me", ID)
    return -1 if stream is None else stream.total_bytes


async def test_failed_stream_does_not_remove_a_newer_one_of_another_replica(redis: RedisServer) -> None:
    clients = [Redis(redis.url) for _ in range(3)]
    a, b, reader = map(KeptStreams, clients)

    async def fail() -> AsyncGenerator[bytes, None]:
        raise ValueError
        yield b""

    async with asyncio.timeout(60):
        older = a.open("me", ID)
        while await shared_bytes(reader) != 0:
            pass
        newer = b.open("me", ID)
        newer.append(b"new")
        while await shared_bytes(reader) != 3:
            pass
        older.produce(fail(), error=lambda _: b"")
        await asyncio.gather(*a._copying)
        n_bytes_after = await shared_bytes(reader)
        newer.append(b"er")
        newer.finish()
        await asyncio.gather(*b._copying)
        assert (n_bytes_after, await shared_bytes(reader)) == (3, 5)
    for client in clients:
        await client.close()


async def test_slow_stop_does_not_remove_the_next_stream(redis: RedisServer) -> None:
    clients = [Redis(redis.url) for _ in range(2)]
    streams, reader = map(KeptStreams, clients)
    stopping, ended = asyncio.Event(), asyncio.Event()

    async def produce() -> AsyncGenerator[bytes, None]:
        try:
            yield b"old"
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await ended.wait()

    async with asyncio.timeout(60):
        streams.open("me", ID).produce(produce(), error=lambda _: b"")
        while await shared_bytes(reader) != 3:
            pass
        stop = asyncio.create_task(streams.stop("me", ID))
        await stopping.wait()
        newer = streams.open("me", ID)
        newer.append(b"newer")
        while await shared_bytes(reader) != 5:
            pass
        ended.set()
        await stop
        newer.finish()
        await asyncio.gather(*streams._copying)
        assert await shared_bytes(reader) == 5
    for client in clients:
        await client.close()


@pytest.mark.parametrize("operation", [KeptStreams.find, KeptStreams.stop])
async def test_lookup_or_stop_of_an_expired_stream_keeps_a_newer_name(
    redis: RedisServer, operation: Callable[[KeptStreams, str, str], Awaitable[object]]
) -> None:
    client = RenamingRedis(redis.url)
    await client.client.hset("llamapool:streams:me", ID, "llamapool:stream:expired 1")
    assert await operation(KeptStreams(client), "me", ID) is None
    assert await client.client.hget("llamapool:streams:me", ID) == b"llamapool:stream:new 2"
    await client.close()


async def test_names_of_expired_streams_are_removed(redis: RedisServer) -> None:
    client = Redis(redis.url)
    expired = {f"old {n}": f"llamapool:stream:{n} 1" for n in range(8)}
    await client.client.hset("llamapool:streams:me", mapping=expired)
    streams = KeptStreams(client)
    async with asyncio.timeout(60):
        for name in ("a", "b"):  # each new stream checks eight names
            stream = streams.open("me", name)
            stream.append(b"new")
            stream.finish()
            await asyncio.gather(*streams._copying)
    assert sorted(await client.client.hkeys("llamapool:streams:me")) == [b"a", b"b"]
    await client.close()


async def test_requests_continue_while_redis_is_down(
    serve: Serve, redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = key_file(tmp_path, ada={"requests_per_minute": 3}, **{"sk-one": {"scopes": ["infer", "metrics"]}})
    async with replicas(serve, redis, keys_file=str(keys)) as (a, b):
        first = await create_response(a)
        redis.kill()
        with caplog.at_level(logging.WARNING):
            assert (await chat(a.api, "ada")).headers["x-ratelimit-remaining-requests"] == "2"
            assert [(await chat(a.api, "ada")).status_code for _ in range(3)] == [200, 200, 429]
            during = await create_response(a)
            assert (during.output_text, is_stored(during)) == ("Hello!", False)
            with pytest.raises(InternalServerError, match=r"Redis at .* cannot be used now"):
                await create_response(a, "Bye", previous_response_id=first.id)
            reply = await a.api.client.post("/v1/chat/completions", json=CHAT, headers=ID_HEADER | bearer("sk-one"))
            again = await a.api.client.get(STREAM_URL, headers=bearer("sk-one"))
            assert again.content == reply.content
        (message,) = {r.message for r in caplog.records if "until it is back" in r.message}
        assert "each replica counts rate limits by itself, responses are not stored" in message
        caplog.clear()
        redis.start()
        with caplog.at_level(logging.WARNING):
            assert is_stored(await create_response(b))
            after = await create_response(a)
            assert (await b.client.responses.retrieve(after.id)).output_text == "Hello!"
        assert {r.message for r in caplog.records if "can be used again" in r.message}
        assert (await create_response(b, "Bye", previous_response_id=first.id)).output_text == "Farewell."
        for each in (b, a):  # each writes its own counts
            usage = await each.api.client.get("/v1/usage", headers=bearer("sk-one"))
        # Requests during the outage count as well. A write that the outage interrupted may count twice.
        assert sum(row["requests"] for row in usage.json()["data"]) >= 1 + 3 + 1 + 1 + 3


async def test_background_response_that_ends_while_redis_is_down_has_failed(
    serve: Serve, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "POLL_S", 0.01)
    steps = threading.Semaphore(0)
    async with replicas(serve, redis, steps) as (a, b):
        queued = await create_response(a, background=True)
        assert (await b.client.responses.retrieve(queued.id)).status in ("queued", "in_progress")
        redis.kill()
        steps.release(1000)
        await until(lambda: "is stored later" in caplog.text)
        redis.start()
        await until(lambda: not a.api.app.state.services.unsettled)
        failed = await b.client.responses.retrieve(queued.id)
        assert failed.status == "failed"
        assert failed.error
        assert failed.error.message == "the response could not be stored"
