"""The ledger of requests and tokens by API key, model and day (UTC), in the server's state database or in Redis.

Usage is counted in memory and written at most `FLUSH_S` later in one transaction, so ``kill -9`` loses only that.
Several servers may share the file or Redis: writes are increments, and each write returns the sums of all servers.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import add
from typing import Any, NamedTuple

import orjson

from server.errors import Unavailable
from server.state.database import Database
from server.state.redis import PREFIX, Redis

FLUSH_S = 0.5
RETRY_S = 10.0
"""Seconds until the next attempt after a failed write."""
_ADD = """
INSERT INTO token_usage (day, key, model, requests, prompt, cached, completion) VALUES (?, ?, ?, ?, ?, ?, ?)
  ON CONFLICT (day, key, model) DO UPDATE SET
  requests = requests + excluded.requests, prompt = prompt + excluded.prompt, cached = cached + excluded.cached,
  completion = completion + excluded.completion
"""
_SPENT = """
SELECT key, sum(CASE day WHEN ? THEN prompt + completion ELSE 0 END) AS of_day, sum(prompt + completion) AS of_month
  FROM token_usage WHERE day LIKE ? GROUP BY key
"""
_FIND = """
SELECT day, key, model, requests, prompt, cached, completion FROM token_usage
  WHERE day BETWEEN ? AND ? AND (? IS NULL OR key = ?) AND (? IS NULL OR model = ?)
"""
_DAYS_KEY, _DAY_KEY, _SPENT_KEY = PREFIX + "usage", PREFIX + "usage:", PREFIX + "spent:"
_SPENT_TTL_S = 62 * 86_400


class Counts(NamedTuple):
    """Numbers of requests, prompt tokens, cached prompt tokens, and completion tokens."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0


Usage = dict[tuple[str, str, str], Counts]
"""Counts by day (``YYYY-MM-DD``, UTC), key and model."""
Spent = Sequence[tuple[str, int, int]]
"""(key, tokens of a day, tokens of its month)."""


@dataclass(frozen=True, slots=True)
class DatabaseUsage:
    """Usage in the state database. Both methods raise `Unavailable`."""

    database: Database

    async def write(self, added: Usage, today: str) -> Spent:
        """Add usage, and return the tokens of all servers today and this month."""

        def transaction(connection: sqlite3.Connection) -> Spent:
            connection.executemany(_ADD, [(*names, *counts) for names, counts in added.items()])
            return [tuple(row) for row in connection.execute(_SPENT, (today, f"{today[:7]}-%"))]

        return await self.database.run(transaction)

    async def read(self, start: str, end: str, key: str | None, model: str | None) -> Usage:
        """Return the usage of the days `start` to `end`, optionally of one key and model."""
        found = await self.database.execute(_FIND, (start, end, key, key, model, model))
        return {(row[0], row[1], row[2]): Counts(*row[3:]) for row in found}


@dataclass(frozen=True, slots=True)
class RedisUsage:
    """`DatabaseUsage` in Redis: a hash of counts for each day, and the sums of keys for each day and month.

    A write whose reply is lost is repeated, so an outage may count `FLUSH_S` of usage twice.
    """

    redis: Redis

    async def write(self, added: Usage, today: str) -> Spent:
        sums = [_SPENT_KEY + today, _SPENT_KEY + today[:7]]

        async def transaction(client: Any) -> list[dict[bytes, bytes]]:
            async with client.pipeline(transaction=True) as pipe:
                if added:
                    pipe.sadd(_DAYS_KEY, *{day for day, _, _ in added})
                for (day, key, model), counts in added.items():
                    for what, n in counts._asdict().items():
                        if n:
                            pipe.hincrby(_DAY_KEY + day, orjson.dumps([key, model, what]), n)
                    for period in (day, day[:7]):
                        pipe.hincrby(_SPENT_KEY + period, key, counts.prompt + counts.completion)
                        pipe.expire(_SPENT_KEY + period, _SPENT_TTL_S)
                for each_sum in sums:
                    pipe.hgetall(each_sum)
                found: list[dict[bytes, bytes]] = await pipe.execute()
                return found[-len(sums) :]

        of_day, of_month = await self.redis.call(transaction)
        return [(key.decode(), int(of_day.get(key, 0)), int(n)) for key, n in of_month.items()]

    async def read(self, start: str, end: str, key: str | None, model: str | None) -> Usage:
        all_days = await self.redis.do("smembers", _DAYS_KEY)
        days = [day for day in map(bytes.decode, all_days) if start <= day <= end]

        async def load(client: Any) -> list[dict[bytes, bytes]]:
            async with client.pipeline(transaction=False) as pipe:
                for day in days:
                    pipe.hgetall(_DAY_KEY + day)
                return list(await pipe.execute())

        found: Usage = {}
        for day, counts in zip(days, await self.redis.call(load), strict=True):
            for packed, n in counts.items():
                of_key, of_model, what = orjson.loads(packed)
                if key in (None, of_key) and model in (None, of_model):
                    _add(found, (day, of_key, of_model), Counts(**{what: int(n)}))
        return found


def _add(usage: Usage, names: tuple[str, str, str], counts: Counts) -> None:
    usage[names] = Counts(*map(add, usage.get(names, Counts()), counts))


class UsageLedger:
    """Counts usage on the event loop. `clock` returns Unix seconds."""

    def __init__(self, store: DatabaseUsage | RedisUsage, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._pending: Usage = {}
        self._spent: dict[str, tuple[str, int, int]] = {}  # key -> (day, tokens of that day, tokens of its month)
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()

    def add(self, key: str, model: str, *, prompt: int, cached: int, completion: int) -> None:
        """Count a request of `key` ("" = none) and its tokens."""
        _add(self._pending, (self._day(), key, model), Counts(1, prompt, cached, completion))
        self._charge(key, prompt + completion)
        self._changed.set()

    def spent(self, key: str) -> tuple[int, int]:
        """Return the prompt and completion tokens of `key` today and this month."""
        today = self._day()
        day, of_day, of_month = self._spent.get(key, (today, 0, 0))
        return of_day if day == today else 0, of_month if day[:7] == today[:7] else 0

    def all_spent(self) -> dict[str, tuple[int, int]]:
        """Return `spent` of every key with usage this month."""
        return {key: self.spent(key) for key in self._spent}

    async def run(self) -> None:
        """Read the usage of this month, and then write usage periodically until cancelled."""
        self._changed.set()
        while True:
            await self._changed.wait()
            try:
                await self._write()
                await asyncio.sleep(FLUSH_S)
            except Unavailable:  # logged; usage stays in memory
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Write pending usage."""
        with contextlib.suppress(Unavailable):
            await self._write()

    async def find(self, start: str, end: str, key: str | None = None, model: str | None = None) -> Usage:
        """Return the usage of the days `start` to `end`, optionally of one key and model, ordered by day, including
        pending usage. Raises `Unavailable` if the store cannot be read.
        """
        with contextlib.suppress(Unavailable):
            await self._write()
        async with self._writing:  # so that no usage is counted twice, in memory and in the store
            found = await self._store.read(start, end, key, model)
            for names, counts in self._pending.items():
                if start <= names[0] <= end and key in (None, names[1]) and model in (None, names[2]):
                    _add(found, names, counts)
        return dict(sorted(found.items()))

    async def _write(self) -> None:
        """Write pending usage, even if the caller is cancelled meanwhile. Raises `Unavailable`."""
        await asyncio.shield(self._write_pending())

    async def _write_pending(self) -> None:
        async with self._writing:
            self._changed.clear()
            pending, self._pending = self._pending, {}
            today = self._day()
            try:
                found = await self._store.write(pending, today)
            except Unavailable:
                for names, counts in pending.items():
                    _add(self._pending, names, counts)
                self._changed.set()
                raise
            self._spent = {key: (today, of_day, of_month) for key, of_day, of_month in found}
            for (_, key, _), counts in self._pending.items():  # added during the write
                self._charge(key, counts.prompt + counts.completion)

    def _charge(self, key: str, n_tokens: int) -> None:
        of_day, of_month = self.spent(key)
        self._spent[key] = self._day(), of_day + n_tokens, of_month + n_tokens

    def _day(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
