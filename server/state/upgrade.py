"""Converts a state file of format 2 (0.1.0), which had items and long strings in tables of their own."""

import sqlite3
from collections.abc import Callable
from typing import Any

import orjson

from server.state.objects import Document, n_bytes_of, pack

_TABLES = ("objects", "items", "blobs", "blob_uses", "batch_lines", "usage", "token_usage")
_BLOB, _TEXT = "\0blob:", "\0text:"
_DATA = -2  # the position of the bytes that belong to an object


def upgrade(db: sqlite3.Connection, create: Callable[[], None]) -> None:
    """Move everything from the old tables to those that `create` creates."""
    names = db.execute("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'index') AND sql IS NOT NULL")
    for kind, name in names.fetchall():
        db.execute(f"DROP {kind} {name}")
    for table in _TABLES:
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    create()
    for table in ("batch_lines", "token_usage"):
        db.execute(f"INSERT INTO {table} SELECT * FROM old_{table}")  # noqa: S608 (fixed names)
    for row in db.execute("SELECT * FROM old_objects ORDER BY created_at, rowid"):
        place = (row["owner"], row["id"])
        items = [
            (bool(side), _decoded(db, row["owner"], orjson.loads(body)))
            for side, body in db.execute(
                "SELECT is_output, body FROM old_items WHERE owner = ? AND object_id = ? ORDER BY position", place
            )
        ]
        body = _decoded(db, row["owner"], orjson.loads(row["body"]))
        document = Document(row["kind"], body, items, row["parent"], row["label"], row["expires_at"])
        data = db.execute(
            "SELECT data FROM old_blob_uses JOIN old_blobs USING (owner, hash)"
            " WHERE owner = ? AND object_id = ? AND position = ?",
            (*place, _DATA),
        ).fetchone()
        packed, held = pack(document), None if data is None else data["data"]
        db.execute(
            "INSERT INTO objects (owner, id, kind, label, parent, is_unfinished, used_at, expires_at, hidden, worker,"
            " n_bytes, document, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(*place, row["kind"], row["label"], row["parent"], document.is_unfinished, row["used_at"]),
                *(row["expires_at"], row["hidden"], row["worker"], n_bytes_of(packed) + len(held or b""), packed, held),
            ),
        )
        ids = [(row["owner"], item["id"], row["id"]) for _, item in items]
        db.executemany("INSERT OR IGNORE INTO items (owner, id, object_id) VALUES (?, ?, ?)", ids)
    for table in _TABLES:
        db.execute(f"DROP TABLE old_{table}")


def _decoded(db: sqlite3.Connection, owner: str, value: Any) -> Any:
    """Return a value with its references replaced by their strings."""
    if isinstance(value, str) and value.startswith(_BLOB):
        query = "SELECT data FROM old_blobs WHERE owner = ? AND hash = ?"
        return db.execute(query, (owner, value.removeprefix(_BLOB))).fetchone()["data"].decode()
    if isinstance(value, str):
        return value.removeprefix(_TEXT)
    if isinstance(value, list):
        return [_decoded(db, owner, each) for each in value]
    if isinstance(value, dict):
        return {name: _decoded(db, owner, each) for name, each in value.items()}
    return value
