import pytest

from server.pool.state import Status
from tests.unit.pool.fakes import acquiring, loaded, pool_of, spec

UNLOADED, _, READY, DRAINING, SLEEPING, _, _ = Status


# ---- models_max


async def test_a_client_that_leaves_the_queue_costs_nobody_a_place() -> None:
    async with pool_of("a", "b", models_max=1) as s:
        held = await loaded(s, "a")
        task = acquiring(s, "b")
        await s.work()
        task.cancel()
        await s.work()
        held.release()
        await s.work()
        assert s.statuses() == {"a": READY, "b": UNLOADED}


async def test_who_was_held_back_is_served_when_the_other_gives_up() -> None:
    async with pool_of("a", "b", models_max=1, patience_s=10) as s:
        held = await loaded(s, "a")
        waiting = acquiring(s, "b")
        await s.work()
        await s.later(10)
        late = acquiring(s, "a")
        await s.work()
        waiting.cancel()
        await s.work()
        late.result().release()
        held.release()


# ---- sleeping


async def test_an_idle_model_sleeps_and_the_next_request_wakes_it() -> None:
    async with pool_of(spec("a", sleep_idle_s=60), "b") as s:
        (await loaded(s, "a")).release()
        await s.later(59)
        assert s.status("a") is READY
        await s.later(1)
        assert s.status("a") is SLEEPING
        assert s.loader.open == []
        assert s.pool.state("a").info is not None
        assert s.status("a") is SLEEPING
        (await loaded(s, "a")).release()
        assert s.status("a") is READY


async def test_a_sleeping_model_can_be_unloaded() -> None:
    async with pool_of(spec("a", sleep_idle_s=60)) as s:
        (await loaded(s, "a")).release()
        await s.later(60)
        await s.pool.unload("a")
        assert s.status("a") is UNLOADED
        assert s.pool.state("a").info is None


async def test_a_lease_may_say_how_long_the_model_stays_behind_it() -> None:
    async with pool_of("a", spec("b", sleep_idle_s=60)) as s:
        lease = await loaded(s, "a")
        lease.keep_alive_s = 30
        lease.release()
        assert s.pool.state("a").sleeps_in_s == pytest.approx(30)
        await s.later(29)
        assert s.status("a") is READY
        await s.later(1)
        assert s.status("a") is SLEEPING
        (await loaded(s, "a")).release()
        assert s.pool.state("a").sleeps_in_s is None  # it held as long as the model was in memory
        held = await loaded(s, "b")
        for_ever = await loaded(s, "b")
        for_ever.keep_alive_s = -1
        for_ever.release()
        held.release()
        await s.later(1000)
        assert s.status("b") is READY


async def test_a_model_that_nobody_wants_to_keep_goes_when_its_last_lease_does() -> None:
    async with pool_of("a") as s:
        held, last = await loaded(s, "a"), await loaded(s, "a")
        last.keep_alive_s = 0
        last.release()
        await s.later(1)
        assert s.status("a") is READY
        held.release()
        await s.later(0)
        assert s.status("a") is SLEEPING
