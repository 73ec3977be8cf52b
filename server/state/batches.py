"""The requests of batches and their results.

A result is committed before the next request of the batch is chosen. After a crash, every request without a result is
run, and none that has one.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from server.state.database import Database
from server.state.objects import Json


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch: its place in the client's file, the client's id, the URL and the JSON body."""

    number: int
    custom_id: str
    url: str
    body: Json


@dataclass(frozen=True, slots=True)
class BatchLines:
    """The requests of the batches of all owners."""

    database: Database

    async def add(self, owner: str, batch_id: str, lines: Sequence[BatchLine]) -> None:
        """Store a batch's requests in the order in which they are to run."""

        def work(db: sqlite3.Connection) -> None:
            db.executemany(
                "INSERT INTO batch_lines (owner, batch_id, run_order, number, custom_id, request)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (owner, batch_id, order, line.number, line.custom_id, orjson.dumps([line.url, line.body]))
                    for order, line in enumerate(lines)
                ),
            )

        await self.database.run(work)

    async def pending(self, owner: str, batch_id: str, after: int, limit: int) -> list[tuple[int, BatchLine]]:
        """Return up to `limit` requests without a result behind the place `after` in the run order, each with it."""

        def work(db: sqlite3.Connection) -> list[tuple[int, BatchLine]]:
            rows = db.execute(
                "SELECT run_order, number, custom_id, request FROM batch_lines"
                " WHERE owner = ? AND batch_id = ? AND run_order > ? AND result IS NULL ORDER BY run_order LIMIT ?",
                (owner, batch_id, after, limit),
            ).fetchall()
            return [
                (row["run_order"], BatchLine(row["number"], row["custom_id"], *orjson.loads(row["request"])))
                for row in rows
            ]

        return await self.database.run(work)

    async def store(self, owner: str, batch_id: str, number: int, result: Json, *, failed: bool) -> None:
        """Store a request's result, unless it has one or the batch was deleted."""

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE batch_lines SET result = ?, failed = ?"
                " WHERE owner = ? AND batch_id = ? AND number = ? AND result IS NULL",
                (orjson.dumps(result), failed, owner, batch_id, number),
            )

        await self.database.run(work)

    async def fail_pending(self, owner: str, batch_id: str, result: Json) -> None:
        """Give every request without a result this one, as failed."""

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE batch_lines SET result = ?, failed = 1 WHERE owner = ? AND batch_id = ? AND result IS NULL",
                (orjson.dumps(result), owner, batch_id),
            )

        await self.database.run(work)

    async def counts(self, owner: str, batch_id: str) -> tuple[int, int, int]:
        """Return the number of requests, of those that succeeded, and of those that failed."""

        def work(db: sqlite3.Connection) -> tuple[int, int, int]:
            row = db.execute(
                "SELECT count(*), coalesce(sum(failed = 0), 0), coalesce(sum(failed = 1), 0) FROM batch_lines"
                " WHERE owner = ? AND batch_id = ?",
                (owner, batch_id),
            ).fetchone()
            return row[0], row[1], row[2]

        return await self.database.run(work)

    async def results(self, owner: str, batch_id: str) -> list[tuple[str, Json, bool]]:
        """Return the custom id, the result and whether it failed, of every request with a result, in file order."""

        def work(db: sqlite3.Connection) -> list[tuple[str, Json, bool]]:
            rows = db.execute(
                "SELECT custom_id, result, failed FROM batch_lines"
                " WHERE owner = ? AND batch_id = ? AND result IS NOT NULL ORDER BY number",
                (owner, batch_id),
            ).fetchall()
            return [(row["custom_id"], orjson.loads(row["result"]), bool(row["failed"])) for row in rows]

        return await self.database.run(work)

    async def remove(self, owner: str, batch_id: str) -> None:
        """Delete a batch's requests and results."""

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM batch_lines WHERE owner = ? AND batch_id = ?", (owner, batch_id))

        await self.database.run(work)
