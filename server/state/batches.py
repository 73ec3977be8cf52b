"""The requests of batches and their results.

A result is committed before the next request of the batch is chosen. After a crash, only requests without a result run.
Bodies of requests and replies are stored as JSON text and not parsed.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import orjson

from server.state.objects import Document, Json
from server.state.sqlite_objects import SqliteObjects

Outcome = Literal["completed", "failed", "unsent"]
"""The outcome of a request; ``unsent``: the batch ended before the request ran."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request of a batch: its index in the client's file, the client's id, and the JSON text of its body."""

    number: int
    custom_id: str
    body: bytes


class BatchObjects(SqliteObjects):
    """Stored objects, and the requests of batches, which are deleted with their batch."""

    async def add_batch(
        self, owner: str, batch: Json, lines: Sequence[BatchLine], expires_at: float | None = None
    ) -> None:
        """Store a batch with its requests in their run order. Raises `QuotaExceeded`."""
        query = (
            "INSERT INTO batch_lines (owner, batch_id, run_order, number, custom_id, request) VALUES (?, ?, ?, ?, ?, ?)"
        )
        name, document = batch["id"], Document("batch", batch, label=batch["api"], expires_at=expires_at)

        def transaction(db: sqlite3.Connection) -> None:
            rows = ((owner, name, order, each.number, each.custom_id, each.body) for order, each in enumerate(lines))
            db.executemany(query, rows)
            self.change_one(db, owner, name, lambda _: document)
            self.evict(db, owner, keep=name)

        await self.database.run(transaction)

    async def pending_lines(self, owner: str, batch_id: str, after: int, limit: int) -> list[tuple[int, BatchLine]]:
        """Return up to `limit` requests without a result after the position `after`, with their run-order positions."""
        rows = await self.database.execute(
            "SELECT run_order, number, custom_id, request FROM batch_lines"
            " WHERE owner = ? AND batch_id = ? AND run_order > ? AND outcome IS NULL ORDER BY run_order LIMIT ?",
            (owner, batch_id, after, limit),
        )
        return [(row["run_order"], BatchLine(row["number"], row["custom_id"], row["request"])) for row in rows]

    async def store_result(self, owner: str, batch_id: str, number: int, outcome: Outcome, result: Json) -> None:
        """Store the result of a request, unless it has one or the batch was deleted. `result` may contain fragments."""
        await self.database.execute(
            "UPDATE batch_lines SET result = ?, outcome = ?"
            " WHERE owner = ? AND batch_id = ? AND number = ? AND outcome IS NULL",
            (orjson.dumps(result), outcome, owner, batch_id, number),
        )

    async def end_pending_lines(self, owner: str, batch_id: str, result: Json) -> None:
        """Store `result` with the outcome ``unsent`` for all requests without a result."""
        await self.database.execute(
            "UPDATE batch_lines SET result = ?, outcome = 'unsent'"
            " WHERE owner = ? AND batch_id = ? AND outcome IS NULL",
            (orjson.dumps(result), owner, batch_id),
        )

    async def line_counts(self, owner: str, batch_id: str) -> Json:
        """Return a batch's ``request_counts``: total and by outcome. ``failed`` includes ``unsent``."""
        rows = await self.database.execute(
            "SELECT outcome, count(*) FROM batch_lines WHERE owner = ? AND batch_id = ? GROUP BY outcome",
            (owner, batch_id),
        )
        found = {row[0]: int(row[1]) for row in rows}
        counts = {"total": sum(found.values()), **{each: found.get(each, 0) for each in get_args(Outcome)}}
        return {**counts, "failed": counts["failed"] + counts["unsent"]}

    async def format_results(
        self, owner: str, batch_id: str, write: Callable[[str, Json, Outcome], Json | None]
    ) -> bytes:
        """Return the results as lines of JSON in file order, formatted by `write` from the custom id, the result and
        the outcome. If it returns None, there is no line. It runs in the database's thread.
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
