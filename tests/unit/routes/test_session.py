"""No batch of events is lost or given twice, however its arrival meets who waits for it."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from server.engine.request import Event, Failed, Started
from server.errors import InternalError
from server.routes.services import Services
from server.routes.session import Session

ONE: list[Event] = [Started(0, 5, 0)]
TWO: list[Event] = [Started(1, 5, 0)]


def session() -> Session:
    return Session(cast(Services, SimpleNamespace()), lambda end_user: end_user)


async def test_what_came_before_anybody_waited_is_given_in_order() -> None:
    ours = session()
    ours._sink(0)(ONE)
    ours._sink(3)(TWO)
    assert [await ours.next(), await ours.next()] == [(0, ONE), (3, TWO)]


async def test_who_waits_gets_what_comes() -> None:
    ours = session()
    waiting = asyncio.create_task(ours.next())
    await asyncio.sleep(0)
    ours._sink(0)(ONE)
    ours._sink(0)(TWO)
    assert await waiting == (0, ONE)
    assert await ours.next() == (0, TWO)


@pytest.mark.parametrize("arrives_first", [True, False])
async def test_a_batch_that_comes_as_the_waiting_is_given_up_is_kept(*, arrives_first: bool) -> None:
    ours = session()
    waiting = asyncio.create_task(ours.next())
    await asyncio.sleep(0)
    if arrives_first:
        ours._sink(0)(ONE)
    waiting.cancel()
    if not arrives_first:
        ours._sink(0)(ONE)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await ours.next() == (0, ONE)
    later = asyncio.create_task(ours.next())
    await asyncio.sleep(0)
    ours._sink(0)(TWO)
    assert await later == (0, TWO)


async def test_a_failure_is_raised() -> None:
    ours = session()
    ours._sink(0)([Failed(InternalError("it broke"))])
    with pytest.raises(InternalError, match="it broke"):
        await ours.next()
