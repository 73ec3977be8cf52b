"""After logits that are no numbers: who is at fault fails, and what was kept of spoiled cells spoils nobody again."""

from collections.abc import Sequence
from typing import Any

from server.engine.lora import Adapter
from server.engine.runner_api import BatchEntry
from server.errors import NotNumbers
from tests.support.fakes import FakeRunner, FakeSampler
from tests.unit.engine.builders import alone, engine_over, request, run

ADAPTERS = (Adapter(0, "lora.gguf", scale=0.0),)


class Spoilt(FakeRunner):
    """No numbers come of a sequence that came from a state of `bad`, nor of anybody while `bad_set` is in the cells."""

    def __init__(self, **options: Any) -> None:
        super().__init__(n_seq=1, **options)
        self.bad: set[bytes] = set()
        self.bad_set: tuple[tuple[int, float], ...] = ()
        self.is_bad = False
        self.n_wipes = 0

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        self.is_bad |= bool(self.bad_set) and self.adapters_now == self.bad_set
        return super().decode(entries)

    def seq_load(self, seq: int, state: bytes, n_pos: int) -> bool:
        self.is_bad |= state in self.bad
        return super().seq_load(seq, state, n_pos)

    def sample(self, output: int, sampler: FakeSampler) -> int:
        if self.is_bad:
            raise NotNumbers
        return super().sample(output, sampler)

    def wipe(self) -> None:
        super().wipe()
        self.is_bad = False
        self.n_wipes += 1


async def test_a_kept_state_that_spoils_is_not_used_again() -> None:
    runner = Spoilt()
    first, other = request("a" * 100), request("b" * 100)
    async with engine_over(runner, cache_ram=1) as engine:
        await run(engine, first)
        await run(engine, other)  # the first one's cells go to RAM
        (kept,) = engine._ram
        runner.bad = {kept.saved.state}
        (reply,) = await run(engine, first)
        assert (reply.error, reply.text, runner.n_wipes) == (None, alone(first), 1)
        assert kept not in engine._ram


async def test_a_prompt_that_is_being_read_is_not_at_fault_for_others() -> None:
    """However often others' cells are wiped meanwhile, it is computed anew."""
    runner = TwoSlots(adapters=ADAPTERS, n_batch=16, n_ctx_seq=1000)
    long = request("a" * 400)
    async with engine_over(runner) as engine:
        replies = await run(engine, long, *(bad(i) for i in range(6)))
        assert [type(reply.error) for reply in replies] == [type(None)] + [NotNumbers] * 6
        assert replies[0].text == alone(long)
        assert runner.n_wipes > 2


def bad(i: int) -> Any:
    return request(f"{i}" * 20, adapters=((0, 9.0),))


class TwoSlots(FakeRunner):
    """The adapter makes no numbers of whom it computes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(n_seq=2, **options)
        self.n_wipes = 0

    def sample(self, output: int, sampler: FakeSampler) -> int:
        if self.adapters_now:
            raise NotNumbers
        return super().sample(output, sampler)

    def wipe(self) -> None:
        super().wipe()
        self.n_wipes += 1
