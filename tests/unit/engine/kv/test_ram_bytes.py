"""What states take in RAM: entries, checkpoints of slots, and parked requests together keep to ``cache_ram``."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from server.engine.engine import Engine
from server.engine.request import Request
from server.engine.runner_api import BatchEntry
from tests.support.fakes import IM_END, FakeRunner, FakeVocab
from tests.unit.engine.builders import GREEDY, alone, engine_over, request, run
from tests.unit.engine.kv.test_disk import still

pytestmark = pytest.mark.timeout(60)


def bytes_held(engine: Engine) -> int:
    """Of every distinct state that is anywhere, counted without asking the cache."""
    found: dict[int, int] = {}
    for instance in engine._instances:
        for slot in instance.scheduler.slots:
            found |= {id(c.state): len(c.state) for c in slot.checkpoints}
    for entry in engine._ram:
        found |= {id(state): len(state) for state in entry.saved.states}
    return sum(found.values())


def chat(turns: Sequence[int], max_tokens: int) -> Request:
    tokens = [FakeVocab.bos]
    for turn in turns:
        tokens += [ord("a") + turn] * (15 * turn + 20) + [IM_END]
    return Request("chat", tokens, GREEDY, max_tokens=max_tokens)


class Watched:
    """Runners that look before each decode, and at each state, whether the limit is kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.engine: Engine | None = None
        self.most = 0

    def look(self, more: int = 0) -> None:
        if self.engine is not None:
            now = bytes_held(self.engine) + more
            self.most = max(self.most, now)
            assert now <= self.limit, f"{now} bytes of {self.limit}"

    def runner(self, *, unified: bool, cut: bool) -> FakeRunner:
        watched = self

        class Runner(FakeRunner):
            def decode(self, entries: Sequence[BatchEntry]) -> bool:
                watched.look()
                return super().decode(entries)

            def seq_save(self, seq: int) -> bytes:
                state = super().seq_save(seq)
                watched.look(len(state))
                return state

            def seq_checkpoint(self, seq: int) -> bytes:
                state = super().seq_checkpoint(seq)
                watched.look(len(state))
                return state

        n_cells = 700 if unified else None
        return Runner(n_seq=3, n_ctx_seq=600, n_cells=n_cells, unified=unified, partial_removal=cut)


@pytest.mark.parametrize("n_instances", [1, 2])
@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("limit", [3_000, 12_000])
def test_random_load_keeps_to_the_limit(limit: int, *, unified: bool, cut: bool, n_instances: int) -> None:
    async def scenario() -> Engine:
        rng = random.Random(limit)
        watched = Watched(limit)
        runners = [watched.runner(unified=unified, cut=cut) for _ in range(n_instances)]
        async with engine_over(*runners, clock=still, cache_ram=1, ctx_checkpoints=8, checkpoint_min_step=0) as engine:
            engine._ram.limit = limit
            if n_instances == 1:  # of another thread's slots the sum would not be of one moment
                watched.engine = engine
            for _ in range(8):
                asked = [
                    chat([rng.randrange(4) for _ in range(rng.randrange(1, 5))], rng.randrange(1, 150))
                    for _ in range(rng.randrange(1, 7))
                ]
                replies = await run(engine, *asked)
                assert [reply.error for reply in replies] == [None] * len(asked)
                assert [reply.text for reply in replies] == [alone(one) for one in asked]
                async with asyncio.timeout(30):
                    while bytes_held(engine) > limit:  # noqa: ASYNC110 - step threads may go on: not of one moment
                        await asyncio.sleep(0.01)
            assert n_instances > 1 or watched.most > limit / 3, "the load is too light to tell"
            held = [len(s.checkpoints) for i in engine._instances for s in i.scheduler.slots]
            assert engine._ram.n_beside == 0 or any(held), "what nobody holds any more is still counted"
        return engine

    asyncio.run(scenario())


async def test_without_room_in_ram_who_is_parked_is_computed_anew_and_its_state_is_not_copied() -> None:
    runner = FakeRunner(n_seq=2, n_ctx_seq=1000, n_cells=1000, unified=True, n_batch=512)
    saved: list[int] = []
    async with engine_over(runner, cache_ram=1) as engine:
        engine._ram.limit = 100
        runner.seq_save = saved.append  # type: ignore[method-assign, assignment]
        asked = [request(letter * 400, max_tokens=300) for letter in "ab"]
        replies = await run(engine, *asked)
        assert engine.stats.n_preempted
        assert [reply.text for reply in replies] == [alone(one) for one in asked]
        computed = sum(n for batch in runner.batches for _, n in batch)
        assert computed > 2 * 700  # the state of neither was kept
        assert not saved


async def test_a_checkpoint_that_finds_no_room_costs_idle_slots_none_of_theirs() -> None:
    class Growing(FakeRunner):
        def seq_size(self, seq: int, *, partial: bool = False) -> int:
            return 2 << 20 if seq == 1 else super().seq_size(seq, partial=partial)

    async with engine_over(Growing(n_seq=2, n_ctx_seq=600, partial_removal=False), clock=still, cache_ram=1) as engine:
        await run(engine, request("a" * 100, id_slot=0))
        (slots,) = [instance.scheduler.slots for instance in engine._instances]
        kept = [c.n_tokens for c in slots[0].checkpoints]
        await run(engine, request("b" * 100, id_slot=1))
        assert [c.n_tokens for c in slots[0].checkpoints] == kept != []
        assert not slots[1].checkpoints
