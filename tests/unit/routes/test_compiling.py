"""Turns to compile: a few at once, clients by turns, and nobody waits for longer than the limit."""

import asyncio

import pytest

from server.errors import TooLate
from server.routes.compiling import Compiling


async def test_clients_take_turns() -> None:
    compiling, order = Compiling(n_free=1), list[str]()

    async def work(client: str) -> None:
        async with compiling.turn(client):
            order.append(client)

    async with compiling.turn("greedy"):
        tasks = [asyncio.create_task(work(client)) for client in ("greedy", "greedy", "greedy", "other", "third")]
        await asyncio.sleep(0)
        assert compiling.n_waiting == 5
    await asyncio.gather(*tasks)
    assert order == ["other", "third", "greedy", "greedy", "greedy"]
    assert (compiling.n_free, compiling.n_waiting) == (1, 0)


async def test_a_client_that_leaves_gives_its_turn_on() -> None:
    compiling = Compiling(n_free=1)

    async def work() -> str:
        async with compiling.turn("a"):
            return "done"

    async with compiling.turn("a"):
        leaving, staying = asyncio.create_task(work()), asyncio.create_task(work())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert compiling.n_waiting == 1
        overtaken = asyncio.create_task(work())
        await asyncio.sleep(0)
    staying.cancel()  # as its turn comes
    await asyncio.wait([staying])
    assert await overtaken == "done"
    assert (compiling.n_free, compiling.n_waiting) == (1, 0)


async def test_who_waits_too_long_is_told_when_to_retry() -> None:
    compiling = Compiling(n_free=1, wait_s=0.01)
    async with compiling.turn("a"):
        with pytest.raises(TooLate, match="waited for 0 s, retry in 5 s"):
            async with compiling.turn("b"):
                pass
    assert (compiling.n_free, compiling.n_waiting) == (1, 0)
