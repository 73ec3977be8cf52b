"""A stream that is far behind sends all available events in one chunk, whole and in order."""

import functools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.dialects.dialect import Dialect, Generation, Writer
from server.engine.request import Event, Text
from server.routes.generate import Exchange
from server.routes.services import Services
from server.routes.session import FAR_BEHIND, Session

MANY = FAR_BEHIND


class Letters(Writer):
    """Writes each text, and opens nothing else."""

    def feed(self, prompt: int, event: Event) -> list[bytes]:
        assert isinstance(event, Text)
        return [event.text.encode()]

    def finish(self) -> list[bytes]:
        return [b"end"]

    def body(self) -> dict[str, Any]:
        raise NotImplementedError


async def sent(batches: list[int]) -> list[bytes]:
    """The chunks of a stream for which batches of so many events wait."""
    session = Session(cast(Services, SimpleNamespace()), lambda end_user: end_user)
    session._usage.n_open = 1
    numbers = iter(range(10**6))
    for n in batches:
        session._sink(0)([Text(0, f"{next(numbers)},", (1,)) for _ in range(n)])
    take: Any = session.next

    @functools.wraps(take)
    async def last_ends() -> Any:
        batch = await take()
        session._usage.n_open = int(session.ready)
        return batch

    session.next = last_ends  # type: ignore[method-assign]
    first = await session.next()
    exchange = Exchange.__new__(Exchange)
    exchange._session, exchange._dialect, exchange._generation = session, Dialect(dict), None
    return [chunk async for chunk in exchange._chunks(Generation([], Letters()), first)]


@pytest.mark.parametrize("batches", [[1, MANY], [1, MANY + 5, 3], [1] * (MANY + 2)])
async def test_what_waits_is_one_chunk(batches: list[int]) -> None:
    numbered = [b"%d," % number for number in range(sum(batches))]
    chunks = await sent(batches)
    assert chunks == [numbered[0], b"".join(numbered[1:]), b"end"]


@pytest.mark.parametrize("batches", [[1, MANY - 1], [1, 2, 1, 3]])
async def test_a_few_are_a_chunk_each(batches: list[int]) -> None:
    assert await sent(batches) == [*(b"%d," % number for number in range(sum(batches))), b"end"]
