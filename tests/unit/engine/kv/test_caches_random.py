"""Whatever is asked in whatever order, over every kind of memory and through RAM and disk: replies are as if alone."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.request import Request
from tests.support.fakes import IM_END, FakeRunner, FakeVocab
from tests.unit.engine.builders import GREEDY, alone, engine_over, run
from tests.unit.engine.kv.test_disk import Files, still

WINDOW = 20


class Windowed(FakeRunner):
    """Memory of which only the last tokens can be forgotten, as a sliding window's."""

    def seq_floor(self, seq: int) -> int:
        return max(len(self.cells[seq]) - WINDOW, 0)

    def seq_remove(self, seq: int, pos: int) -> bool:
        if 0 < pos < self.seq_floor(seq):
            return False
        del self.cells[seq][pos:]
        del self.computed_by[seq][pos:]
        return True


def runner(memory: str, n_seq: int, *, unified: bool) -> FakeRunner:
    kind = Windowed if memory == "window" else FakeRunner
    n_cells = 1200 if unified else None
    return kind(n_seq=n_seq, n_ctx_seq=1024, n_cells=n_cells, unified=unified, partial_removal=memory == "any")


def chat(turns: list[int]) -> Request:
    """Turns of some length each, told apart by their letter; what two chats share is a prefix of both."""
    tokens = [FakeVocab.bos]
    for turn in turns:
        tokens += [ord("a") + turn] * (20 * turn + 5) + [IM_END]
    return Request("chat", tokens, GREEDY, max_tokens=4)


chats = st.lists(st.integers(0, 4), min_size=1, max_size=5)
rounds = st.lists(st.lists(chats, min_size=1, max_size=4), min_size=1, max_size=5)


@given(
    st.sampled_from(["any", "window", "none"]),
    st.integers(1, 3),
    st.booleans(),
    st.lists(rounds, min_size=1, max_size=3),
    st.sampled_from([0, 1]),
    st.sampled_from([0, 2, 32]),
    st.sampled_from([0, 50, 8192]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_order_of_conversations_over_any_memory(
    memory: str,
    n_seq: int,
    unified: bool,
    starts: list[list[list[list[int]]]],
    cache_ram: int,
    n_checkpoints: int,
    spacing: int,
) -> None:
    async def scenario() -> None:
        files = Files()
        params = {"cache_ram": cache_ram, "ctx_checkpoints": n_checkpoints, "checkpoint_min_step": spacing}
        for asked in starts:  # with the same files: the server starts anew
            async with engine_over(
                runner(memory, n_seq, unified=unified), clock=still, cache_disk=1, min_chunk=8, **params
            ) as engine:
                await engine.use_disk(files)
                for at_once in asked:
                    requests = [chat(turns) for turns in at_once]
                    replies = await run(engine, *requests)
                    assert [r.error for r in replies] == [None] * len(replies)
                    assert [r.text for r in replies] == [alone(r) for r in requests]
        assert not files.damaged

    asyncio.run(scenario())
