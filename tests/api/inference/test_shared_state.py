"""Two replicas over one real Redis share responses, streams, limits and usage. Without Redis requests continue."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
from tests.api.inference.test_streams import AT, CHAT, ID, NAMED, let_all_through, lookup
from tests.api.scripted import opened as serving
from tests.api.streams import posting
from tests.api.transport.test_keys import bearer, chat, key_file
from tests.support.redis_server import RedisServer, needs_redis, running_redis

pytestmark = needs_redis
REPLIES = {"Hi": "Hello!", "Bye": "Farewell."}


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RedisServer]:
    monkeypatch.setattr("server.state.redis.RETRY_S", 0.0)
    monkeypatch.setattr("server.state.usage.RETRY_S", 0.01)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # for batches
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
    """Serve two applications; ``steps`` lets through single steps of the first."""
    first: AbstractAsyncContextManager[tuple[Api, AsyncOpenAI]] = serving(
        serve, REPLIES, steps, state=redis.url, **server
    )
    async with first as one, serving(serve, REPLIES, state=redis.url, **server) as two:
        yield Replica(*one), Replica(*two)


async def ask(replica: Replica, text: str = "Hi", **fields: Any) -> Response:
    response = await replica.client.responses.create(model="demo", input=text, **fields)
    assert isinstance(response, Response)
    return response


def stored(response: Response) -> Any:
    return (response.model_extra or {})["store"]


async def test_a_response_is_continued_and_deleted_through_another_replica(serve: Serve, redis: RedisServer) -> None:
    async with replicas(serve, redis) as (a, b):
        first = await ask(a)
        second = await ask(b, "Bye", previous_response_id=first.id)
        assert second.output_text == "Farewell."
        assert (await a.client.responses.retrieve(second.id)).output_text == "Farewell."
        conversation = await b.client.conversations.create(items=[{"role": "user", "content": "Hi"}])
        await ask(a, "Bye", conversation=conversation.id)
        items = await b.client.conversations.items.list(conversation.id)
        assert len(items.data) == 3
        file = await a.client.files.create(file=("a.txt", b"hello"), purpose="user_data")
        assert (await b.client.files.content(file.id)).content == b"hello"
        await b.client.responses.delete(second.id)
        with pytest.raises(NotFoundError):
            await a.client.responses.retrieve(second.id)


async def test_limits_are_those_of_all_replicas_together(serve: Serve, redis: RedisServer, tmp_path: Path) -> None:
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


async def test_usage_and_budgets_are_those_of_all_replicas(serve: Serve, redis: RedisServer, tmp_path: Path) -> None:
    keys = key_file(tmp_path, ada={"tokens_per_day": 1, "scopes": ["infer", "metrics"]}, bert={})
    async with replicas(serve, redis, keys_file=str(keys)) as (a, b):
        for each, name in ((a, "ada"), (b, "bert"), (a, "bert")):
            assert (await chat(each.api, name)).status_code == 200
        await a.api.client.get("/v1/usage", headers=bearer("ada"))  # writes what the replica has counted
        await b.api.client.get("/v1/usage", headers=bearer("ada"))
        found = (await b.api.client.get("/v1/usage", headers=bearer("ada"))).json()["data"]
        assert [(row["key"], row["requests"]) for row in found] == [("ada", 1), ("bert", 2)]
        assert "tokens per day" in (await chat(b.api, "ada")).text


async def test_a_stream_is_read_and_stopped_through_another_replica(serve: Serve, redis: RedisServer) -> None:
    steps = threading.Semaphore(0)
    async with replicas(serve, redis, steps) as (a, b):
        async with posting(a.api.app, "/v1/chat/completions", CHAT, NAMED) as exchange:
            steps.release(3)
            assert await exchange.start() == 200
            begun = await exchange.chunk()
        async with asyncio.timeout(60):
            while not (await b.api.client.post("/v1/streams/lookup", json={"conversation_ids": [ID]})).json():
                pass
        reading = asyncio.create_task(b.api.client.get(AT))
        let_all_through(steps)
        whole = (await reading).content
        assert whole.startswith(begun)
        assert whole == (await a.api.client.get(AT)).content
        assert (await b.api.client.get(f"{AT}&from=7")).content == whole[7:]
        assert (await b.api.client.get(f"{AT}&from={len(whole) + 1}")).content == b""
        (shown,) = await lookup(b.api, ID)
        assert (shown["is_done"], shown["total_bytes"]) == (True, len(whole))
        assert (await b.api.client.delete(AT)).status_code == 204
        assert await lookup(b.api, ID) == []


async def test_another_replica_stops_the_generation(serve: Serve, redis: RedisServer) -> None:
    steps = threading.Semaphore(0)
    async with replicas(serve, redis, steps) as (a, b):
        loaded = a.api.loaded()
        endless = {**CHAT, "messages": [{"role": "user", "content": "Go on"}], "max_tokens": 3000}
        async with posting(a.api.app, "/v1/chat/completions", endless, NAMED) as exchange:
            steps.release(3)
            assert await exchange.start() == 200
            await exchange.chunk()
            while not await lookup(b.api, ID):
                pass
            assert (await b.api.client.delete(AT)).status_code == 204
            async with asyncio.timeout(60):
                while loaded.busy:
                    steps.release()
                    await asyncio.sleep(0)
        assert await lookup(a.api, ID) == []


class RenamingRedis(Redis):
    """A client during whose lookup another replica names a newer stream."""

    async def do(self, command: str, *args: Any, **options: Any) -> Any:
        found = await super().do(command, *args, **options)
        if command in ("hget", "hgetall"):
            await self.client.hset("llamapool:streams:me", ID, "llamapool:stream:new 2")
        return found


async def shared_bytes(streams: KeptStreams) -> int:
    found = await streams.find("me", ID)
    return -1 if found is None else found.total_bytes


async def test_a_stream_that_fails_leaves_the_newer_one_of_another_replica(redis: RedisServer) -> None:
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


async def test_a_stop_that_waits_for_its_producer_leaves_the_next_stream(redis: RedisServer) -> None:
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


@pytest.mark.parametrize("work", [KeptStreams.find, KeptStreams.stop])
async def test_a_lookup_or_stop_of_an_older_stream_leaves_the_name_of_a_newer_one(
    redis: RedisServer, work: Callable[[KeptStreams, str, str], Awaitable[object]]
) -> None:
    client = RenamingRedis(redis.url)
    await client.client.hset("llamapool:streams:me", ID, "llamapool:stream:expired 1")
    assert await work(KeptStreams(client), "me", ID) is None
    assert await client.client.hget("llamapool:streams:me", ID) == b"llamapool:stream:new 2"
    await client.close()


async def test_the_names_of_expired_streams_do_not_pile_up(redis: RedisServer) -> None:
    client = Redis(redis.url)
    expired = {f"old {n}": f"llamapool:stream:{n} 1" for n in range(8)}
    await client.client.hset("llamapool:streams:me", mapping=expired)
    streams = KeptStreams(client)
    async with asyncio.timeout(60):
        for name in ("a", "b"):  # each checks eight
            stream = streams.open("me", name)
            stream.append(b"new")
            stream.finish()
            await asyncio.gather(*streams._copying)
    assert sorted(await client.client.hkeys("llamapool:streams:me")) == [b"a", b"b"]
    await client.close()


async def test_requests_continue_while_redis_is_away(
    serve: Serve, redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = key_file(tmp_path, ada={"requests_per_minute": 3}, **{"sk-one": {"scopes": ["infer", "metrics"]}})
    async with replicas(serve, redis, keys_file=str(keys)) as (a, b):
        first = await ask(a)
        redis.kill()
        with caplog.at_level(logging.WARNING):
            assert (await chat(a.api, "ada")).headers["x-ratelimit-remaining-requests"] == "2"
            assert [(await chat(a.api, "ada")).status_code for _ in range(3)] == [200, 200, 429]
            during = await ask(a)
            assert (during.output_text, stored(during)) == ("Hello!", False)
            with pytest.raises(InternalServerError, match=r"Redis at .* cannot be used now"):
                await ask(a, "Bye", previous_response_id=first.id)
            reply = await a.api.client.post("/v1/chat/completions", json=CHAT, headers=NAMED | bearer("sk-one"))
            again = await a.api.client.get(AT, headers=bearer("sk-one"))
            assert again.content == reply.content
        (said,) = {r.message for r in caplog.records if "until it is back" in r.message}
        assert "each replica counts rate limits by itself, responses are not stored" in said
        caplog.clear()
        redis.start()
        with caplog.at_level(logging.WARNING):
            assert stored(await ask(b))
            after = await ask(a)
            assert (await b.client.responses.retrieve(after.id)).output_text == "Hello!"
        assert {r.message for r in caplog.records if "can be used again" in r.message}
        assert (await ask(b, "Bye", previous_response_id=first.id)).output_text == "Farewell."
        for each in (b, a):  # each writes its own
            found = await each.api.client.get("/v1/usage", headers=bearer("sk-one"))
        # Those of the outage are counted, too. The write that the outage interrupted may be counted twice.
        assert sum(row["requests"] for row in found.json()["data"]) >= 1 + 3 + 1 + 1 + 3


async def test_a_background_response_that_ends_while_redis_is_away_has_failed(
    serve: Serve, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "POLL_S", 0.01)
    monkeypatch.setattr(background, "MAX_SETTLE_ATTEMPTS", 10_000)
    steps = threading.Semaphore(0)
    async with replicas(serve, redis, steps) as (a, b):
        queued = await ask(a, background=True)
        assert (await b.client.responses.retrieve(queued.id)).status in ("queued", "in_progress")
        redis.kill()
        let_all_through(steps)
        await until(lambda: "is stored later" in caplog.text)
        redis.start()
        await until(lambda: not a.api.app.state.services.background)
        found = await b.client.responses.retrieve(queued.id)
        assert found.status == "failed"
        assert found.error
        assert found.error.message == "the response could not be stored"
