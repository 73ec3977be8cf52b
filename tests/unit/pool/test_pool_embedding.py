"""Models that embed in the pool: which engines a load makes, and that all of them are freed."""

import pytest

from server.errors import ModelFailed
from tests.unit.pool.fakes import Setup, loaded, pool_of, spec


def engines(s: Setup) -> tuple[int, int]:
    return len(s.engines.made), len(s.embedders.made)


async def test_a_model_that_does_both_is_busy_while_either_engine_is() -> None:
    async with pool_of(spec("m", embedding=True, sleep_idle_s=5.0)) as s:
        (await loaded(s, "m")).release()
        assert engines(s) == (1, 1)
        s.embedders.made[0].busy = True
        await s.later(10.0)
        assert s.status("m") == "ready"
        s.embedders.made[0].busy = False
        await s.later(10.0)
        assert s.status("m") == "sleeping"
        assert s.engines.made[0].closed
        assert s.embedders.made[0].closed


async def test_when_one_of_two_engines_cannot_start_the_other_is_freed_too() -> None:
    async with pool_of(spec("m", embedding=True)) as s:
        s.embedders.failing = True
        with pytest.raises(ModelFailed, match="no thread"):
            await loaded(s, "m")
        assert engines(s) == (1, 0)
        assert s.engines.made[0].closed
        assert s.loader.open == []


async def test_contexts_that_were_made_before_one_that_does_not_fit_are_freed() -> None:
    async with pool_of(spec("m", embedding=True, instances=2)) as s:
        s.loader.n_runners_that_fit = 1
        with pytest.raises(ModelFailed, match="out of memory"):
            await loaded(s, "m")
        assert [len(s.loader.weights[0].runners), len(s.loader.weights[0].embedders)] == [1, 1]
        assert s.loader.open == []
