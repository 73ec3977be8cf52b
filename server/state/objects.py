"""JSON objects of owners, with their items.

A string of more than `LARGE_CHARS` characters, such as an image in base64, is stored once for each owner, by its
SHA-256; the items refer to it. So a conversation that carries an image through ten responses stores it once. What an
owner stores counts against a quota in bytes; the least recently used responses are evicted first, and nothing else is.
Using a response counts as using every response before it, so eviction never breaks a chain.
"""

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from server.errors import InvalidRequest, short
from server.state.database import Database

Json = dict[str, Any]
Kind = Literal["response", "conversation", "file", "batch"]

LARGE_CHARS = 2048
_BLOB, _TEXT = "\0blob:", "\0text:"
_BODY, _DATA = -1, -2
"""Positions of blobs that belong to an object's body and to its data; those of items are 0 and above."""


class QuotaExceeded(InvalidRequest):
    """The object does not fit into its owner's quota."""

    @classmethod
    def of(cls, quota_bytes: int) -> "QuotaExceeded":
        """Return the error for a quota of `quota_bytes`."""
        return cls(
            f"the quota of {quota_bytes >> 20} MiB for stored objects is used up; delete files, conversations or "
            "batches, or raise server.state_quota"
        )


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, and whether more follow."""

    data: list[Json]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of all owners. ``quota_bytes`` is each owner's."""

    database: Database
    quota_bytes: int
    clock: Callable[[], float] = time.time

    async def put(
        self,
        owner: str,
        kind: Kind,
        body: Json,
        *,
        parent: str | None = None,
        inputs: Sequence[Json] = (),
        outputs: Sequence[Json] = (),
        data: bytes | None = None,
        label: str | None = None,
        expires_at: float | None = None,
        append_to: str | None = None,
        also: Callable[[sqlite3.Connection], None] | None = None,
        within_quota: bool = True,
    ) -> None:
        """Store `body` under ``body["id"]``, in place of an earlier version, with its items and `data`.

        `label` can be asked for in `find`. `append_to` names a conversation that gets the same items, and `also` writes
        more, both in the same transaction. Raises `QuotaExceeded`, if the object must be `within_quota`.
        """

        def work(db: sqlite3.Connection) -> None:
            writer = _Writer(db, owner, body["id"])
            writer.clear()
            encoded = writer.encode(body, _BODY)
            now = self.clock()
            writer.items([*inputs], start=0, is_output=False)
            writer.items([*outputs], start=len(inputs), is_output=True)
            if data is not None:
                writer.blob(hashlib.sha256(data).hexdigest(), data, _DATA)
            n_bytes = len(encoded) + writer.n_bytes
            created = body.get("created_at") or now
            columns = {
                "owner": owner,
                "id": body["id"],
                "kind": kind,
                "label": label,
                "status": body.get("status"),
                "parent": parent,
                "created_at": created,
                "used_at": now,
                "expires_at": expires_at,
                "n_bytes": n_bytes,
                "worker": self.database.worker,
                "body": encoded,
            }
            marks = ", ".join("?" * len(columns))
            db.execute(f"INSERT INTO objects ({', '.join(columns)}) VALUES ({marks})", [*columns.values()])  # noqa: S608
            if also is not None:
                also(db)
            if append_to is not None and _exists(db, owner, append_to):
                _append(db, owner, append_to, [*inputs, *outputs])
            if within_quota:
                self._fit(db, owner, keep=body["id"])

        await self.database.run(work)

    async def update(
        self,
        owner: str,
        kind: Kind,
        object_id: str,
        change: Callable[[Json], Json],
        *,
        expires_at: float | None = None,
    ) -> Json | None:
        """Replace an object's body by ``change(body)``; its items stay. Return the new body, None if there is none.

        `expires_at` replaces the time of its expiry, unless it is None.
        """

        def work(db: sqlite3.Connection) -> Json | None:
            body = _body(db, owner, kind, object_id)
            if body is None:
                return None
            changed = change(body)
            db.execute(
                "DELETE FROM blob_uses WHERE owner = ? AND object_id = ? AND position = ?", (owner, object_id, _BODY)
            )
            encoded = _Writer(db, owner, object_id).encode(changed, _BODY)
            db.execute(
                "UPDATE objects SET n_bytes = n_bytes - length(body) + ?, body = ?, status = ?,"
                " expires_at = coalesce(?, expires_at) WHERE owner = ? AND id = ?",
                (len(encoded), encoded, changed.get("status"), expires_at, owner, object_id),
            )
            return changed

        return await self.database.run(work)

    async def get(self, owner: str, kind: Kind, object_id: str) -> Json | None:
        """Return the body, None if the owner has no such object."""
        return await self.database.run(lambda db: _body(db, owner, kind, object_id))

    async def take_over(
        self, kind: Kind, statuses: Sequence[str], wanted: Callable[[Json], bool] | None = None
    ) -> list[tuple[str, Json]]:
        """Make this server the worker of unfinished objects whose server has ended. Return them, each with its owner.

        Unfinished objects have one of the `statuses`. While other servers use the file, only `wanted` ones are taken.
        """
        marks = ", ".join("?" * len(statuses))

        def work(db: sqlite3.Connection) -> list[tuple[str, Json]]:
            rows = db.execute(
                f"SELECT owner, id, worker, body FROM objects WHERE kind = ? AND status IN ({marks})"  # noqa: S608
                " AND worker <> ? AND NOT hidden ORDER BY created_at, rowid",
                (kind, *statuses, self.database.worker),
            ).fetchall()
            ended = {each for each in {row["worker"] for row in rows} if not self.database.is_running(each)}
            takes_all = wanted is None or (bool(ended) and self.database.is_alone())
            taken = []
            for row in rows:
                body = _decoded(db, row["owner"], row["body"]) if row["worker"] in ended else None
                if body is not None and (takes_all or (wanted is not None and wanted(body))):
                    values = (self.database.worker, row["owner"], row["id"])
                    db.execute("UPDATE objects SET worker = ? WHERE owner = ? AND id = ?", values)
                    taken.append((row["owner"], body))
            return taken

        return await self.database.run(work)

    async def unfinished(self, kind: Kind, statuses: Sequence[str]) -> list[tuple[str, Json]]:
        """Return the objects with one of the `statuses` whose worker is this server, each with its owner."""
        marks = ", ".join("?" * len(statuses))

        def work(db: sqlite3.Connection) -> list[tuple[str, Json]]:
            rows = db.execute(
                f"SELECT owner, body FROM objects WHERE kind = ? AND status IN ({marks})"  # noqa: S608
                " AND worker = ? AND NOT hidden ORDER BY created_at, rowid",
                (kind, *statuses, self.database.worker),
            ).fetchall()
            return [(row["owner"], _decoded(db, row["owner"], row["body"])) for row in rows]

        return await self.database.run(work)

    async def attach(self, owner: str, object_id: str, data: bytes) -> None:
        """Store `data` with an object, if the owner has it."""

        def work(db: sqlite3.Connection) -> None:
            if _exists(db, owner, object_id):
                _Writer(db, owner, object_id).blob(hashlib.sha256(data).hexdigest(), data, _DATA)
                self._fit(db, owner, keep=object_id)

        await self.database.run(work)

    async def data(self, owner: str, object_id: str) -> bytes | None:
        """Return the bytes that were stored with an object, None if the owner has no such object."""
        return await self.database.run(lambda db: _data(db, owner, object_id))

    async def find(
        self, owner: str, kind: Kind, *, after: str | None, limit: int, newest_first: bool, label: str | None = None
    ) -> Page:
        """Return up to `limit` bodies after the object `after`, only those with `label` unless it is None."""

        def work(db: sqlite3.Connection) -> Page:
            sign, direction = ("<", "DESC") if newest_first else (">", "ASC")
            start = ""
            values: list[Any] = [owner, kind, label]
            if after is not None:
                found = db.execute(
                    "SELECT created_at, rowid FROM objects WHERE owner = ? AND kind = ? AND id = ? AND NOT hidden",
                    (owner, kind, after),
                ).fetchone()
                if found is None:
                    raise unknown_cursor(after)
                start = f" AND (created_at, rowid) {sign} (?, ?)"
                values += tuple(found)
            rows = db.execute(
                "SELECT body FROM objects WHERE owner = ? AND kind = ? AND label IS coalesce(?, label)"  # noqa: S608
                f" AND NOT hidden{start} ORDER BY created_at {direction}, rowid {direction} LIMIT ?",
                (*values, limit + 1),
            ).fetchall()
            return Page([_decoded(db, owner, row["body"]) for row in rows[:limit]], len(rows) > limit)

        return await self.database.run(work)

    async def items(self, owner: str, object_id: str, *, is_output: bool | None = None) -> list[Json]:
        """Return an object's items in order: all, or only a response's output or input."""
        return await self.database.run(lambda db: _items(db, owner, object_id, is_output))

    async def page_of_items(
        self,
        owner: str,
        object_id: str,
        *,
        after: str | None,
        limit: int,
        newest_first: bool,
        is_output: bool | None = None,
    ) -> Page:
        """Return up to `limit` items of an object after the item `after`."""

        def work(db: sqlite3.Connection) -> Page:
            sign, direction = ("<", "DESC") if newest_first else (">", "ASC")
            chosen = "owner = ? AND object_id = ? AND is_output = coalesce(?, is_output)"
            values: list[Any] = [owner, object_id, is_output]
            start = ""
            if after is not None:
                found = db.execute(f"SELECT position FROM items WHERE {chosen} AND id = ?", (*values, after)).fetchone()  # noqa: S608
                if found is None:
                    raise unknown_cursor(after)
                start = f" AND position {sign} ?"
                values.append(found["position"])
            rows = db.execute(
                f"SELECT body FROM items WHERE {chosen}{start} ORDER BY position {direction} LIMIT ?",  # noqa: S608
                (*values, limit + 1),
            ).fetchall()
            return Page([_decoded(db, owner, row["body"]) for row in rows[:limit]], len(rows) > limit)

        return await self.database.run(work)

    async def item(self, owner: str, object_id: str, item_id: str) -> Json | None:
        """Return one item of an object, None if it has no such item."""

        def work(db: sqlite3.Connection) -> Json | None:
            row = db.execute(
                "SELECT body FROM items WHERE owner = ? AND object_id = ? AND id = ?", (owner, object_id, item_id)
            ).fetchone()
            return None if row is None else _decoded(db, owner, row["body"])

        return await self.database.run(work)

    async def append(self, owner: str, object_id: str, items: Sequence[Json]) -> bool:
        """Add `items` to the end of an object. Return whether it exists. Raises `QuotaExceeded`."""

        def work(db: sqlite3.Connection) -> bool:
            exists = _exists(db, owner, object_id)
            if exists:
                _append(db, owner, object_id, items)
                self._fit(db, owner, keep=object_id)
            return exists

        return await self.database.run(work)

    async def remove_item(self, owner: str, object_id: str, item_id: str) -> bool:
        """Delete one item. Return whether there was one."""

        def work(db: sqlite3.Connection) -> bool:
            rows = db.execute(
                "SELECT position, length(body) AS n FROM items WHERE owner = ? AND object_id = ? AND id = ?",
                (owner, object_id, item_id),
            ).fetchall()
            for row in rows:
                place = (owner, object_id, row["position"])
                db.execute("DELETE FROM items WHERE owner = ? AND object_id = ? AND position = ?", place)
                db.execute("DELETE FROM blob_uses WHERE owner = ? AND object_id = ? AND position = ?", place)
                shrunk = (row["n"], owner, object_id)
                db.execute("UPDATE objects SET n_bytes = n_bytes - ? WHERE owner = ? AND id = ?", shrunk)
            return bool(rows)

        return await self.database.run(work)

    async def chain(self, owner: str, object_id: str) -> list[Json] | None:
        """Return the items of an object and of all its parents, oldest first. None if the owner has no such object."""

        def work(db: sqlite3.Connection) -> list[Json] | None:
            if _body(db, owner, "response", object_id) is None:
                return None
            ids = [
                row["id"]
                for row in db.execute(
                    "WITH RECURSIVE chain (id, parent, depth) AS ("
                    " SELECT id, parent, 0 FROM objects WHERE owner = :owner AND id = :id"
                    " UNION ALL SELECT o.id, o.parent, depth + 1 FROM objects o JOIN chain c"
                    "  ON o.owner = :owner AND o.id = c.parent)"
                    " SELECT id FROM chain ORDER BY depth DESC",
                    {"owner": owner, "id": object_id},
                )
            ]
            now = self.clock()
            db.executemany("UPDATE objects SET used_at = ? WHERE owner = ? AND id = ?", [(now, owner, i) for i in ids])
            return [item for each in ids for item in _items(db, owner, each)]

        return await self.database.run(work)

    async def find_items(self, owner: str, item_ids: Iterable[str]) -> dict[str, Json]:
        """Return those of the items that the owner has stored, by id."""
        wanted = set(item_ids)

        def work(db: sqlite3.Connection) -> dict[str, Json]:
            found = {}
            for item_id in wanted:
                row = db.execute("SELECT body FROM items WHERE owner = ? AND id = ?", (owner, item_id)).fetchone()
                if row is not None:
                    found[item_id] = _decoded(db, owner, row["body"])
            return found

        return await self.database.run(work)

    async def remove(self, owner: str, kind: Kind, object_id: str) -> bool:
        """Delete an object. Return whether there was one.

        A response that others continue is hidden and keeps its items until the last of them is deleted.
        """

        def work(db: sqlite3.Connection) -> bool:
            if _body(db, owner, kind, object_id) is None:
                return False
            db.execute("UPDATE objects SET hidden = 1 WHERE owner = ? AND id = ?", (owner, object_id))
            _drop_hidden(db, owner, object_id)
            return True

        return await self.database.run(work)

    async def expire(self) -> int:
        """Delete what has expired, of every owner. Return the number of objects."""

        def work(db: sqlite3.Connection) -> int:
            rows = db.execute(
                "SELECT owner, id FROM objects WHERE expires_at < ? ORDER BY created_at DESC", (self.clock(),)
            ).fetchall()
            for row in rows:
                db.execute("UPDATE objects SET hidden = 1 WHERE owner = ? AND id = ?", tuple(row))
                _drop_hidden(db, row["owner"], row["id"])
            return len(rows)

        return await self.database.run(work)

    def _fit(self, db: sqlite3.Connection, owner: str, *, keep: str) -> None:
        """Evict the least recently used responses until the owner is within the quota."""
        excess = _used_bytes(db, owner) - self.quota_bytes
        while excess > 0:
            row = db.execute(
                "SELECT id FROM objects o WHERE owner = ? AND kind = 'response' AND id <> ?"
                " AND coalesce(status, '') NOT IN ('queued', 'in_progress') AND NOT EXISTS"
                " (SELECT 1 FROM objects c WHERE c.owner = o.owner AND c.parent = o.id)"
                " ORDER BY used_at, created_at DESC LIMIT 1",
                (owner, keep),
            ).fetchone()
            if row is None:
                raise QuotaExceeded.of(self.quota_bytes)
            db.execute("UPDATE objects SET hidden = 1 WHERE owner = ? AND id = ?", (owner, row["id"]))
            _drop_hidden(db, owner, row["id"])
            excess = _used_bytes(db, owner) - self.quota_bytes


def unknown_cursor(after: str) -> InvalidRequest:
    """Return the error for a page after an object that the list does not contain."""
    return InvalidRequest(f"after: no object with id '{short(after)}' in this list", "after")


class _Writer:
    """Writes one object's parts. ``n_bytes`` counts the JSON of its items."""

    def __init__(self, db: sqlite3.Connection, owner: str, object_id: str) -> None:
        self._db, self._owner, self._id = db, owner, object_id
        self.n_bytes = 0

    def clear(self) -> None:
        """Delete an earlier version."""
        for table, column in (("objects", "id"), ("items", "object_id"), ("blob_uses", "object_id")):
            self._db.execute(f"DELETE FROM {table} WHERE owner = ? AND {column} = ?", (self._owner, self._id))  # noqa: S608 (fixed names)

    def items(self, items: Sequence[Json], *, start: int, is_output: bool) -> None:
        """Write `items` from position `start` on."""
        for position, item in enumerate(items, start):
            encoded = self.encode(item, position)
            self.n_bytes += len(encoded)
            self._db.execute(
                "INSERT INTO items (owner, object_id, position, id, is_output, body) VALUES (?, ?, ?, ?, ?, ?)",
                (self._owner, self._id, position, item["id"], is_output, encoded),
            )

    def encode(self, value: Json, position: int) -> bytes:
        """Write large strings as blobs and return the rest as JSON."""
        return orjson.dumps(self._without_blobs(value, position))

    def blob(self, name: str, data: bytes, position: int) -> None:
        """Write `data` under `name`, unless it is there."""
        values = (self._owner, name, data, len(data))
        self._db.execute("INSERT OR IGNORE INTO blobs (owner, hash, data, n_bytes) VALUES (?, ?, ?, ?)", values)
        use = (self._owner, name, self._id, position)
        self._db.execute("INSERT OR IGNORE INTO blob_uses (owner, hash, object_id, position) VALUES (?, ?, ?, ?)", use)

    def _without_blobs(self, value: Any, position: int) -> Any:
        if isinstance(value, str):
            if len(value) > LARGE_CHARS:
                data = value.encode()
                name = hashlib.sha256(data).hexdigest()
                self.blob(name, data, position)
                return _BLOB + name
            return _TEXT + value if value.startswith("\0") else value
        if isinstance(value, list):
            return [self._without_blobs(each, position) for each in value]
        if isinstance(value, dict):
            return {name: self._without_blobs(each, position) for name, each in value.items()}
        return value


def _append(db: sqlite3.Connection, owner: str, object_id: str, items: Sequence[Json]) -> None:
    last = db.execute(
        "SELECT max(position) AS last FROM items WHERE owner = ? AND object_id = ?", (owner, object_id)
    ).fetchone()["last"]
    writer = _Writer(db, owner, object_id)
    writer.items(items, start=0 if last is None else last + 1, is_output=False)
    grown = (writer.n_bytes, owner, object_id)
    db.execute("UPDATE objects SET n_bytes = n_bytes + ? WHERE owner = ? AND id = ?", grown)


def _exists(db: sqlite3.Connection, owner: str, object_id: str) -> bool:
    found = db.execute("SELECT 1 FROM objects WHERE owner = ? AND id = ? AND NOT hidden", (owner, object_id))
    return found.fetchone() is not None


def _body(db: sqlite3.Connection, owner: str, kind: Kind, object_id: str) -> Json | None:
    row = db.execute(
        "SELECT body FROM objects WHERE owner = ? AND id = ? AND kind = ? AND NOT hidden", (owner, object_id, kind)
    ).fetchone()
    return None if row is None else _decoded(db, owner, row["body"])


def _data(db: sqlite3.Connection, owner: str, object_id: str) -> bytes | None:
    row = db.execute(
        "SELECT data FROM blob_uses JOIN blobs USING (owner, hash) WHERE owner = ? AND object_id = ? AND position = ?",
        (owner, object_id, _DATA),
    ).fetchone()
    return None if row is None else bytes(row["data"])


def _items(db: sqlite3.Connection, owner: str, object_id: str, is_output: bool | None = None) -> list[Json]:
    rows = db.execute(
        "SELECT body FROM items WHERE owner = ? AND object_id = ? AND is_output = coalesce(?, is_output)"
        " ORDER BY position",
        (owner, object_id, is_output),
    ).fetchall()
    return [_decoded(db, owner, row["body"]) for row in rows]


def _decoded(db: sqlite3.Connection, owner: str, encoded: bytes) -> Any:
    return _with_blobs(db, owner, orjson.loads(encoded))


def _with_blobs(db: sqlite3.Connection, owner: str, value: Any) -> Any:
    if isinstance(value, str):
        if value.startswith(_BLOB):
            name = value.removeprefix(_BLOB)
            row = db.execute("SELECT data FROM blobs WHERE owner = ? AND hash = ?", (owner, name)).fetchone()
            return row["data"].decode()
        return value.removeprefix(_TEXT)
    if isinstance(value, list):
        return [_with_blobs(db, owner, each) for each in value]
    if isinstance(value, dict):
        return {name: _with_blobs(db, owner, each) for name, each in value.items()}
    return value


def _drop_hidden(db: sqlite3.Connection, owner: str, object_id: str | None) -> None:
    """Delete a hidden object that nothing continues, then its parents that are in the same state."""
    while object_id is not None:
        row = db.execute(
            "SELECT parent FROM objects WHERE owner = ? AND id = ? AND hidden"
            " AND NOT EXISTS (SELECT 1 FROM objects c WHERE c.owner = objects.owner AND c.parent = objects.id)",
            (owner, object_id),
        ).fetchone()
        if row is None:
            return
        _Writer(db, owner, object_id).clear()
        object_id = row["parent"]


def _used_bytes(db: sqlite3.Connection, owner: str) -> int:
    row = db.execute("SELECT n_bytes FROM usage WHERE owner = ?", (owner,)).fetchone()
    return 0 if row is None else int(row["n_bytes"])
