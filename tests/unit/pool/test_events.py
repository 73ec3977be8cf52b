import asyncio
import itertools
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.pool.events import (
    DownloadProgress,
    FanOut,
    LoadProgress,
    PoolEvent,
    StatusChanged,
    Subscription,
)
from server.pool.protocols import FileProgress
from server.pool.state import Status
from server.startup_banner import show_load_progress


def changed(model: str, status: Status = Status.READY) -> StatusChanged:
    return StatusChanged(model, status)


async def rest(subscription: Subscription) -> list[PoolEvent]:
    subscription.close()
    return [event async for event in subscription]


async def test_a_slow_subscriber_loses_the_oldest_progress_but_no_status() -> None:
    fan_out = FanOut(limit=3)
    slow = fan_out.subscribe()
    fan_out.publish(changed("a", Status.LOADING))
    for value in (0.1, 0.2, 0.3, 0.4):
        fan_out.publish(LoadProgress("a", value))
    fan_out.publish(changed("a"))
    assert await rest(slow) == [changed("a", Status.LOADING), LoadProgress("a", 0.4), changed("a")]


async def test_closing_ends_listeners_that_wait_and_those_that_come_later() -> None:
    fan_out = FanOut()
    events = fan_out.subscribe()
    waiting = asyncio.ensure_future(rest_of(events))
    await asyncio.sleep(0)
    fan_out.close()
    assert await asyncio.wait_for(waiting, 60) == []
    assert await asyncio.wait_for(rest_of(fan_out.subscribe()), 60) == []


async def rest_of(events: Subscription) -> list[PoolEvent]:
    return [event async for event in events]


EVENTS = st.one_of(
    st.builds(changed, st.sampled_from("abcd"), st.sampled_from(list(Status))),
    st.builds(LoadProgress, st.sampled_from("abcd"), st.floats(0, 1)),
)


@given(st.lists(EVENTS, max_size=40), st.integers(1, 8))
def test_the_buffer_is_bounded_and_keeps_each_latest_status(events: list[PoolEvent], limit: int) -> None:
    async def received() -> list[PoolEvent]:
        fan_out = FanOut(limit)
        subscription = fan_out.subscribe()
        for event in events:
            fan_out.publish(event)
        return await rest(subscription)

    got = asyncio.run(received())
    models = {e.model for e in events}
    assert len(got) <= max(limit, len(models))
    for model in models:
        said = [e for e in events if isinstance(e, StatusChanged) and e.model == model]
        heard = [e for e in got if isinstance(e, StatusChanged) and e.model == model]
        assert heard[-1:] == said[-1:]


async def test_long_loads_and_downloads_are_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    fan_out = FanOut()
    events = fan_out.subscribe()
    for percent in range(0, 100, 10):
        fan_out.publish(LoadProgress("demo", percent / 100))
    fan_out.publish(StatusChanged("demo", Status.READY))
    for done in range(4):
        fan_out.publish(DownloadProgress("other", (FileProgress("u/a", done << 20, 4 << 20),)))
    fan_out.close()
    times = itertools.count(0.0, 2.0)
    with caplog.at_level(logging.INFO):
        await show_load_progress(events, clock=lambda: next(times))
    assert caplog.messages == [
        *("loading 'demo': 30%", "loading 'demo': 60%", "loading 'demo': 90%"),
        "fetching 'other': 3 of 4 MiB",
    ]
