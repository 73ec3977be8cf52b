"""Turns to compile: a few at once, clients by turns, and nobody waits for longer than the limit."""

import asyncio

import pytest

from server.errors import TooLate
from server.transport.admission import CompileTurns


async def test_clients_take_turns_and_one_that_leaves_gives_its_turn_on() -> None:
    turns, order = CompileTurns(1), list[str]()

    async def work(client: str) -> None:
        async with turns.turn(client):
            order.append(client)

    async with turns.turn("greedy"):
        tasks = [asyncio.create_task(work(client)) for client in ("greedy", "greedy", "other", "third", "left")]
        await asyncio.sleep(0)
        tasks[-1].cancel()
    await asyncio.wait(tasks)
    assert order == ["other", "third", "greedy", "greedy"]


async def test_a_client_that_waits_too_long_is_told_when_to_retry() -> None:
    turns = CompileTurns(1, wait_s=0.01)
    async with turns.turn("a"):
        with pytest.raises(TooLate, match="waited for 0 s, retry in 5 s"):
            async with turns.turn("b"):
                pass
