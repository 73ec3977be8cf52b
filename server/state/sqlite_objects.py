"""The stored objects of one machine, in SQLite. Each method is one transaction."""

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from server.state.database import Database
from server.state.objects import (
    Change,
    Document,
    Json,
    Kind,
    Objects,
    Page,
    PageQuery,
    QuotaExceeded,
    missing_parent,
    n_bytes_of,
    pack,
    unknown_cursor,
    unpack,
)

_COLUMNS = ("kind", "label", "parent", "is_unfinished", "used_at", "expires_at", "document")
_UPSERT = f"""
INSERT INTO objects (owner, id, worker, n_bytes, data, {", ".join(_COLUMNS)})
  VALUES (:owner, :id, :worker, :n_bytes, :data, {", ".join(f":{name}" for name in _COLUMNS)})
  ON CONFLICT (owner, id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)},
  n_bytes = excluded.n_bytes + iif(excluded.data IS NULL, coalesce(length(data), 0), 0),
  data = coalesce(excluded.data, data), hidden = 0
"""  # noqa: S608 (fixed names)
_EXISTS = "SELECT 1 FROM objects WHERE owner = ? AND id = ?"
_EVICTABLE = """
SELECT id FROM objects o WHERE owner = ? AND kind = 'response' AND id <> ? AND NOT is_unfinished
  AND NOT EXISTS (SELECT 1 FROM objects c WHERE c.owner = o.owner AND c.parent = o.id)
  ORDER BY used_at, seq DESC LIMIT 1
"""
_DELETE_HIDDEN = """
DELETE FROM objects WHERE owner = ? AND id = ? AND hidden
  AND NOT EXISTS (SELECT 1 FROM objects c WHERE c.owner = objects.owner AND c.parent = objects.id) RETURNING parent
"""


class SqliteObjects(Objects):
    """`Objects` in a `Database`."""

    def __init__(self, database: Database, quota_bytes: int, clock: Callable[[], float] = time.time) -> None:
        super().__init__(quota_bytes, clock)
        self.database = database

    async def load(self, owner: str, object_id: str) -> Document | None:
        return await self.database.run(lambda db: _document(db, owner, object_id))

    async def ancestry(self, owner: str, object_id: str) -> dict[str, Document]:
        def transaction(db: sqlite3.Connection) -> dict[str, Document]:
            found: dict[str, Document] = {}
            following: str | None = object_id
            while following is not None and (document := _document(db, owner, following)) is not None:
                found[following], following = document, document.parent
            return found

        return await self.database.run(transaction)  # one transaction instead of one per document

    async def change(
        self,
        owner: str,
        changes: Mapping[str, Change],
        data: bytes | None = None,
        *,
        parent: str | None = None,
        within_quota: bool = True,
    ) -> Document | None:
        def transaction(db: sqlite3.Connection) -> Document | None:
            if parent is not None and not db.execute(_EXISTS, (owner, parent)).fetchone():
                raise missing_parent(parent)
            first = next(iter(changes))
            found = {
                object_id: self.change_one(
                    *(db, owner, object_id, change, data if object_id == first else None), within_quota=within_quota
                )
                for object_id, change in changes.items()
            }
            if within_quota and any(found.values()):
                self.evict(db, owner, keep=first)
            return found[first]

        return await self.database.run(transaction)

    def change_one(
        self,
        db: sqlite3.Connection,
        owner: str,
        object_id: str,
        change: Change,
        data: bytes | None = None,
        *,
        within_quota: bool = True,
    ) -> Document | None:
        """Apply `change` to one document as part of a transaction."""
        old = _document(db, owner, object_id)
        new = change(None if old is None or old.hidden else old)
        if new is None:
            return None
        packed = pack(new, within_quota=within_quota)
        values = {name: getattr(new, name) for name in ("kind", "label", "parent", "is_unfinished", "expires_at")}
        values |= {"owner": owner, "id": object_id, "worker": self.database.worker, "document": packed}
        values |= {"n_bytes": n_bytes_of(packed) + len(data or b""), "data": data, "used_at": self.clock()}
        db.execute(_UPSERT, values)
        before, now = ({item["id"] for _, item in each.items} if each else set() for each in (old, new))
        removed, added = (((owner, each, object_id) for each in ids) for ids in (before - now, now - before))
        db.executemany("DELETE FROM items WHERE owner = ? AND id = ? AND object_id = ?", removed)
        db.executemany("INSERT OR IGNORE INTO items (owner, id, object_id) VALUES (?, ?, ?)", added)
        return new

    async def drop(self, owner: str, object_id: str) -> None:
        await self.database.run(lambda db: _drop(db, owner, object_id))

    async def touch(self, owner: str, object_ids: Iterable[str]) -> None:
        values = [(self.clock(), owner, each) for each in object_ids]
        await self.database.run(
            lambda db: db.executemany("UPDATE objects SET used_at = ? WHERE owner = ? AND id = ?", values)
        )

    async def data(self, owner: str, object_id: str) -> bytes | None:
        query = "SELECT data FROM objects WHERE owner = ? AND id = ?"
        rows = await self.database.execute(query, (owner, object_id))
        return rows[0]["data"] if rows else None

    async def find(self, owner: str, kind: Kind, query: PageQuery) -> Page:
        def transaction(db: sqlite3.Connection) -> Page:
            where, values = "owner = ? AND kind = ? AND NOT hidden", [owner, kind]
            start: list[Any] = []
            if query.after is not None:
                seq = f"SELECT seq FROM objects WHERE {where} AND id = ?"  # noqa: S608
                row = db.execute(seq, (*values, query.after)).fetchone()
                if row is None:
                    raise unknown_cursor(query.after)
                start = [row["seq"]]
            sign, direction = ("<", "DESC") if query.newest_first else (">", "ASC")
            rows = db.execute(
                f"SELECT document FROM objects WHERE {where} AND label IS coalesce(?, label)"  # noqa: S608
                f"{f' AND seq {sign} ?' if start else ''} ORDER BY seq {direction} LIMIT ?",
                (*values, query.label, *start, query.limit + 1),
            ).fetchall()
            return Page([unpack(row["document"]).body for row in rows[: query.limit]], len(rows) > query.limit)

        return await self.database.run(transaction)

    async def objects_of_items(self, owner: str, item_ids: Sequence[str]) -> set[str]:
        query = "SELECT object_id FROM items WHERE owner = ? AND id = ? LIMIT 1"

        def transaction(db: sqlite3.Connection) -> set[str]:
            rows = [db.execute(query, (owner, each)).fetchone() for each in item_ids]
            return {row["object_id"] for row in rows if row is not None}

        return await self.database.run(transaction)

    async def take_over(self, kind: Kind, wanted: Callable[[Json], bool] = lambda _: True) -> list[tuple[str, Json]]:
        def transaction(db: sqlite3.Connection) -> list[tuple[str, Json]]:
            rows = db.execute(
                "SELECT owner, id, worker, document FROM objects"
                " WHERE kind = ? AND is_unfinished AND worker <> ? AND NOT hidden ORDER BY seq",
                (kind, self.database.worker),
            ).fetchall()
            ended = {each for each in {row["worker"] for row in rows} if not self.database.is_running(each)}
            takes_all = bool(ended) and self.database.is_alone()
            taken = []
            for row in rows:
                body = unpack(row["document"]).body
                if row["worker"] in ended and (takes_all or wanted(body)):
                    values = (self.database.worker, row["owner"], row["id"])
                    db.execute("UPDATE objects SET worker = ? WHERE owner = ? AND id = ?", values)
                    taken.append((row["owner"], body))
            return taken

        return await self.database.run(transaction)

    async def unfinished(self, kind: Kind) -> list[tuple[str, Json]]:
        """Return the unfinished objects that are assigned to this server, each with its owner."""
        query = "SELECT owner, document FROM objects WHERE kind = ? AND is_unfinished AND worker = ? AND NOT hidden"
        rows = await self.database.execute(f"{query} ORDER BY seq", (kind, self.database.worker))
        return [(row["owner"], unpack(row["document"]).body) for row in rows]

    async def expire(self) -> int:
        def transaction(db: sqlite3.Connection) -> int:
            query = "SELECT owner, id FROM objects WHERE expires_at < ? ORDER BY seq DESC"
            rows = db.execute(query, (self.clock(),)).fetchall()
            for row in rows:
                _drop(db, row["owner"], row["id"])
            return len(rows)

        return await self.database.run(transaction)

    def evict(self, db: sqlite3.Connection, owner: str, *, keep: str) -> None:
        """Evict the least recently used responses until the owner is within the quota. Raises `QuotaExceeded`."""
        while (used := db.execute("SELECT n_bytes FROM usage WHERE owner = ?", (owner,)).fetchone()) is not None:
            if used["n_bytes"] <= self.quota_bytes:
                return
            row = db.execute(_EVICTABLE, (owner, keep)).fetchone()
            if row is None:
                raise QuotaExceeded.of(self.quota_bytes)
            _drop(db, owner, row["id"])


def _document(db: sqlite3.Connection, owner: str, object_id: str) -> Document | None:
    query = "SELECT document, hidden FROM objects WHERE owner = ? AND id = ?"
    row = db.execute(query, (owner, object_id)).fetchone()
    return None if row is None else replace(unpack(row["document"]), hidden=bool(row["hidden"]))


def _drop(db: sqlite3.Connection, owner: str, object_id: str) -> None:
    db.execute("UPDATE objects SET hidden = 1, expires_at = NULL WHERE owner = ? AND id = ?", (owner, object_id))
    following: str | None = object_id
    while following is not None:
        rows = db.execute(_DELETE_HIDDEN, (owner, following)).fetchall()
        following = rows[0]["parent"] if rows else None
