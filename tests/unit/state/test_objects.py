"""Stored objects: chains, large values, quotas, expiry, and the file."""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import ConfigError, InvalidRequest
from server.state.batches import BatchLine, BatchLines
from server.state.database import Database, open_database
from server.state.objects import LARGE_CHARS, Json, Kind, Objects, QuotaExceeded

MIB = 1 << 20
LARGE = "x" * (LARGE_CHARS + 1)


class Clock:
    """Advances by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def objects() -> Iterator[Objects]:
    database = Database(None)
    yield Objects(database, MIB, Clock())
    database.close()


def message(item_id: str, text: str) -> Json:
    return {"id": item_id, "type": "message", "text": text}


async def put(
    objects: Objects, response_id: str, text: str = "", *, parent: str | None = None, owner: str = "me"
) -> None:
    body = {"id": response_id, "status": "completed"}
    inputs, outputs = [message(f"in_{response_id}", text)], [message(f"out_{response_id}", "reply")]
    await objects.put(owner, "response", body, parent=parent, inputs=inputs, outputs=outputs)


async def chain_ids(objects: Objects, response_id: str) -> list[str] | None:
    chain = await objects.chain("me", response_id)
    return None if chain is None else [item["id"] for item in chain]


async def stored_bytes(objects: Objects) -> int:
    def count(db: sqlite3.Connection) -> int:
        found: int = db.execute("SELECT coalesce(sum(n_bytes), 0) FROM blobs").fetchone()[0]
        return found

    return await objects.database.run(count)


async def test_a_chain_has_the_items_of_every_response_before(objects: Objects) -> None:
    await put(objects, "a")
    await put(objects, "b", parent="a")
    await put(objects, "c", parent="b")
    assert await chain_ids(objects, "c") == ["in_a", "out_a", "in_b", "out_b", "in_c", "out_c"]
    assert await chain_ids(objects, "unknown") is None


async def test_no_owner_finds_what_belongs_to_another(objects: Objects) -> None:
    await put(objects, "a", LARGE)
    assert await objects.get("you", "response", "a") is None
    assert await objects.chain("you", "a") is None
    assert await objects.find_items("you", ["in_a"]) == {}
    assert not await objects.remove("you", "response", "a")
    assert await objects.get("me", "response", "a") is not None


async def test_a_large_string_is_stored_once_and_deleted_with_its_last_use(objects: Objects) -> None:
    await put(objects, "a", LARGE)
    await put(objects, "b", LARGE, parent="a")
    assert await stored_bytes(objects) == len(LARGE)
    assert [item["text"] for item in await objects.items("me", "b", is_output=False)] == [LARGE]
    await objects.remove("me", "response", "b")
    assert await stored_bytes(objects) == len(LARGE)
    await objects.remove("me", "response", "a")
    assert await stored_bytes(objects) == 0


async def test_a_deleted_response_keeps_its_items_while_others_continue_it(objects: Objects) -> None:
    await put(objects, "a", LARGE)
    await put(objects, "b", parent="a")
    assert await objects.remove("me", "response", "a")
    assert await objects.get("me", "response", "a") is None
    assert not await objects.remove("me", "response", "a")
    assert await chain_ids(objects, "b") == ["in_a", "out_a", "in_b", "out_b"]
    await objects.remove("me", "response", "b")
    assert await stored_bytes(objects) == 0


async def test_the_least_recently_used_chain_is_evicted_from_its_end(objects: Objects) -> None:
    text = "é" * 150_000  # each a string of its own, 300 kB
    await put(objects, "a", text + "a")
    await put(objects, "b", text + "b", parent="a")
    await put(objects, "c", text + "c")
    await objects.chain("me", "b")
    await put(objects, "d", text + "d")
    assert await objects.get("me", "response", "c") is None
    assert await chain_ids(objects, "b") == ["in_a", "out_a", "in_b", "out_b"]
    await put(objects, "e", text + "e")
    assert await objects.get("me", "response", "d") is None
    await put(objects, "f", text + "f")
    assert await objects.get("me", "response", "b") is None
    assert await chain_ids(objects, "a") == ["in_a", "out_a"]


async def test_what_exceeds_the_quota_is_refused_and_evicts_nothing(objects: Objects) -> None:
    await put(objects, "a")
    with pytest.raises(QuotaExceeded, match="1 MiB"):
        await put(objects, "b", "x" * (2 * MIB))
    assert await objects.get("me", "response", "a") is not None
    assert await objects.get("me", "response", "b") is None
    await put(objects, "c", owner="you")


async def test_files_are_never_evicted(objects: Objects) -> None:
    await objects.put("me", "file", {"id": "file-1"}, data=b"x" * (MIB - 1000))
    with pytest.raises(QuotaExceeded):
        await objects.put("me", "file", {"id": "file-2"}, data=b"y" * 2000)
    assert await objects.data("me", "file-1") == b"x" * (MIB - 1000)


async def test_expired_responses_are_deleted(objects: Objects) -> None:
    for name, expires_at in (("a", 100.0), ("b", 1e6), ("c", None)):
        await objects.put("me", "response", {"id": name}, inputs=[message("i", LARGE)], expires_at=expires_at)
    clock = objects.clock
    assert isinstance(clock, Clock)
    clock.now = 1000
    assert await objects.expire() == 1
    assert [await objects.get("me", "response", name) is None for name in "abc"] == [True, False, False]


async def test_lists_are_paged_in_both_orders(objects: Objects) -> None:
    for number in range(5):
        await objects.put("me", "file", {"id": f"f{number}", "created_at": 7}, label="ab"[number % 2])

    async def listed(**query: Any) -> tuple[list[str], bool]:
        page = await objects.find("me", "file", **{"after": None, "limit": 10, "newest_first": False, **query})
        return [each["id"] for each in page.data], page.has_more

    assert await listed() == (["f0", "f1", "f2", "f3", "f4"], False)
    assert await listed(newest_first=True, limit=2) == (["f4", "f3"], True)
    assert await listed(after="f1", limit=2) == (["f2", "f3"], True)
    assert await listed(label="b") == (["f1", "f3"], False)
    with pytest.raises(InvalidRequest, match="after"):
        await listed(after="f9")


texts = st.text(st.characters(codec="utf-8"), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts | st.builds(lambda t: t + LARGE, texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(json_values, max_size=4))
def test_every_json_value_is_read_as_it_was_written(values: list[Any]) -> None:
    async def round_trip(objects: Objects) -> None:
        items = [{"id": str(number), "value": value} for number, value in enumerate(values)]
        await objects.put("me", "conversation", {"id": "c", "values": values}, inputs=items[:2])
        await objects.append("me", "c", items[2:])
        assert await objects.items("me", "c") == items
        assert (await objects.get("me", "conversation", "c") or {})["values"] == values

    run(round_trip)


def run(work: Callable[[Objects], Coroutine[Any, Any, None]]) -> None:
    database = Database(None)
    try:
        asyncio.run(work(Objects(database, 1 << 30)))
    finally:
        database.close()


def test_a_file_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(ConfigError, match="newer"):
        Database(path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite3"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match="state"):
        open_database(str(path))


async def test_unfinished_work_is_taken_over_when_its_server_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite3"
    first, second = (Objects(Database(path), MIB) for _ in range(2))
    for name, status in (("a", "in_progress"), ("b", "completed")):
        await first.put("me", "batch", {"id": name, "status": status})
    assert [batch["id"] for _, batch in await first.unfinished("batch", ["in_progress"])] == ["a"]
    assert await second.take_over("batch", ["in_progress"]) == []
    first.database.close()
    third = Objects(Database(path), MIB)
    assert await second.take_over("batch", ["in_progress"], lambda batch: batch["id"] != "a") == []
    third.database.close()  # alone, a server takes also what it would rather leave to others
    assert [batch["id"] for _, batch in await second.take_over("batch", ["in_progress"], lambda _: False)] == ["a"]
    assert [batch["id"] for _, batch in await second.unfinished("batch", ["in_progress"])] == ["a"]
    second.database.close()
    assert os.listdir(tmp_path) == ["state.sqlite3"]


async def test_the_sum_of_stored_bytes_follows_every_change(objects: Objects) -> None:
    def used(db: sqlite3.Connection) -> tuple[int, int]:
        kept = db.execute("SELECT coalesce(sum(n_bytes), 0) FROM usage").fetchone()[0]
        items = "SELECT coalesce(sum(length(body)), 0) FROM items"
        bodies = "SELECT coalesce(sum(length(body)), 0) FROM objects"
        blobs = "SELECT coalesce(sum(length(data)), 0) FROM blobs"
        lines = "SELECT coalesce(sum(length(request) + coalesce(length(result), 0)), 0) FROM batch_lines"
        return kept, sum(db.execute(each).fetchone()[0] for each in (items, bodies, blobs, lines))

    async def check() -> int:
        kept, counted = await objects.database.run(used)
        assert kept == counted
        return kept

    lines = BatchLines(objects.database)
    await put(objects, "a", LARGE)
    await put(objects, "b", LARGE, parent="a")
    await put(objects, "b", "short", parent="a")
    await objects.put("me", "conversation", {"id": "c"}, inputs=[message("1", LARGE + "c")])
    await objects.append("me", "c", [message("2", "short")])
    await objects.update("me", "conversation", "c", lambda body: {**body, "metadata": {"large": LARGE + "d"}})
    await objects.update("me", "conversation", "c", lambda body: {**body, "metadata": {}})
    added = lines.adding("me", "d", [BatchLine(n, str(n), b"{}") for n in range(3)])
    await objects.put("me", "batch", {"id": "d"}, also=added)
    await lines.store("me", "d", 1, "completed", {"body": "x"})
    assert await check() > 0
    assert await objects.remove_item("me", "c", "1")
    await check()
    kinds: list[tuple[Kind, str]] = [("response", "a"), ("response", "b"), ("conversation", "c"), ("batch", "d")]
    for kind, name in kinds:
        assert await objects.remove("me", kind, name)
        await check()
    assert await check() == 0


def test_the_default_file_falls_back_to_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    database = open_database("auto")
    database.close()
    assert database.path is None
    assert "kept in memory" in caplog.text
