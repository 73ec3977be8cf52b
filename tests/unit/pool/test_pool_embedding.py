"""Models that embed in the pool: which engines a load makes, and that all of them are freed."""

import pytest

from server.errors import ModelFailed, NotSupported
from tests.unit.pool.fakes import Setup, loaded, pool_of, spec


def engines(s: Setup) -> tuple[int, int]:
    return len(s.engines.made), len(s.embedders.made)


async def test_a_model_that_only_embeds_has_no_engine_that_generates() -> None:
    async with pool_of(spec("e", pooling="mean", instances=2)) as s:
        with await loaded(s, "e") as lease:
            assert engines(s) == (0, 1)
            assert len(s.embedders.made[0].runners) == 2
            assert lease.model.embedder is not None
            with pytest.raises(NotSupported, match="Start it without `--embeddings`"):
                _ = lease.model.engine
            assert s.pool.state("e").facts is not None


async def test_a_model_that_only_generates_says_how_to_make_it_embed() -> None:
    async with pool_of("a") as s:
        with await loaded(s, "a") as lease, pytest.raises(NotSupported, match="`embedding: true` for model 'a'"):
            _ = lease.model.embedder


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
