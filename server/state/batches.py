"""The requests of batches and their results.

A result is committed before the next request of the batch is chosen. After a crash, every request without a result is
run, and none that has one. Bodies of requests and replies stay JSON text, so nothing here parses them.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import orjson

from server.state.objects import Document, Json
from server.state.sqlite_objects import SqliteObjects

Outcome = Literal["completed", "failed", "unsent"]
"""What became of a request: it succeeded, it failed, or the batch ended before it was run."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch: its place in the client's file, the client's id and the JSON text of its body."""

    number: int
    custom_id: str
    body: bytes


class BatchObjects(SqliteObjects):
    """Stored objects with the requests of batches, which are deleted with their batch."""

    async def add_batch(
        self, owner: str, batch: Json, lines: Sequence[BatchLine], expires_at: float | None = None
    ) -> None:
        """Store a batch with its requests, in the order in which they are to run. Raises `QuotaExceeded`."""
        query = (
            "INSERT INTO batch_lines (owner, batch_id, run_order, number, custom_id, request) VALUES (?, ?, ?, ?, ?, ?)"
        )
        name, document = batch["id"], Document("batch", batch, label=batch["api"], expires_at=expires_at)

        def work(db: sqlite3.Connection) -> None:
            rows = ((owner, name, order, each.number, each.custom_id, each.body) for order, each in enumerate(lines))
            db.executemany(query, rows)
            self.change_one(db, owner, name, lambda _: document)
            self.fit(db, owner, keep=name)

        await self.database.run(work)

    async def pending_lines(self, owner: str, batch_id: str, after: int, limit: int) -> list[tuple[int, BatchLine]]:
        """Return up to `limit` requests without a result after the place `after` in the run order, each with it."""
        rows = await self.database.execute(
            "SELECT run_order, number, custom_id, request FROM batch_lines"
            " WHERE owner = ? AND batch_id = ? AND run_order > ? AND outcome IS NULL ORDER BY run_order LIMIT ?",
            (owner, batch_id, after, limit),
        )
        return [(row["run_order"], BatchLine(row["number"], row["custom_id"], row["request"])) for row in rows]

    async def store_result(self, owner: str, batch_id: str, number: int, outcome: Outcome, result: Json) -> None:
        """Store a request's result, unless it has one or the batch was deleted. `result` may contain fragments."""
        await self.database.execute(
            "UPDATE batch_lines SET result = ?, outcome = ?"
            " WHERE owner = ? AND batch_id = ? AND number = ? AND outcome IS NULL",
            (orjson.dumps(result), outcome, owner, batch_id, number),
        )

    async def end_pending_lines(self, owner: str, batch_id: str, result: Json) -> None:
        """Give every request without a result this one, with the outcome ``unsent``."""
        await self.database.execute(
            "UPDATE batch_lines SET result = ?, outcome = 'unsent'"
            " WHERE owner = ? AND batch_id = ? AND outcome IS NULL",
            (orjson.dumps(result), owner, batch_id),
        )

    async def line_counts(self, owner: str, batch_id: str) -> Json:
        """Return a batch's ``request_counts``: in all and by outcome. ``failed`` includes ``unsent``."""
        rows = await self.database.execute(
            "SELECT outcome, count(*) FROM batch_lines WHERE owner = ? AND batch_id = ? GROUP BY outcome",
            (owner, batch_id),
        )
        found = {row[0]: int(row[1]) for row in rows}
        counts = {"total": sum(found.values()), **{each: found.get(each, 0) for each in get_args(Outcome)}}
        return {**counts, "failed": counts["failed"] + counts["unsent"]}

    async def written_results(
        self, owner: str, batch_id: str, write: Callable[[str, Json, Outcome], Json | None]
    ) -> bytes:
        """Return what `write` makes of each result, as lines of JSON in file order. None writes no line.

        `write` gets the custom id, the result and the outcome. It runs in the database's thread.
        """

        def lines(db: sqlite3.Connection) -> Iterator[bytes]:
            rows = db.execute(
                "SELECT custom_id, result, outcome FROM batch_lines"
                " WHERE owner = ? AND batch_id = ? AND outcome IS NOT NULL ORDER BY number",
                (owner, batch_id),
            )
            for row in rows:
                line = write(row["custom_id"], orjson.loads(row["result"]), row["outcome"])
                if line is not None:
                    yield orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)

        return await self.database.run(lambda db: b"".join(lines(db)))

    async def remove_lines(self, owner: str, batch_id: str) -> None:
        """Delete a batch's requests and results."""
        query = "DELETE FROM batch_lines WHERE owner = ? AND batch_id = ?"
        await self.database.execute(query, (owner, batch_id))
