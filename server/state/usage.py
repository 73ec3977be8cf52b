"""The ledger of requests and tokens by API key, model and day (UTC), in the server's state database.

Usage is added in memory and written at most `FLUSH_S` later in one transaction, so ``kill -9`` loses no more than that.
Several servers may share the file: rows are increments, and each write reads the sums of all servers again.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime

from server.errors import Unavailable
from server.state.database import Database

FLUSH_S = 0.5
RETRY_S = 10.0
"""Seconds until the next attempt after a failed write."""
_ADD = """
INSERT INTO token_usage VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, key, model) DO UPDATE SET
  requests = requests + excluded.requests, prompt = prompt + excluded.prompt, cached = cached + excluded.cached,
  completion = completion + excluded.completion
"""
_SPENT = """
SELECT key, sum(CASE day WHEN ? THEN prompt + completion ELSE 0 END) AS of_day, sum(prompt + completion) AS of_month
  FROM token_usage WHERE day LIKE ? GROUP BY key
"""
_FIND = """
SELECT key, model, day, requests, prompt, cached, completion FROM token_usage
  WHERE day BETWEEN ? AND ? AND (? IS NULL OR key = ?) AND (? IS NULL OR model = ?) ORDER BY day, key, model
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests, and tokens of prompts, of these from a cache, and of completions."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.requests + other.requests,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The usage of one key and model on one day (``YYYY-MM-DD``, UTC)."""

    key: str
    model: str
    day: str
    counts: Counts


class UsageLedger:
    """Counts usage. Used on the event loop; `clock` returns Unix seconds."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock
        self._pending: dict[tuple[str, str, str], Counts] = {}
        self._spent: dict[str, tuple[str, int, int]] = {}  # by key: the day, tokens of that day, of its month
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()

    def add(self, key: str, model: str, *, prompt: int, cached: int, completion: int) -> None:
        """Count a request of `key` ("" = none) with this many tokens."""
        names = key, model, self._day()
        self._pending[names] = self._pending.get(names, Counts()) + Counts(1, prompt, cached, completion)
        self._charge(key, prompt + completion)
        self._changed.set()

    def spent(self, key: str) -> tuple[int, int]:
        """Return the tokens of `key` of today and of this month, prompts and completions together."""
        today = self._day()
        day, of_day, of_month = self._spent.get(key, (today, 0, 0))
        return of_day if day == today else 0, of_month if day[:7] == today[:7] else 0

    def all_spent(self) -> dict[str, tuple[int, int]]:
        """Return `spent` of every key with usage this month."""
        return {key: self.spent(key) for key in self._spent}

    async def run(self) -> None:
        """Read this month's usage, then write usage periodically, until cancelled."""
        self._changed.set()
        while True:
            await self._changed.wait()
            try:
                await self._write()
                await asyncio.sleep(FLUSH_S)
            except Unavailable:  # logged; the usage stays in memory
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Write what is left."""
        with contextlib.suppress(Unavailable):
            await self._write()

    async def find(self, start: str, end: str, key: str | None = None, model: str | None = None) -> Sequence[UsageRow]:
        """Return the rows of the days `start` to `end`, optionally of one key and model, ordered by day. Raises
        `Unavailable`.
        """
        await self._write()

        def read(connection: sqlite3.Connection) -> list[UsageRow]:
            found = connection.execute(_FIND, (start, end, key, key, model, model)).fetchall()
            return [UsageRow(row[0], row[1], row[2], Counts(*row[3:])) for row in found]

        return await self._database.run(read)

    async def _write(self) -> None:
        async with self._writing:
            self._changed.clear()
            pending, self._pending = self._pending, {}
            today = self._day()

            def write(connection: sqlite3.Connection) -> list[tuple[str, int, int]]:
                connection.executemany(_ADD, [(*names, *astuple(counts)) for names, counts in pending.items()])
                return [tuple(row) for row in connection.execute(_SPENT, (today, f"{today[:7]}-%"))]

            try:
                found = await self._database.run(write)
            except Unavailable:
                for names, counts in pending.items():
                    self._pending[names] = self._pending.get(names, Counts()) + counts
                self._changed.set()
                raise
            self._spent = {key: (today, of_day, of_month) for key, of_day, of_month in found}
            for (key, _, _), counts in self._pending.items():  # added during the write
                self._charge(key, counts.prompt + counts.completion)

    def _charge(self, key: str, n_tokens: int) -> None:
        of_day, of_month = self.spent(key)
        self._spent[key] = self._day(), of_day + n_tokens, of_month + n_tokens

    def _day(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
