import pytest

from server.errors import ConfigError, ModelFailed
from server.pool.events import StatusChanged
from server.pool.state import Status
from tests.unit.pool.fakes import Setup, acquiring, loaded, pool_of, spec, spin

UNLOADED, LOADING, READY, _, _, FAILED, _ = Status


# ---- loading


async def test_a_load_goes_on_when_every_caller_has_left() -> None:
    async with pool_of("a", "b") as s:
        task = acquiring(s, "a")
        await spin()
        task.cancel()
        await s.work()
        assert s.status("a") is READY


async def test_a_caller_cancelled_in_the_moment_of_its_lease_gives_it_back() -> None:
    async with pool_of("a") as s:
        task = acquiring(s, "a")
        await spin()
        s.threads.run()
        with s.pool.subscribe() as events:
            async for event in events:  # the lease is given in the same step as READY, then the caller runs
                if isinstance(event, StatusChanged) and event.status is READY:
                    break
        task.cancel()
        await spin()
        assert task.cancelled()
        assert s.pool.state("a").n_leases == 0


def test_more_startup_models_than_places_stop_the_start() -> None:
    models = [spec(m, load="startup") for m in "abc"]
    with pytest.raises(ConfigError, match="3 models have 'load: startup', but models_max is 2"):
        Setup(*models, models_max=2)


# ---- failing


async def test_after_a_failure_requests_get_the_reason_until_one_may_try_again() -> None:
    async with pool_of("a", "b", retry_failed_s=10) as s:
        s.loader.failing["a"] = ModelFailed("a", "out of memory")
        with pytest.raises(ModelFailed):
            await loaded(s, "a")
        with pytest.raises(ModelFailed, match="out of memory"):
            await s.pool.acquire("a")
        assert not s.threads.jobs
        s.clock.now += 10
        s.loader.failing.clear()
        (await loaded(s, "a")).release()
        assert s.pool.state("a").failure == ""


async def test_a_panic_of_a_rust_library_is_a_failure_like_any_other() -> None:
    class PanicException(BaseException):
        """As pyo3's, which is no Exception."""

    async with pool_of("a") as s:
        s.loader.failing["a"] = PanicException("index out of bounds")
        with pytest.raises(ModelFailed, match="PanicException: index out of bounds"):
            await loaded(s, "a")


async def test_a_model_that_cannot_be_freed_is_failed_and_can_be_loaded_again() -> None:
    async with pool_of("a", "b") as s:
        (await loaded(s, "a")).release()
        weights = s.loader.weights[0]
        weights.close = lambda: 1 / 0  # type: ignore[method-assign,assignment]
        await s.pool.unload("a")
        await s.work()
        assert "could not be freed" in s.pool.state("a").failure
        weights.closed = True
        await s.pool.load("a")
        await s.work()
        assert s.status("a") is READY
