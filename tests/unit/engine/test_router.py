"""Requests that cost least in one instance are taken by another that has a slot for them."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from server.engine.engine import Engine
from server.engine.request import Event, Failed, Finished
from server.engine.runner_api import BatchEntry
from server.engine.sequence import Ticket
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import Reply, alone, engine_over, request, run
from tests.unit.engine.events import EventStream, events_of

BEGINNING = "a beginning that several have " * 5
FOR_EVER = 90_000


def takes_time(_: Sequence[BatchEntry]) -> None:
    """As decoding does, without the GIL: else no stream lasts, and the step threads leave the event loop no time."""
    time.sleep(0.002)


def runner(n_seq: int = 1, **options: Any) -> FakeRunner:
    return FakeRunner(n_seq=n_seq, **{"n_ctx_seq": 100_000, "n_batch": 512, **options})


async def begun(stream: EventStream) -> EventStream:
    """Once it has its first text."""
    await anext(stream)
    return stream


async def reply_of(stream: EventStream) -> Reply:
    reply = Reply()
    async for events in stream:
        reply.add(events)
    return reply


def home(engine: Engine, ticket: Ticket | None) -> list[int]:
    """The instances where it waits or runs."""
    return [t.instance for t in engine._queue.open.values() if t is ticket]


async def test_who_waits_behind_a_long_stream_changes_over_when_another_instance_is_idle() -> None:
    async with engine_over(runner(on_decode=takes_time), runner(on_decode=takes_time)) as engine:
        long = await begun(events_of(engine, request(BEGINNING + "for long", max_tokens=FOR_EVER)))
        short = await begun(events_of(engine, request("another", max_tokens=FOR_EVER)))
        twin = events_of(engine, request(BEGINNING + "for short"))
        assert home(engine, twin.ticket) == [0], "its beginning is there"
        short.cancel()
        reply = await reply_of(twin)
        assert reply.finished[0].id_slot == 1
        assert reply.text == alone(request(BEGINNING + "for short"))
        assert home(engine, long.ticket) == [0]
        long.cancel()
        await engine.wait_idle()


async def test_requests_with_one_cache_key_prefer_one_instance_unless_the_prefix_says_otherwise() -> None:
    async def instances(engine: Engine, *prompts: str, **fields: Any) -> set[int]:
        found = set()
        for prompt in prompts:
            (reply,) = await run(engine, request(prompt, **fields))
            found.add(reply.finished[0].id_slot // 4)
            await engine.wait_idle()  # otherwise the slot of the last reply may still count as busy
        return found

    async with engine_over(*(runner(n_seq=4) for _ in range(4))) as engine:
        by_key = [
            await instances(engine, *(f"{key}{n} unlike others" for n in "xyz"), cache_key=f"key {key}")
            for key in range(8)
        ]
        assert {len(found) for found in by_key} == {1}
        assert len({instance for found in by_key for instance in found}) > 1
        (home_,) = await instances(engine, BEGINNING)
        assert await instances(engine, *(BEGINNING + key for key in "abcdef"), cache_key="any") == {home_}
        busy = [
            await begun(events_of(engine, request(f"busy {n}", max_tokens=FOR_EVER, cache_key="k"))) for n in range(6)
        ]
        assert len({home(engine, stream.ticket)[0] for stream in busy}) > 1
        for stream in busy:
            stream.cancel()


class Ending:
    """Counts how a request ended."""

    def __init__(self) -> None:
        self.finished: Counter[int] = Counter()
        self.failed: list[Exception] = []

    def put(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Finished):
                self.finished[event.index] += 1
            elif isinstance(event, Failed):
                self.failed.append(event.error)

    def is_whole(self, n: int) -> bool:
        """Ended, and once."""
        if self.failed:
            return len(self.failed) == 1 and all(times == 1 for times in self.finished.values())
        return self.finished == Counter(range(n))
