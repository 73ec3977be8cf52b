"""With unified cells, what comes back from RAM, disk or a parking takes the room of idle caches, and no more of it."""

from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import alone, engine_over, request, run
from tests.unit.engine.kv.test_disk import Files, on_disk, still


def unified(n_cells: int = 2048, n_seq: int = 4) -> FakeRunner:
    return FakeRunner(n_seq=n_seq, n_ctx_seq=n_cells, n_cells=n_cells, unified=True)


async def test_a_kept_state_comes_back_when_idle_caches_fill_the_cells() -> None:
    async with engine_over(unified(), clock=still) as engine:
        for name, n in (("x", 500), ("a", 600), ("b", 600), ("c", 600), ("t", 20)):
            await run(engine, request(name * n, max_tokens=2))
        again = request("x" * 500 + "!")
        (reply,) = await run(engine, again)
        assert engine.stats.n_ram_hits == 1
    assert reply.started.n_cached == 501
    assert reply.text == alone(again)


async def test_a_state_from_disk_takes_the_room_of_idle_caches() -> None:
    files: Files = await on_disk("x" * 500)
    async with engine_over(unified(), cache_disk=1, clock=still) as engine:
        await engine.use_disk(files)
        for name in "abc":
            await run(engine, request(name * 650, max_tokens=2))
        (reply,) = await run(engine, request("x" * 500 + "!"))
    assert reply.started.n_cached == 501
