"""Stored objects in a real Redis: chains, quotas, expiry, lists, and two replicas."""

import random
from collections.abc import AsyncIterator, Iterator

import pytest

from server.errors import InvalidRequest, Unavailable
from server.state import redis_objects
from server.state.database import Database
from server.state.objects import Json, Kind, Objects, QuotaExceeded
from server.state.redis import Redis
from server.state.redis_objects import WORKER_TTL_S, RedisObjects
from tests.support.redis_server import RedisServer, needs_redis, running_redis
from tests.unit.clock import Clock

pytestmark = needs_redis
MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as running:
        yield running


class Replicas:
    def __init__(self, server: RedisServer) -> None:
        self.databases = [Database(None), Database(None)]
        self.clients = [Redis(server.url) for _ in self.databases]
        self.clock = Clock(0.0)
        self.a, self.b = (
            RedisObjects(database, MIB, self.clock, redis=client)
            for database, client in zip(self.databases, self.clients, strict=True)
        )


@pytest.fixture
async def replicas(server: RedisServer) -> AsyncIterator[Replicas]:
    made = Replicas(server)
    await made.clients[0].client.flushall()
    yield made
    for client in made.clients:
        await client.close()
    for database in made.databases:
        database.close()


def message(item_id: str, text: str) -> Json:
    return {"id": item_id, "type": "message", "text": text}


def incompressible(n_chars: int) -> str:
    return random.Random(n_chars).randbytes(n_chars // 2).hex()


async def put(objects: Objects, response_id: str, text: str = "", *, parent: str | None = None) -> None:
    body = {"id": response_id, "status": "completed"}
    inputs, outputs = [message(f"in_{response_id}", text)], [message(f"out_{response_id}", "reply")]
    await objects.put("me", "response", body, parent=parent, inputs=inputs, outputs=outputs)


async def chain_ids(objects: Objects, response_id: str) -> list[str] | None:
    chain = await objects.chain("me", response_id)
    return None if chain is None else [item["id"] for item in chain]


async def test_replicas_continue_each_others_responses(replicas: Replicas) -> None:
    await put(replicas.a, "a")
    await put(replicas.b, "b", parent="a")
    assert await chain_ids(replicas.a, "b") == ["in_a", "out_a", "in_b", "out_b"]
    assert await replicas.b.find_items("me", ["in_a", "no"]) == {"in_a": message("in_a", "")}
    assert [i["id"] for i in await replicas.b.items("me", "a", is_output=True)] == ["out_a"]
    assert await replicas.a.chain("you", "b") is None
    assert await replicas.a.get("you", "response", "a") is None


async def test_a_deleted_response_keeps_its_items_while_others_continue_it(replicas: Replicas) -> None:
    await put(replicas.a, "a")
    await put(replicas.b, "b", parent="a")
    assert await replicas.b.remove("me", "response", "a")
    assert await replicas.a.get("me", "response", "a") is None
    assert not await replicas.a.remove("me", "response", "a")
    assert await chain_ids(replicas.a, "b") == ["in_a", "out_a", "in_b", "out_b"]
    assert await replicas.a.remove("me", "response", "b")
    left = await replicas.clients[0].client.keys("llamapool:*")
    assert left == [b"llamapool:bytes:me"]
    assert await replicas.clients[0].client.get("llamapool:bytes:me") == b"0"


async def test_the_least_recently_used_chain_is_evicted_from_its_end(replicas: Replicas) -> None:
    text = incompressible(300_000)
    for name, parent in (("a", None), ("b", "a"), ("c", None)):
        replicas.clock.now += 1
        await put(replicas.a, name, text, parent=parent)
    replicas.clock.now += 1
    await replicas.b.chain("me", "b")
    replicas.clock.now += 1
    await put(replicas.b, "d", text)
    assert await replicas.a.get("me", "response", "c") is None
    replicas.clock.now += 1
    await put(replicas.a, "e", text)
    assert await replicas.a.get("me", "response", "b") is None
    assert await chain_ids(replicas.b, "a") == ["in_a", "out_a"]
    with pytest.raises(QuotaExceeded, match="1 MiB"):
        await put(replicas.b, "f", incompressible(3 * MIB))
    assert await chain_ids(replicas.b, "a") == ["in_a", "out_a"]


async def test_the_quota_counts_uncompressed_bytes(replicas: Replicas) -> None:
    await put(replicas.a, "a", "a" * 600_000)
    assert int(await replicas.clients[0].client.get("llamapool:bytes:me")) > 600_000
    with pytest.raises(QuotaExceeded, match="1 MiB"):
        await put(replicas.b, "b", "b" * 2 * MIB)
    assert await replicas.b.remove("me", "response", "a")
    assert await replicas.clients[0].client.get("llamapool:bytes:me") == b"0"


async def test_a_document_has_a_limit_of_its_own(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_objects, "MAX_DOCUMENT_BYTES", 1000)
    await replicas.a.put("me", "conversation", {"id": "k"}, inputs=[message("1", "a" * 800)])
    with pytest.raises(QuotaExceeded, match="with all its items"):
        await replicas.a.append("me", "k", [message("2", "a" * 800)])
    assert [item["id"] for item in await replicas.b.items("me", "k")] == ["1"]


async def test_files_are_listed_in_pages_and_never_evicted(replicas: Replicas) -> None:
    for i, name in enumerate("abc"):
        replicas.clock.now += 1
        data = random.Random(i).randbytes(300_000)
        await replicas.a.put("me", "file", {"id": name}, data=data, label="even" if i % 2 else None)
    with pytest.raises(QuotaExceeded):
        await put(replicas.b, "r", incompressible(600_000))

    async def ids(objects: Objects, kind: Kind = "file", **query: object) -> tuple[list[str], bool]:
        page = await objects.find("me", kind, **({"after": None, "limit": 10, "newest_first": False} | query))  # type: ignore[arg-type]
        return [each["id"] for each in page.data], page.has_more

    assert await ids(replicas.b, limit=2) == (["a", "b"], True)
    assert await ids(replicas.b, limit=2, after="b") == (["c"], False)
    assert await ids(replicas.b, newest_first=True, after="c") == (["b", "a"], False)
    assert await ids(replicas.b, label="even") == (["b"], False)
    with pytest.raises(InvalidRequest, match="no object with id 'x'"):
        await ids(replicas.b, after="x")
    assert await replicas.b.data("me", "c") == random.Random(2).randbytes(300_000)


async def test_conversations_grow_and_shrink(replicas: Replicas) -> None:
    await replicas.a.put("me", "conversation", {"id": "k"}, inputs=[message("1", "one")])
    assert await replicas.b.append("me", "k", [message("2", "two")])
    assert not await replicas.b.append("me", "unknown", [message("3", "three")])
    await replicas.a.put("me", "response", {"id": "r"}, outputs=[message("4", "four")], append_to="k")
    page = await replicas.b.page_of_items("me", "k", after="4", limit=1, newest_first=True)
    assert ([item["id"] for item in page.data], page.has_more) == (["2"], True)
    assert await replicas.b.item("me", "k", "4") == message("4", "four")
    assert await replicas.a.remove_item("me", "k", "2")
    assert not await replicas.b.remove_item("me", "k", "2")
    assert [item["id"] for item in await replicas.b.items("me", "k")] == ["1", "4"]


async def test_expired_objects_are_deleted(replicas: Replicas) -> None:
    await replicas.a.put("me", "response", {"id": "a"}, expires_at=10.0)
    await replicas.a.put("me", "response", {"id": "b"})
    replicas.clock.now = 11.0
    assert await replicas.b.expire() == 1
    assert await replicas.a.get("me", "response", "a") is None
    assert await replicas.a.get("me", "response", "b") is not None


async def test_unfinished_responses_of_a_replica_that_has_ended_are_taken_over(replicas: Replicas) -> None:
    statuses = ("queued", "in_progress")
    assert await replicas.a.take_over("response", statuses) == []
    await replicas.a.put("me", "response", {"id": "r", "status": "queued"})
    assert await replicas.b.take_over("response", statuses) == []
    replicas.clock.now = WORKER_TTL_S
    assert await replicas.b.take_over("response", statuses) == []  # the other one runs
    await replicas.clients[0].client.delete(f"llamapool:worker:{replicas.databases[0].worker}")  # as its expiry does
    assert await replicas.b.take_over("response", statuses) == [("me", {"id": "r", "status": "queued"})]
    await replicas.b.update("me", "response", "r", lambda body: {**body, "status": "failed"})
    assert await replicas.b.take_over("response", statuses) == []
    assert await replicas.a.get("me", "response", "r") == {"id": "r", "status": "failed"}


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_after_an_outage_the_other_replicas_have_time_to_report(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, is_noticed: bool
) -> None:
    """A replica notices an outage by a failed heartbeat, or else by the expiry of its own key."""
    statuses = ("queued", "in_progress")
    await replicas.a.take_over("response", statuses)
    await replicas.a.put("me", "response", {"id": "r", "status": "queued"})
    await replicas.b.take_over("response", statuses)
    replicas.clock.now = WORKER_TTL_S + 1
    mine, other = (f"llamapool:worker:{replicas.databases[i].worker}" for i in (1, 0))
    if is_noticed:
        monkeypatch.setattr(replicas.clients[1], "_retry_at", float("inf"))
        with pytest.raises(Unavailable):
            await replicas.b.take_over("response", statuses)
        monkeypatch.undo()
    else:
        await replicas.clients[1].client.delete(mine)  # as its expiry does
    await replicas.clients[1].client.delete(other)
    assert await replicas.b.take_over("response", statuses) == []
    replicas.clock.now += WORKER_TTL_S
    assert len(await replicas.b.take_over("response", statuses)) == 1


async def test_a_refused_command_fails_alone(replicas: Replicas) -> None:
    await replicas.clients[0].client.set("llamapool:unfinished", "no hash")
    with pytest.raises(Unavailable):
        await replicas.clients[0].do("hgetall", "llamapool:unfinished")
    assert await replicas.clients[0].do("get", "llamapool:unfinished") == b"no hash"


async def test_a_server_that_is_not_there_is_an_error_that_says_so(tmp_path: object) -> None:
    database, client = Database(None), Redis(f"unix://{tmp_path}/none.sock")
    objects = RedisObjects(database, MIB, redis=client)
    for _ in range(2):  # the second fails without an attempt
        with pytest.raises(Unavailable, match=r"state in Redis at .*none.sock cannot be used now"):
            await objects.get("me", "response", "a")
    await client.close()
    database.close()
