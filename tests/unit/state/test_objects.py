"""Stored objects in SQLite and in a real Redis: chains, quotas, expiry, lists, take-over, and the database file."""

import asyncio
import gc
import os
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest

from server.errors import ConfigError, InvalidRequest, NotFound, Unavailable
from server.state import redis_objects
from server.state.batches import BatchLine, BatchObjects
from server.state.database import Database, open_database
from server.state.objects import Json, Kind, Objects, PageQuery, QuotaExceeded, pack
from server.state.redis import Redis
from server.state.redis_objects import WORKER_TTL_S, RedisObjects
from server.state.sqlite_objects import SqliteObjects
from tests.support.redis_server import RedisServer, needs_redis, running_redis
from tests.unit.clock import Clock

MIB = 1 << 20
DISK_IS_FULL = "CREATE TRIGGER disk BEFORE {} ON objects BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as running:
        yield running


class Replicas:
    """Two servers on one Redis."""

    def __init__(self, server: RedisServer) -> None:
        self.clients = [Redis(server.url), Redis(server.url)]
        self.clock = Clock(0.0)
        self.a, self.b = (RedisObjects(client, MIB, self.clock) for client in self.clients)

    async def expire_heartbeat(self, replica: RedisObjects) -> None:
        await self.clients[0].client.delete(f"llamapool:worker:{replica.worker}")


@pytest.fixture
async def replicas(server: RedisServer) -> AsyncIterator[Replicas]:
    started = Replicas(server)
    await started.clients[0].client.flushall()
    yield started
    for client in started.clients:
        await client.close()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis)])
async def objects(request: pytest.FixtureRequest) -> AsyncIterator[Objects]:
    """An empty store with a quota of 1 MiB. Its clock advances by a second with each put."""
    database = Database(None)
    clock = Clock(0.0)
    if request.param == "sqlite":
        yield SqliteObjects(database, MIB, clock)
    else:
        client = Redis(request.getfixturevalue("server").url)
        await client.client.flushall()
        yield RedisObjects(client, MIB, clock)
        await client.close()
    database.close()


@pytest.fixture
def batches() -> Iterator[BatchObjects]:
    database = Database(None)
    yield BatchObjects(database, MIB)
    database.close()


def advance(objects: Objects, seconds: float = 1.0) -> None:
    assert isinstance(objects.clock, Clock)
    objects.clock.now += seconds


async def used_bytes(objects: Objects, owner: str = "me") -> int:
    if isinstance(objects, RedisObjects):
        return int(await objects.redis.do("get", f"llamapool:bytes:{owner}") or 0)
    assert isinstance(objects, SqliteObjects)
    rows = await objects.database.execute("SELECT n_bytes FROM usage WHERE owner = ?", (owner,))
    return int(rows[0]["n_bytes"]) if rows else 0


def message(item_id: str, text: str) -> Json:
    return {"id": item_id, "type": "message", "text": text}


async def put(objects: Objects, response_id: str, text: str = "", *, parent: str | None = None) -> None:
    advance(objects)
    body = {"id": response_id, "status": "completed"}
    inputs, outputs = [message(f"in_{response_id}", text)], [message(f"out_{response_id}", "reply")]
    await objects.put("me", "response", body, parent=parent, inputs=inputs, outputs=outputs)


async def chain_ids(objects: Objects, response_id: str) -> list[str] | None:
    chain = await objects.chain("me", response_id)
    return None if chain is None else [item["id"] for item in chain]


async def test_chain_contains_the_items_of_all_earlier_responses(objects: Objects) -> None:
    await put(objects, "a", "\0 é")
    await put(objects, "b", parent="a")
    await put(objects, "c", parent="b")
    assert await chain_ids(objects, "c") == ["in_a", "out_a", "in_b", "out_b", "in_c", "out_c"]
    assert await chain_ids(objects, "unknown") is None
    assert await objects.items("me", "a", is_output=False) == [message("in_a", "\0 é")]
    assert await objects.find_items("me", ["in_a", "no"]) == {"in_a": message("in_a", "\0 é")}


async def test_items_of_a_deleted_response_are_kept_while_others_continue_it(objects: Objects) -> None:
    await put(objects, "a")
    await put(objects, "b", parent="a")
    assert await objects.remove("me", "response", "a")
    assert await objects.get("me", "response", "a") is None
    assert not await objects.remove("me", "response", "a")
    assert await chain_ids(objects, "a") is None
    assert await chain_ids(objects, "b") == ["in_a", "out_a", "in_b", "out_b"]
    assert await objects.remove("me", "response", "b")
    assert await objects.find_items("me", ["in_a", "in_b"]) == {}
    assert await used_bytes(objects) == 0


async def test_response_is_not_stored_without_its_parent(objects: Objects) -> None:
    with pytest.raises(NotFound, match="'a' not found"):
        await put(objects, "b", parent="a")
    assert await objects.get("me", "response", "b") is None
    assert await used_bytes(objects) == 0


async def test_least_recently_used_chain_is_evicted_from_its_last_response(objects: Objects) -> None:
    text = "é" * 150_000  # 300 kB
    for name, parent in (("a", None), ("b", "a"), ("c", None)):
        await put(objects, name, text, parent=parent)
    advance(objects)
    await objects.chain("me", "b")
    await put(objects, "d", text)
    assert await objects.get("me", "response", "c") is None
    advance(objects)
    assert await chain_ids(objects, "b") == ["in_a", "out_a", "in_b", "out_b"]
    await put(objects, "e", text)
    assert await objects.get("me", "response", "d") is None
    await put(objects, "f", text)
    assert await objects.get("me", "response", "b") is None
    assert await chain_ids(objects, "a") == ["in_a", "out_a"]
    with pytest.raises(QuotaExceeded, match="1 MiB"):
        await put(objects, "g", "x" * (2 * MIB))
    assert await chain_ids(objects, "a") == ["in_a", "out_a"]
    assert await objects.get("me", "response", "g") is None
    assert 600_000 < await used_bytes(objects) <= MIB


async def test_files_are_listed_in_pages_and_never_evicted(objects: Objects) -> None:
    for number, name in enumerate("abcde"):
        advance(objects)
        label = "odd" if number % 2 else None
        data = random.Random(number).randbytes(200_000)
        await objects.put("me", "file", {"id": name}, data=data, label=label)
    with pytest.raises(QuotaExceeded):
        await objects.put("me", "file", {"id": "f"}, data=b"x" * 100_000)

    async def list_files(**query: Any) -> tuple[str, bool]:
        page = await objects.find("me", "file", PageQuery(**{"limit": 10, "newest_first": False, **query}))
        return "".join(each["id"] for each in page.data), page.has_more

    assert await list_files() == ("abcde", False)
    assert await list_files(newest_first=True, limit=2) == ("ed", True)
    assert await list_files(after="b", limit=2) == ("cd", True)
    assert await list_files(newest_first=True, after="c") == ("ba", False)
    assert await list_files(label="odd") == ("bd", False)
    with pytest.raises(InvalidRequest, match="no object with id 'x'"):
        await list_files(after="x")
    assert await objects.data("me", "c") == random.Random(2).randbytes(200_000)
    assert await objects.data("you", "c") is None


async def test_items_are_appended_to_and_removed_from_conversations(objects: Objects) -> None:
    await objects.put("me", "conversation", {"id": "k"}, inputs=[message("1", "one")])
    assert await objects.append("me", "k", [message("2", "two")])
    assert not await objects.append("me", "unknown", [message("3", "three")])
    await objects.put("me", "response", {"id": "r"}, outputs=[message("4", "four")], append_to="k")
    page = await objects.page_of_items("me", "k", PageQuery(after="4", limit=1))
    assert ([item["id"] for item in page.data], page.has_more) == (["2"], True)
    assert await objects.item("me", "k", "4") == message("4", "four")
    assert await objects.remove_item("me", "k", "2")
    assert not await objects.remove_item("me", "k", "2")
    assert await objects.find_items("me", ["2"]) == {}
    assert [item["id"] for item in await objects.items("me", "k")] == ["1", "4"]
    assert await objects.update("me", "conversation", "k", lambda body: {**body, "n": 1}) == {"id": "k", "n": 1}
    kinds: list[tuple[Kind, str]] = [("conversation", "k"), ("response", "r")]
    assert [await objects.remove("me", *each) for each in kinds] == [True, True]
    assert await used_bytes(objects) == 0


async def test_items_with_an_id_that_the_object_has_get_another_id(objects: Objects) -> None:
    """Pages and deletions name items by id: a client that paged over an id that occurs twice never reached the end."""
    await objects.put("me", "conversation", {"id": "k"}, inputs=[message("msg_1", "one"), message("msg_1", "two")])
    added = await objects.append("me", "k", [message("msg_1", "three"), message("msg_2", "four")])
    await objects.put("me", "response", {"id": "r"}, inputs=[message("msg_1", "five")], append_to="k")
    items = await objects.items("me", "k")
    assert [item["text"] for item in items] == ["one", "two", "three", "four", "five"]
    assert items[2:4] == added
    ids = [item["id"] for item in items]
    assert (ids[0], ids[3], len(set(ids))) == ("msg_1", "msg_2", 5)
    assert {item_id.partition("_")[0] for item_id in ids} == {"msg"}
    assert [item["id"] for item in await objects.items("me", "r")] == ["msg_1"]


async def test_conversation_with_too_many_json_values_can_only_shrink(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await objects.put("me", "conversation", {"id": "k"}, inputs=[message("1", "one"), message("2", "two")])
    monkeypatch.setattr("server.state.objects.MAX_CONVERSATION_VALUES", 50)
    large = {**message("3", ""), "content": [{}] * 30}
    with pytest.raises(QuotaExceeded, match="at most 50 JSON values"):
        await objects.append("me", "k", [large])
    with pytest.raises(QuotaExceeded):
        await objects.put("me", "response", {"id": "r"}, outputs=[large], append_to="k")
    assert await objects.get("me", "response", "r") is None
    await objects.put("me", "response", {"id": "r"}, outputs=[large])
    monkeypatch.setattr("server.state.objects.MAX_CONVERSATION_VALUES", 5)
    assert await objects.update("me", "conversation", "k", lambda body: {**body, "n": 1}) == {"id": "k", "n": 1}
    assert await objects.remove_item("me", "k", "2")
    assert [item["id"] for item in await objects.items("me", "k")] == ["1"]


async def test_response_and_its_append_are_stored_together_or_not_at_all(objects: Objects) -> None:
    await objects.put("me", "conversation", {"id": "k"})
    before = await used_bytes(objects)
    with pytest.raises(QuotaExceeded):  # each of the two fits
        await objects.put("me", "response", {"id": "r"}, outputs=[message("1", "x" * 600_000)], append_to="k")
    assert await objects.get("me", "response", "r") is None
    assert await objects.items("me", "k") == []
    assert await used_bytes(objects) == before


@pytest.mark.parametrize("deleted", ["response", "conversation"])
async def test_item_of_two_objects_is_found_until_both_are_deleted(objects: Objects, deleted: Kind) -> None:
    item = message("m", "Hi")
    await objects.put("me", "conversation", {"id": "conversation"})
    await objects.put("me", "response", {"id": "response"}, inputs=[item], append_to="conversation")
    await objects.remove("me", deleted, deleted)
    assert await objects.find_items("me", ["m", "n"]) == {"m": item}
    for kind in ("response", "conversation"):
        await objects.remove("me", kind, kind)
    assert not await objects.find_items("me", ["m"])


async def test_expired_objects_are_deleted(objects: Objects) -> None:
    for name, expires_at in (("a", 100.0), ("b", 1e6), ("c", None)):
        await objects.put("me", "response", {"id": name}, expires_at=expires_at)
    advance(objects, 1000)
    assert await objects.expire() == 1
    assert [await objects.get("me", "response", name) is None for name in "abc"] == [True, False, False]


# ---- SQLite


def test_database_file_of_another_format_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(ConfigError, match=r"another Llamapool \(format 99.*or install that version"):
        Database(path)
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match="state"):
        open_database(str(path))


def test_connections_of_refused_files_and_unreferenced_databases_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def recorded(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connections.append(connect(*args, **kwargs))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", recorded)
    (tmp_path / "state.sqlite3").write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError):
        Database(tmp_path / "state.sqlite3")
    Database(None)
    gc.collect()
    assert len(connections) == 2
    for connection in connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_two_servers_can_create_the_file_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite does not wait for the other server's lock when the journal mode is changed."""
    other = sqlite3.connect(tmp_path / "state.sqlite3", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    connect = sqlite3.connect

    def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(lambda statement: statement == "BEGIN IMMEDIATE" and other.execute("COMMIT"))
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    Database(tmp_path / "state.sqlite3").close()
    other.close()


async def test_batch_and_its_requests_are_stored_together_or_not_at_all(batches: BatchObjects) -> None:
    await batches.database.execute(DISK_IS_FULL.format("INSERT"))
    with pytest.raises(Unavailable):
        await batches.add_batch("me", {"id": "d", "api": "openai"}, [BatchLine(0, "0", b"{}")])
    assert await used_bytes(batches) == 0


async def test_rows_of_a_batch_are_built_in_another_thread(batches: BatchObjects) -> None:
    threads = set()

    class Lines(list[BatchLine]):
        def __iter__(self) -> Iterator[BatchLine]:
            threads.add(threading.get_ident())
            return super().__iter__()

    await batches.add_batch("me", {"id": "d", "api": "openai"}, Lines([BatchLine(0, "0", b"{}")]))
    assert (await batches.line_counts("me", "d"))["total"] == 1
    assert threads
    assert threading.get_ident() not in threads


async def test_chain_is_read_while_the_disk_is_full() -> None:
    objects = SqliteObjects(Database(None), MIB, Clock(0.0))
    await put(objects, "a")
    await objects.database.execute(DISK_IS_FULL.format("UPDATE"))
    assert await chain_ids(objects, "a") == ["in_a", "out_a"]
    objects.database.close()


async def test_unfinished_work_of_an_ended_server_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite3"
    first, second = (SqliteObjects(Database(path), MIB) for _ in range(2))
    for name, status in (("a", "in_progress"), ("b", "completed")):
        await first.put("me", "batch", {"id": name, "status": status})
    assert [batch["id"] for _, batch in await first.unfinished("batch")] == ["a"]
    assert await second.take_over("batch") == []
    first.database.close()
    third = SqliteObjects(Database(path), MIB)
    assert await second.take_over("batch", lambda batch: batch["id"] != "a") == []
    third.database.close()  # the last server takes over everything, whatever its filter says
    assert [batch["id"] for _, batch in await second.take_over("batch", lambda _: False)] == ["a"]
    assert [batch["id"] for _, batch in await second.unfinished("batch")] == ["a"]
    second.database.close()
    assert os.listdir(tmp_path) == ["state.sqlite3"]


async def test_requests_of_a_batch_count_as_usage_and_are_deleted_with_it(batches: BatchObjects) -> None:
    await batches.add_batch("me", {"id": "d", "api": "openai"}, [BatchLine(n, str(n), b"{}") for n in range(3)])
    before = await used_bytes(batches)
    await batches.store_result("me", "d", 1, "completed", {"body": "x"})
    assert await used_bytes(batches) == before + len(b'{"body":"x"}')
    assert await batches.remove("me", "batch", "d")
    assert await used_bytes(batches) == 0


def test_state_is_kept_in_memory_if_the_default_file_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    database = open_database("auto")
    database.close()
    assert database.path is None
    assert "kept in memory" in caplog.text


# ---- Redis


@needs_redis
async def test_document_with_its_items_has_a_size_limit(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_objects, "MAX_DOCUMENT_BYTES", 1000)
    await replicas.a.put("me", "conversation", {"id": "k"}, inputs=[message("1", "a" * 800)])
    with pytest.raises(QuotaExceeded, match="with all its items"):
        await replicas.a.append("me", "k", [message("2", "a" * 800)])
    assert [item["id"] for item in await replicas.b.items("me", "k")] == ["1"]


@needs_redis
async def test_parent_that_another_replica_deletes_before_the_write_is_missing(
    replicas: Replicas, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis import Redis as BlockingRedis

    await put(replicas.a, "a")
    client = BlockingRedis.from_url(server.url)

    def pack_late(*args: Any, **options: Any) -> bytes:
        client.delete("llamapool:object:me:a")
        return pack(*args, **options)

    monkeypatch.setattr(redis_objects, "pack", pack_late)
    with pytest.raises(NotFound):
        await put(replicas.b, "b", parent="a")
    client.close()


@needs_redis
@pytest.mark.parametrize("outage", ["none", "noticed", "unnoticed"])
async def test_responses_of_an_ended_replica_are_taken_over(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, outage: str
) -> None:
    """After an outage of Redis, the other replicas have time to send heartbeats. A replica notices the outage by a
    failed heartbeat, or by the expiry of its own key.
    """
    a, b = replicas.a, replicas.b
    assert await a.take_over("response") == []
    await a.put("me", "response", {"id": "r", "status": "queued"})
    assert await b.take_over("response") == []
    replicas.clock.now = WORKER_TTL_S + 1
    assert await b.take_over("response") == []  # the other replica runs
    if outage == "noticed":
        monkeypatch.setattr(replicas.clients[1], "_retry_at", float("inf"))
        with pytest.raises(Unavailable):
            await b.take_over("response")
        monkeypatch.undo()
    elif outage == "unnoticed":
        await replicas.expire_heartbeat(b)
    await replicas.expire_heartbeat(a)
    if outage != "none":
        assert await b.take_over("response") == []
        replicas.clock.now += WORKER_TTL_S
    assert await b.take_over("response") == [("me", {"id": "r", "status": "queued"})]
    await b.update("me", "response", "r", lambda body: {**body, "status": "failed"})
    assert await b.take_over("response") == []
    assert await a.get("me", "response", "r") == {"id": "r", "status": "failed"}


@needs_redis
async def test_failed_deletion_of_an_expired_object_is_repeated(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise Unavailable("Redis has gone away")

    await replicas.a.put("me", "file", {"id": "file"}, expires_at=1.0)
    replicas.clock.now = 2.0
    with monkeypatch.context() as patch:
        patch.setattr(RedisObjects, "drop", fail)
        with pytest.raises(Unavailable):
            await replicas.a.expire()
    assert await replicas.a.expire() == 1
    assert await replicas.a.get("me", "file", "file") is None


@needs_redis
async def test_objects_are_deleted_and_expire_while_redis_is_full(replicas: Replicas) -> None:
    a, client = replicas.a, replicas.clients[0].client
    for name in "abc":
        await put(a, name, parent={"b": "a"}.get(name))
    await a.put("me", "file", {"id": "file"}, data=b"x", expires_at=2.0)
    await a.put("me", "response", {"id": "old"}, expires_at=1.0)
    await a.put("me", "response", {"id": "new"}, parent="old", expires_at=9.0)
    await client.config_set("maxmemory", 1)
    try:
        replicas.clock.now = 5.0
        with pytest.raises(Unavailable):
            await put(a, "d")
        assert [await a.remove("me", "response", name) for name in "ac"] == [True, True]
        assert await chain_ids(a, "b") == ["in_a", "out_a", "in_b", "out_b"]
        assert await a.expire() == 2
        assert [await a.get("me", "response", name) for name in ("a", "c", "old")] == [None, None, None]
        replicas.clock.now = 10.0
        assert (await a.remove("me", "response", "b"), await a.expire()) == (True, 1)
        assert await a.load("me", "old") is None
        assert await used_bytes(a) == 0
    finally:
        await client.config_set("maxmemory", 0)


@needs_redis
async def test_hidden_response_whose_deletion_failed_is_evicted(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, drop_one = replicas.a, replicas.a._drop

    async def fail_for_parents(owner: str, object_id: str, *, only_hidden: bool = False) -> str | None:
        if only_hidden:
            raise Unavailable("Redis has gone away")
        return await drop_one(owner, object_id)

    await put(a, "a", "x" * (MIB // 2))
    await put(a, "b", parent="a")
    assert await a.remove("me", "response", "a")
    with monkeypatch.context() as patch:
        patch.setattr(a, "_drop", fail_for_parents)
        with pytest.raises(Unavailable):
            await a.remove("me", "response", "b")
    await put(a, "c", "x" * (MIB * 3 // 4))
    assert (await a.load("me", "a"), await chain_ids(a, "c")) == (None, ["in_c", "out_c"])


@needs_redis
async def test_append_and_lookup_in_a_long_conversation_take_few_commands(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append registers only its own item, and a lookup reads items in batches."""
    names, redis = [str(i) for i in range(250)], replicas.clients[0]
    await replicas.a.put("me", "conversation", {"id": "k"}, inputs=[message(name, "Hi") for name in names])
    await redis.client.config_resetstat()
    await replicas.a.append("me", "k", [message("x", "Hi")])
    assert (await redis.client.info("commandstats"))["cmdstat_sadd"]["calls"] == 1
    calls, call = list[Any](), redis.call

    async def recorded(command: Any) -> Any:
        calls.append(command)
        return await call(command)

    monkeypatch.setattr(redis, "call", recorded)
    assert (await replicas.a.find_items("me", [*names, "none"])).keys() == {*names}
    assert len(calls) < 10


@needs_redis
async def test_document_is_decoded_in_another_thread(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def recorded(packed: bytes, *, usedforsecurity: bool) -> Any:
        threads.append(threading.current_thread())
        return sha1(packed, usedforsecurity=usedforsecurity)

    monkeypatch.setattr(redis_objects, "sha1", recorded)
    await replicas.a.put("me", "file", {"id": "a"})
    assert await replicas.a.remove("me", "file", "a")
    assert threads
    assert threading.current_thread() not in threads


@needs_redis
async def test_refused_command_does_not_fail_later_ones(replicas: Replicas) -> None:
    await replicas.clients[0].client.set("llamapool:unfinished", "no hash")
    with pytest.raises(Unavailable):
        await replicas.clients[0].do("hgetall", "llamapool:unfinished")
    assert await replicas.clients[0].do("get", "llamapool:unfinished") == b"no hash"


async def test_redis_command_is_not_repeated_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.state.redis.TIMEOUT_S", 0.05)
    connections, answers = [], True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while data := await reader.read(1000):
            writer.write(b"+OK\r\n" * data.count(b"*") * answers)
        writer.close()

    async with await asyncio.start_unix_server(serve, tmp_path / "socket"):
        client = Redis(f"unix://{tmp_path}/socket")
        await client.do("ping")
        answers = False
        with pytest.raises(Unavailable):
            await client.do("ping")
        await client.close()
    assert len(connections) == 1


async def test_error_for_an_unreachable_redis_names_its_url(tmp_path: Path) -> None:
    client = Redis(f"unix://{tmp_path}/none.sock")
    objects = RedisObjects(client, MIB)
    for _ in range(2):  # the second fails without a connection attempt
        with pytest.raises(Unavailable, match=r"state in Redis at .*none.sock cannot be used now"):
            await objects.get("me", "response", "a")
    await client.close()
