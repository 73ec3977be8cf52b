"""The pool with its own threads and the fake weights of the HTTP tests."""

import asyncio
import threading
from typing import Any, cast

from server.pool.events import LoadProgress, Subscription
from server.pool.loading import Factories
from server.pool.pool import Pool
from tests.support.fakes import FakeLoader
from tests.unit.pool.fakes import spec

FACTORIES = Factories(template=lambda info, spec: cast(Any, object()))


async def progress(events: Subscription) -> float:
    """Wait for the next report of a load."""
    async for event in events:
        if isinstance(event, LoadProgress):
            return event.value
    raise AssertionError("the events ended")


async def test_a_load_in_a_thread_with_a_real_engine_is_shared() -> None:
    gate = threading.Event()
    loader = FakeLoader(gate=gate)
    pool = Pool([spec("a", instances=2), spec("b")], loader, factories=FACTORIES)
    events = pool.subscribe()
    tasks = [asyncio.ensure_future(pool.acquire("a")) for _ in range(5)]
    assert await asyncio.wait_for(progress(events), 60) == 0.5
    assert pool.state("a").progress == 0.5
    gate.set()
    leases = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert len({id(lease.model) for lease in leases}) == 1
    assert leases[0].model.engine.n_slots == 8
    for lease in leases:
        lease.release()
    await asyncio.wait_for(pool.close(), 60)
    assert [w.closed for w in loader.loaded] == [True]
