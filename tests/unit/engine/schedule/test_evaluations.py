"""How many graph evaluations a step takes, and where sequences are put and brought so that there are fewer."""

import random
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.cache.kv_store import Cells
from server.engine.params import EngineParams
from server.engine.placement import n_id_groups, n_more_id_groups
from server.engine.scheduler import Scheduler, TokenRun, in_batch_order
from server.engine.sequence import Phase, Sequence
from server.errors import InternalError
from tests.support.fakes import FakeRunner, evaluations
from tests.unit.engine.builders import sequence

EVALUATION_S = 0.01


@given(st.sets(st.integers(0, 40)), st.integers(0, 40))
def test_runs_are_evaluations_of_one_token_each(ids: set[int], seq: int) -> None:
    assert n_id_groups(ids) == evaluations([(seq, 1) for seq in sorted(ids)], 512)
    others = ids - {seq}
    assert n_id_groups(others | {seq}) == n_id_groups(others) + n_more_id_groups(seq, others)


def token_run(seq: int, n: int) -> TokenRun:
    return TokenRun(seq, 0, [1] * n, 1, at=0, sequence=sequence([1]))


@pytest.mark.parametrize(
    ("streams", "slot", "at"), [((1, 2, 3), 0, 3), ((1, 2, 3), 4, 0), ((1, 2, 3), 6, 3), ((1, 2, 4), 3, 2)]
)
def test_a_long_prefill_joins_sequences_that_it_is_between_and_is_evaluated_alone_at_their_edge(
    streams: tuple[int, ...], slot: int, at: int
) -> None:
    """What is left of it after a first token with theirs would be 127 tokens: no whole tiles of attention."""
    runs = in_batch_order([token_run(seq, 1) for seq in streams], [token_run(slot, 128)], is_split=True)
    assert evaluations([(run.seq, len(run.tokens)) for run in runs], 512) == 2
    assert [run.seq for run in runs].index(slot) == at


# ---- in the scheduler


class Bench:
    """A scheduler over a fake machine, whose sequences generate until they are ended."""

    def __init__(self, n_seq: int = 8, *, copy_s: float = 0.02, evaluation_s: float = EVALUATION_S) -> None:
        self.now = 0.0
        self.runner = FakeRunner(n_seq=n_seq, n_ctx_seq=512, n_batch=512)
        self.runner.info = replace(self.runner.info, evaluation_s=evaluation_s, copy_s=copy_s)
        self.scheduler = Scheduler(self.runner.info, EngineParams())
        self.cells = Cells(self.runner, self.scheduler, lambda: self.now)
        self._last = 1000
        self.n_evaluations = self.n_relocations = 0
        self.fixed: frozenset[int] = frozenset()

    def ask(self, n: int, **options: Any) -> list[Sequence]:
        """So many new prompts with nothing in common, placed together."""
        asked = []
        for _ in range(n):
            prompt = [self._next() % 256 for _ in range(40)]
            asked.append(sequence(prompt, at=self.now, **options))
            self.scheduler.enqueue(asked[-1])
        self.steps(1)
        return asked

    def _next(self) -> int:
        self._last = (self._last * 1103515245 + 12345) % (1 << 31)
        return self._last >> 8

    def steps(self, n: int) -> None:
        """So many steps, as the instance takes them."""
        for _ in range(n):
            self.now += 0.05
            while (placement := self.scheduler.place(self.now)) is not None:
                self.cells.prepare(placement, self.now)
                self.scheduler.occupy(placement, self.now)
            while (slots := self.scheduler.relocation(self.fixed)) is not None:
                self.n_relocations += 1
                self.cells.relocate(*slots, self.now)
            entries = self.scheduler.plan()
            if not entries:
                self.scheduler.move_budget.spent_s = 0.0
                return
            runs = [(e.seq, len(e.tokens)) for e in entries]
            self.n_evaluations = evaluations(runs, 512)
            assert self.n_evaluations <= evaluations(sorted(runs), 512)
            self.runner.decode(entries)
            self.scheduler.commit(entries, 0.05)
            self.scheduler.move_budget.computed = 150.0
            for entry in entries:
                if entry.n_outputs and entry.sequence.phase is Phase.DECODE:
                    entry.sequence.output.append(self._next() % 256)
            self.check()

    def end(self, sequences: Seq[Sequence]) -> None:
        """They have ended, one after the other."""
        for ended in sequences:
            self.now += 0.01
            self.scheduler.release(ended, self.now)
            ended.phase = Phase.ENDED

    def check(self) -> None:
        """Cells are what slots say, and a stream has all of its cells."""
        self.scheduler.check_integrity()
        streams = [s for s in self.scheduler.active() if s.phase is Phase.DECODE]
        assert all(s.held.tokens == s.content[:-1] for s in streams)
        assert all(self.runner.cells[slot.id] == slot.tokens for slot in self.scheduler.slots)

    def ids(self) -> set[int]:
        """Slots in use."""
        return {slot.id for slot in self.scheduler.slots if not slot.idle}


def spread(copy_s: float = 0.02) -> Bench:
    """Return a bench with streams in every second slot."""
    bench = Bench(copy_s=copy_s)
    eight = bench.ask(8)
    bench.steps(20)
    bench.end(eight[::2])
    return bench


def test_streams_that_are_left_over_are_brought_together() -> None:
    bench = spread()
    contents = [slot.tokens for slot in bench.scheduler.slots if slot.idle]
    bench.steps(4)
    assert n_id_groups(bench.ids()) == bench.n_evaluations == 1
    assert bench.n_relocations <= 3
    left = [slot.tokens for slot in bench.scheduler.slots if slot.idle] + [e.tokens for e in bench.scheduler.ram]
    assert all(tokens in left for tokens in contents), "a cache was lost by it"


@pytest.mark.parametrize(("rate", "n"), [(320.0, 1), (150.0, 2)])
def test_a_cache_that_may_be_computed_again_later_is_no_pause_now(rate: float, n: int) -> None:
    """About 80 tokens take longer than a relocation may pause others; the steps that are left save more, or less."""
    bench = Bench(3)
    bench.scheduler.ram.offloads = False
    three = bench.ask(3)
    bench.steps(40)
    bench.end(three[1:2])
    bench.scheduler.move_budget.computed = rate
    slots = bench.scheduler.relocation(frozenset())
    if slots is not None:
        bench.cells.relocate(*slots, bench.now)
    assert n_id_groups(bench.ids()) == n


def test_a_copy_that_costs_more_than_the_gap_is_not_made() -> None:
    bench = Bench(4, copy_s=60.0)
    bench.scheduler.move_budget.bandwidth = 1.0  # nor are states moved
    three = bench.ask(3)
    bench.steps(20)
    bench.end(three[1:2])
    bench.steps(10)
    assert bench.ids() == {0, 2}


def test_who_asked_for_a_slot_stays_there_and_so_does_what_a_command_waits_for() -> None:
    bench = Bench(4)
    first, second = bench.ask(1, id_slot=0), bench.ask(1, id_slot=2)
    bench.steps(50)
    assert (first + second)[1].slot is bench.scheduler.slots[2]
    bench.end(second)
    third = bench.ask(1, id_slot=-1)
    assert bench.ids() == {0, 1}
    bench.end(third)
    fourth = bench.ask(1)
    bench.steps(50)
    bench.fixed = frozenset({1, 3})
    assert fourth[0].slot is not None
    assert fourth[0].slot.id == 1


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_cells_stay_what_slots_say(seed: int) -> None:
    draw = random.Random(seed)
    bench = Bench(copy_s=draw.choice([0.001, 0.02, 1.0]))
    running: list[Sequence] = []
    for _ in range(30):
        if running and draw.random() < 0.5:
            ended = draw.sample(running, draw.randint(1, len(running)))
            bench.end(ended)
            running = [s for s in running if s not in ended]
        elif len(running) < 8:
            running += bench.ask(draw.randint(1, 8 - len(running)))
        if running:
            bench.steps(draw.randint(1, 6))


def with_prompts_between(*lengths: int) -> Bench:
    """Return a bench with steps of 64 tokens, and prompts of `lengths` that wait for the slots between six streams."""
    bench = Bench(6)
    six = bench.ask(6)
    bench.steps(2)
    bench.end(six[1:4])
    for slot in bench.scheduler.slots[1:4]:
        bench.cells.clear(slot)
    bench.scheduler.step_size.size = 64
    for n in lengths:
        prompt = [bench._next() % 256 for _ in range(n)]
        bench.scheduler.enqueue(sequence(prompt, at=bench.now))
    return bench


def test_prompts_between_streams_take_part_with_a_token_though_another_one_is_computed() -> None:
    bench = with_prompts_between(400, 350, 300)  # the shortest is computed first
    bench.steps(2)  # the first one begins with the shortest, the second with the oldest
    computed = [len(slot.tokens) for slot in bench.scheduler.slots[1:4]]
    assert min(computed) == 2
    assert max(computed) > 40
    assert bench.n_evaluations == 2  # that of all streams, and that of a prompt's further tokens


def test_the_last_tokens_of_a_prompt_leave_room_for_prompts_between_streams() -> None:
    bench = with_prompts_between(400, 350, 66)
    bench.steps(1)
    assert sorted(len(slot.tokens) for slot in bench.scheduler.slots[1:4]) == [1, 1, 62]
    assert bench.n_evaluations == 2


@pytest.mark.parametrize("why", ["no memory", "no room"])
def test_a_sequence_whose_state_cannot_be_loaded_elsewhere_is_copied_there(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = spread(copy_s=1.0)
    n_loads = 0

    def refuse(seq: int, state: bytes, n_tokens: int) -> bool:
        nonlocal n_loads
        n_loads += 1
        if why == "no memory":
            raise MemoryError
        return False

    monkeypatch.setattr(bench.runner, "seq_load", refuse)
    slots = bench.scheduler.relocation(frozenset())
    assert slots is not None
    bench.now += 1
    moved = slots[0]
    wanted = slots[1].id
    bench.cells.relocate(*slots, bench.now)
    assert n_loads == 1
    assert moved.id == wanted
    assert bench.scheduler.move_budget.n_copies == 1
    bench.check()
    bench.steps(4)


def test_a_sequence_that_cannot_be_copied_stays_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = spread()
    tried: list[int] = []

    def refuse(seq: int, *rest: object) -> bool:
        tried.append(seq)
        raise InternalError("injected")

    monkeypatch.setattr(bench.runner, "seq_load", refuse)
    monkeypatch.setattr(bench.runner, "seq_copy", refuse)
    bench.steps(4)
    assert len(tried) == 2  # once in each of the two ways
    assert bench.n_evaluations == 4
    monkeypatch.undo()
    bench.end(bench.ask(1))
    bench.steps(4)
    assert bench.n_evaluations == 1
