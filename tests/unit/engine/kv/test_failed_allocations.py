"""Memory that can't be had, or a library that gives up, costs the one cache entry that it was for."""

from collections.abc import Callable, Sequence

import pytest

from server.engine.runner_api import BatchEntry
from server.errors import InternalError
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import alone, engine_over, request, run, ticking
from tests.unit.engine.kv.test_disk import Files, still

FAILURES = [MemoryError(), InternalError("the library gave up")]
NAMES = ["no memory", "library"]


class Failing(FakeRunner):
    """Calls of ``broken`` raise ``error``, once a test has set it."""

    error: Exception | None = None
    broken = ""

    def _break(self, name: str) -> None:
        if self.error is not None and name == self.broken:
            raise self.error

    def seq_size(self, seq: int, *, partial: bool = False) -> int:
        self._break("size")
        return super().seq_size(seq, partial=partial)

    def seq_save(self, seq: int) -> bytes:
        self._break("save")
        return super().seq_save(seq)

    def seq_load(self, seq: int, state: bytes, n_tokens: int) -> bool:
        self._break("load")
        return super().seq_load(seq, state, n_tokens)

    def seq_copy(self, source: int, target: int) -> None:
        self._break("copy")
        super().seq_copy(source, target)

    def seq_checkpoint(self, seq: int) -> bytes:
        self._break("checkpoint")
        return super().seq_checkpoint(seq)

    def seq_rewind(self, seq: int, checkpoint: bytes, n_tokens: int) -> bool:
        self._break("rewind")
        return super().seq_rewind(seq, checkpoint, n_tokens)

    def seq_drop(self, seq: int, start: int, end: int) -> None:
        self._break("drop")
        super().seq_drop(seq, start, end)


LONG = "once upon a time there was a prompt " * 3


@pytest.mark.parametrize("error", FAILURES, ids=NAMES)
@pytest.mark.parametrize("broken", ["size", "save", "load", "copy"])
async def test_every_request_of_an_instance_whose_states_fail_gets_its_reply(error: Exception, broken: str) -> None:
    runner = Failing(n_seq=2, n_ctx_seq=256)
    async with engine_over(runner, clock=still, cache_ram=1) as engine:
        first = [request(letter + LONG) for letter in "ab"]
        await run(engine, *first)
        await run(engine, *(request(letter + LONG) for letter in "cd"))  # a and b go to RAM
        runner.error, runner.broken = error, broken
        again = [*first, request("c" + LONG + " and more"), *(request(letter + LONG) for letter in "ef")]
        replies = await run(engine, *again)
        assert [reply.error for reply in replies] == [None] * len(again)
        assert [reply.text for reply in replies] == [alone(one) for one in again]


@pytest.mark.parametrize("error", FAILURES, ids=NAMES)
@pytest.mark.parametrize("broken", ["checkpoint", "rewind", "copy"])
async def test_checkpoints_that_fail_cost_no_reply(error: Exception, broken: str) -> None:
    runner = Failing(n_seq=2, n_ctx_seq=512, partial_removal=False)
    async with engine_over(runner, clock=still, cache_ram=1) as engine:
        await run(engine, request("a" + LONG))
        runner.error, runner.broken = error, broken
        asked = [request("a" + LONG[:60] + letter + LONG) for letter in "xyz"]
        replies = await run(engine, *asked)
        assert [reply.error for reply in replies] == [None] * 3
        assert [reply.text for reply in replies] == [alone(one) for one in asked]


@pytest.mark.parametrize("error", FAILURES, ids=NAMES)
@pytest.mark.parametrize("n", [1, 2])
async def test_without_memory_to_take_guesses_back_none_are_made(n: int, error: Exception) -> None:
    said = "row row row your boat, " * 6
    runner = Failing(n_seq=2, n_ctx_seq=512, replies={"sing": said}, partial_removal=False)
    runner.error, runner.broken = error, "checkpoint"
    async with engine_over(runner, spec_type="lookup", clock=ticking()) as engine:
        replies = await run(engine, *(request("sing", max_tokens=100) for _ in range(n)))
        assert [(reply.error, reply.text) for reply in replies] == [(None, said[:100])] * n
        assert len(runner.batches) >= 100  # a token a step


@pytest.mark.parametrize("error", FAILURES, ids=NAMES)
async def test_a_parked_one_whose_state_fails_is_computed_anew(error: Exception) -> None:
    runner = Failing(n_seq=2, n_ctx_seq=1000, n_cells=1000, unified=True, n_batch=512)
    runner.error, runner.broken = error, "save"
    async with engine_over(runner) as engine:
        asked = [request(letter * 400, max_tokens=300) for letter in "ab"]
        replies = await run(engine, *asked)
        assert engine.stats.n_preempted
        assert [reply.error for reply in replies] == [None, None]
        assert [reply.text for reply in replies] == [alone(one) for one in asked]


async def test_a_batch_without_memory_is_decoded_piece_by_piece() -> None:
    def fails_together(entries: Sequence[BatchEntry]) -> None:
        if len(entries) > 1:
            raise MemoryError

    async with engine_over(FakeRunner(n_seq=3, on_decode=fails_together)) as engine:
        asked = [request(text) for text in ("one", "two", "three")]
        replies = await run(engine, *asked)
        assert [reply.text for reply in replies] == [alone(one) for one in asked]


async def test_an_empty_state_is_no_state() -> None:
    class Empty(FakeRunner):
        def seq_save(self, seq: int) -> bytes:
            return b""

    async with engine_over(Empty(n_seq=1), clock=still, cache_ram=1) as engine:
        await run(engine, request("a" + LONG))
        (reply,) = await run(engine, request("b" + LONG))
        assert reply.error is None
        assert engine.stats.cache_ram_states == 0


@pytest.mark.parametrize("when", ["read", "write"])
async def test_a_disk_state_without_memory_costs_itself_only(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files()

    def out_of_memory(*_: object) -> object:
        raise MemoryError

    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=512), clock=still, cache_ram=0, cache_disk=1) as engine:
        await engine.use_disk(files)
        await run(engine, request("a" + LONG), request("b" + LONG))
        original: Callable[..., object] = getattr(files, when)
        monkeypatch.setattr(files, when, out_of_memory)
        replies = await run(engine, request("a" + LONG + "x"), request("c" + LONG))
        assert [reply.error for reply in replies] == [None, None]
        monkeypatch.setattr(files, when, original)
        await run(engine, request("d" + LONG), request("e" + LONG))
        disk = engine._disk
        assert disk is not None
        assert disk._usable
