import asyncio

import pytest

from server.errors import ShuttingDown
from server.pool.state import Status
from tests.unit.pool.fakes import acquiring, loaded, pool_of, spin


# ---- load and unload


async def test_load_and_unload_can_be_waited_for() -> None:
    async with pool_of("a", "b") as s:
        task = asyncio.ensure_future(s.pool.load("a", wait=True))
        await s.work()
        assert task.done()
        assert s.pool.state("a").n_leases == 0
        task = asyncio.ensure_future(s.pool.unload("a", wait=True))
        await spin()
        assert not task.done()
        await s.work()
        assert task.done()


async def test_after_the_grace_requests_are_cut_off_and_weights_wait_for_the_last_lease() -> None:
    async with pool_of("a", "b", stop_timeout_s=0) as s:
        lease = await loaded(s, "a")
        await s.pool.unload("a")
        await s.work()
        assert s.engines.made[0].closed
        assert s.loader.open
        assert s.status("a") is Status.DRAINING
        lease.release()
        await s.work()
        assert s.loader.open == []


# ---- closing


async def test_closing_cancels_loads_and_tells_those_who_wait() -> None:
    async with pool_of("a", "b", models_max=1) as s:
        loading, queued = acquiring(s, "a"), acquiring(s, "b")
        await spin()
        closing = asyncio.ensure_future(s.pool.close())
        await spin()
        assert isinstance(loading.exception(), ShuttingDown)
        assert isinstance(queued.exception(), ShuttingDown)
        with pytest.raises(ShuttingDown):
            await s.pool.acquire("a")
        with pytest.raises(ShuttingDown):
            await s.pool.load("a")
        assert not closing.done()
        await s.work()
        await closing
        assert s.loader.weights == []


async def test_closing_shortens_the_grace_of_an_unload_under_way() -> None:
    async with pool_of("a", stop_timeout_s=1000, abandon_s=1000) as s:
        lease = await loaded(s, "a")
        await s.pool.unload("a")
        await s.work()
        closing = asyncio.ensure_future(s.pool.close(0))
        await s.work()
        assert s.engines.made[0].closed
        lease.release()
        await s.work()
        await closing
