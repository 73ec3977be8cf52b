"""The ledger of requests and tokens by API key, model and day."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.errors import Unavailable
from server.state.database import Database
from server.state.usage import Counts, DatabaseUsage, Spent, Usage, UsageLedger
from tests.unit.clock import Clock

NOON = 1_795_521_600.0  # 2026-11-24 12:00 UTC
DAY_S = 86_400
TODAY = ("2026-11-24", "2026-11-24")


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "state")
    yield opened
    opened.close()


@pytest.fixture
def ledger(database: Database, clock: Clock) -> UsageLedger:
    return UsageLedger(DatabaseUsage(database), clock)


def add_usage(ledger: UsageLedger, key: str = "ada", model: str = "demo", n: int = 1) -> None:
    ledger.add(key, model, prompt=10 * n, cached=4 * n, completion=n)


async def test_spent_tokens_of_a_key_are_reset_each_day_and_month(ledger: UsageLedger, clock: Clock) -> None:
    assert ledger.spent("ada") == (0, 0)
    add_usage(ledger)
    assert ledger.spent("ada") == (11, 11)
    clock.now += DAY_S
    assert ledger.spent("ada") == (0, 11)
    add_usage(ledger, n=2)
    assert ledger.spent("ada") == (22, 33)
    await ledger.close()
    assert ledger.spent("ada") == (22, 33)
    add_usage(ledger)
    assert ledger.spent("ada") == (33, 44)
    clock.now += 7 * DAY_S
    assert ledger.spent("ada") == (0, 0)


async def test_servers_with_one_database_see_each_others_usage(tmp_path: Path, clock: Clock) -> None:
    databases = [Database(tmp_path / "state") for _ in range(2)]
    one, other = (UsageLedger(DatabaseUsage(database), clock) for database in databases)
    add_usage(one)
    add_usage(other)
    await one.close()
    await other.close()
    assert other.spent("ada") == (22, 22)
    assert [*(await one.find(*TODAY)).values()] == [Counts(2, 20, 8, 2)]
    for database in databases:
        database.close()


async def test_failed_write_of_usage_is_repeated(ledger: UsageLedger, database: Database) -> None:
    add_usage(ledger)
    await database.run(lambda connection: connection.execute("ALTER TABLE token_usage RENAME TO hidden"))
    with pytest.raises(Unavailable):
        await ledger.find(*TODAY)
    add_usage(ledger)
    assert ledger.spent("ada") == (22, 22)
    await database.run(lambda connection: connection.execute("ALTER TABLE hidden RENAME TO token_usage"))
    assert [each.requests for each in (await ledger.find(*TODAY)).values()] == [2]


async def test_usage_is_read_while_the_disk_is_full(ledger: UsageLedger, database: Database) -> None:
    add_usage(ledger)
    await ledger.close()
    await database.execute("PRAGMA max_page_count=1")  # the file cannot grow
    add_usage(ledger)
    add_usage(ledger, model="long" * 5000)
    with pytest.raises(Unavailable):
        await ledger._write()
    found = await ledger.find(*TODAY, "ada", "demo")
    assert found == {("2026-11-24", "ada", "demo"): Counts(2, 20, 8, 2)}
    assert len(await ledger.find(*TODAY)) == 2
    assert not await ledger.find(*TODAY, "bob")
    await database.execute("PRAGMA max_page_count=1000")
    assert [each.requests for each in (await ledger.find(*TODAY)).values()] == [2, 1]


async def test_close_waits_for_a_write_that_was_started(database: Database, clock: Clock) -> None:
    started, unblock = asyncio.Event(), asyncio.Event()

    class SlowUsage(DatabaseUsage):
        async def write(self, added: Usage, today: str) -> Spent:
            started.set()
            await unblock.wait()
            return await DatabaseUsage.write(self, added, today)

    ledger = UsageLedger(SlowUsage(database), clock)
    add_usage(ledger)
    writing = asyncio.create_task(ledger.run())
    await started.wait()
    writing.cancel()
    await asyncio.wait((writing,))
    unblock.set()
    await ledger.close()
    assert [each.requests for each in (await ledger.find(*TODAY)).values()] == [1]
