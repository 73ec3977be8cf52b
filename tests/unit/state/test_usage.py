"""The ledger of requests and tokens by key, model and day."""

import asyncio
from pathlib import Path

import pytest

from server.errors import Unavailable
from server.state.database import Database
from server.state.usage import Counts, DatabaseUsage, Spent, Usage, UsageLedger
from tests.unit.clock import Clock

NOON = 1_795_521_600.0  # 2026-11-24 12:00 UTC
DAY_S = 86_400


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


def used(ledger: UsageLedger, key: str = "ada", model: str = "demo", n: int = 1) -> None:
    ledger.add(key, model, prompt=10 * n, cached=4 * n, completion=n)


async def test_what_a_key_has_spent_begins_again_with_the_day_and_the_month(tmp_path: Path, clock: Clock) -> None:
    database = Database(tmp_path / "state")
    ledger = UsageLedger(DatabaseUsage(database), clock)
    assert ledger.spent("ada") == (0, 0)
    used(ledger)
    assert ledger.spent("ada") == (11, 11)
    clock.now += DAY_S
    assert ledger.spent("ada") == (0, 11)
    used(ledger, n=2)
    assert ledger.spent("ada") == (22, 33)
    await ledger.close()
    assert ledger.spent("ada") == (22, 33)
    used(ledger)
    assert ledger.spent("ada") == (33, 44)
    clock.now += 7 * DAY_S
    assert ledger.spent("ada") == (0, 0)
    database.close()


async def test_two_servers_share_a_file(tmp_path: Path, clock: Clock) -> None:
    databases = [Database(tmp_path / "state") for _ in range(2)]
    one, other = (UsageLedger(DatabaseUsage(database), clock) for database in databases)
    used(one)
    used(other)
    await one.close()
    await other.close()
    assert other.spent("ada") == (22, 22)
    assert [*(await one.find("2026-11-24", "2026-11-24")).values()] == [Counts(2, 20, 8, 2)]
    for database in databases:
        database.close()


async def test_usage_that_could_not_be_written_is_written_later(tmp_path: Path, clock: Clock) -> None:
    database = Database(tmp_path / "state")
    ledger = UsageLedger(DatabaseUsage(database), clock)
    used(ledger)
    await database.run(lambda connection: connection.execute("ALTER TABLE token_usage RENAME TO hidden"))
    with pytest.raises(Unavailable):
        await ledger.find("2026-11-24", "2026-11-24")
    used(ledger)
    assert ledger.spent("ada") == (22, 22)
    await database.run(lambda connection: connection.execute("ALTER TABLE hidden RENAME TO token_usage"))
    assert [each.requests for each in (await ledger.find("2026-11-24", "2026-11-24")).values()] == [2]
    database.close()


async def test_usage_is_read_while_the_disk_is_full(tmp_path: Path, clock: Clock) -> None:
    database = Database(tmp_path / "state")
    ledger = UsageLedger(DatabaseUsage(database), clock)
    used(ledger)
    await ledger.close()
    await database.execute("PRAGMA max_page_count=1")  # no more than there are
    used(ledger)
    used(ledger, model="long" * 5000)
    with pytest.raises(Unavailable):
        await ledger._write()
    today = ("2026-11-24", "2026-11-24")
    found = await ledger.find(*today, "ada", "demo")
    assert found == {("2026-11-24", "ada", "demo"): Counts(2, 20, 8, 2)}
    assert len(await ledger.find(*today)) == 2
    assert not await ledger.find(*today, "bob")
    await database.execute("PRAGMA max_page_count=1000")
    assert [each.requests for each in (await ledger.find(*today)).values()] == [2, 1]
    database.close()


async def test_a_write_is_finished_although_the_server_stops_meanwhile(tmp_path: Path, clock: Clock) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    class SlowUsage(DatabaseUsage):
        async def write(self, added: Usage, today: str) -> Spent:
            began.set()
            await go_on.wait()
            return await DatabaseUsage.write(self, added, today)

    database = Database(tmp_path / "state")
    ledger = UsageLedger(SlowUsage(database), clock)
    used(ledger)
    writing = asyncio.create_task(ledger.run())
    await began.wait()
    writing.cancel()
    await asyncio.wait((writing,))
    go_on.set()
    await ledger.close()
    assert [each.requests for each in (await ledger.find("2026-11-24", "2026-11-24")).values()] == [1]
    database.close()
