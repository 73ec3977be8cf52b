"""Graph evaluations of a step with separate KV, and relocations of sequences to adjacent slots that reduce them. Uses a
scheduler and cells over a fake runner.
"""

import random
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.kv_store import Cells
from server.engine.params import EngineParams
from server.engine.placement import n_more_id_groups, neighbours
from server.engine.scheduler import Scheduler, TokenRun, in_batch_order
from server.engine.sequence import Phase, Sequence
from server.errors import InternalError
from tests.support.fakes import FakeRunner, evaluations
from tests.unit.engine.builders import sequence

EVALUATION_S = 0.01


@given(st.sets(st.integers(0, 40)), st.integers(0, 40))
def test_groups_of_adjacent_ids_are_the_evaluations_of_one_token_each(ids: set[int], seq: int) -> None:
    assert len(neighbours(ids)) == evaluations([(seq, 1) for seq in sorted(ids)], 512)
    others = ids - {seq}
    assert len(neighbours(others | {seq})) == len(neighbours(others)) + n_more_id_groups(seq, others)


def token_run(seq: int, n: int) -> TokenRun:
    return TokenRun(seq, 0, [1] * n, 1, at=0, sequence=sequence([1]))


@pytest.mark.parametrize(
    ("decoding", "prefilling", "at"), [((1, 2, 3), 0, 3), ((1, 2, 3), 4, 0), ((1, 2, 3), 6, 3), ((1, 2, 4), 3, 2)]
)
def test_long_prefill_joins_decoding_slots_if_between_two(decoding: tuple[int, ...], prefilling: int, at: int) -> None:
    """Otherwise, after a first token with theirs, it would continue with 127 tokens: no whole tiles of attention."""
    runs = in_batch_order([token_run(seq, 1) for seq in decoding], [token_run(prefilling, 128)], is_split=True)
    assert evaluations([(run.seq, len(run.tokens)) for run in runs], 512) == 2
    assert [run.seq for run in runs].index(prefilling) == at


# ---- in the scheduler


class Instance:
    """A scheduler and cells over a fake runner, whose sequences generate until `end`."""

    def __init__(self, n_seq: int = 8, *, copy_s: float = 0.02, evaluation_s: float = EVALUATION_S) -> None:
        self.now = 0.0
        self.runner = FakeRunner(n_seq=n_seq, n_ctx_seq=512, n_batch=512)
        self.runner.info = replace(self.runner.info, evaluation_s=evaluation_s, copy_s=copy_s)
        self.scheduler = Scheduler(self.runner.info, EngineParams())
        self.cells = Cells(self.runner, self.scheduler, lambda: self.now)
        self._random = random.Random(1000)
        self.n_evaluations = self.n_relocations = 0  # evaluations of the last step
        self.fixed: frozenset[int] = frozenset()

    def random_prompt(self, n: int) -> list[int]:
        return self._random.choices(range(256), k=n)

    def start(self, n: int, **options: Any) -> list[Sequence]:
        """Place `n` sequences with different prompts of 40 tokens, and run a step."""
        started = [sequence(self.random_prompt(40), at=self.now, **options) for _ in range(n)]
        for each in started:
            self.scheduler.enqueue(each)
        self.steps(1)
        return started

    def steps(self, n: int) -> None:
        """Run `n` steps in the same way as `server.engine.loop`, or fewer if there is nothing to do."""
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
            self.scheduler.move_budget.prefill_rate = 150.0
            for entry in entries:
                if entry.n_outputs and entry.sequence.phase is Phase.DECODE:
                    entry.sequence.output += self.random_prompt(1)
            self.check()

    def end(self, sequences: Seq[Sequence]) -> None:
        """End the sequences, one after the other."""
        for ended in sequences:
            self.now += 0.01
            self.scheduler.release(ended, self.now)
            ended.phase = Phase.ENDED

    def check(self) -> None:
        """Check that slots agree with the cells, and that decoding sequences have all of their cells."""
        self.scheduler.check_integrity()
        decoding = [s for s in self.scheduler.active() if s.phase is Phase.DECODE]
        assert all(s.held.tokens == s.content[:-1] for s in decoding)
        assert all(self.runner.cells[slot.id] == slot.tokens for slot in self.scheduler.slots)

    def ids(self) -> set[int]:
        """Return the ids of the slots in use."""
        return {slot.id for slot in self.scheduler.slots if not slot.idle}


def spread(copy_s: float = 0.02) -> Instance:
    """Return an instance with decoding sequences in every second slot."""
    instance = Instance(copy_s=copy_s)
    eight = instance.start(8)
    instance.steps(20)
    instance.end(eight[::2])
    return instance


def test_spread_sequences_are_relocated_to_adjacent_slots_without_losing_caches() -> None:
    instance = spread()
    contents = [slot.tokens for slot in instance.scheduler.slots if slot.idle]
    instance.steps(4)
    assert len(neighbours(instance.ids())) == instance.n_evaluations == 1
    assert instance.n_relocations <= 3
    left = [slot.tokens for slot in instance.scheduler.slots if slot.idle] + [e.tokens for e in instance.scheduler.ram]
    assert all(tokens in left for tokens in contents)


@pytest.mark.parametrize(("rate", "n_groups"), [(320.0, 1), (150.0, 2)])
def test_time_to_recompute_the_evicted_cache_counts_as_cost_but_not_as_a_pause(rate: float, n_groups: int) -> None:
    """Recomputing about 80 tokens takes longer than a relocation may pause others. At 320 tokens per second the
    remaining steps save more than that, at 150 less.
    """
    instance = Instance(3)
    instance.scheduler.ram.offloads = False
    three = instance.start(3)
    instance.steps(40)
    instance.end(three[1:2])
    instance.scheduler.move_budget.prefill_rate = rate
    slots = instance.scheduler.relocation(frozenset())
    if slots is not None:
        instance.cells.relocate(*slots, instance.now)
    assert len(neighbours(instance.ids())) == n_groups


def test_sequence_is_not_relocated_if_that_costs_more_than_it_saves() -> None:
    instance = Instance(4, copy_s=60.0)
    instance.scheduler.move_budget.bandwidth = 1.0  # moving the state takes even longer
    three = instance.start(3)
    instance.steps(20)
    instance.end(three[1:2])
    instance.steps(10)
    assert instance.ids() == {0, 2}


def test_sequence_bound_by_id_slot_is_not_relocated() -> None:
    instance = Instance(4)
    instance.start(1, id_slot=0)
    (bound,) = instance.start(1, id_slot=2)
    instance.steps(50)
    assert bound.slot is instance.scheduler.slots[2]
    instance.end([bound])
    instance.start(1)
    assert instance.ids() == {0, 1}


def test_slots_that_commands_wait_for_are_not_used_for_relocations() -> None:
    instance = Instance(4)
    three = instance.start(3)
    instance.steps(40)
    instance.end(three[1:2])
    instance.fixed = frozenset({1, 3})
    instance.steps(10)
    assert instance.ids() == {0, 2}
    instance.fixed = frozenset()
    instance.steps(10)
    assert len(neighbours(instance.ids())) == 1


@pytest.mark.parametrize("seed", range(20))
def test_slots_agree_with_cells_after_random_starts_and_ends(seed: int) -> None:
    draw = random.Random(seed)
    instance = Instance(copy_s=draw.choice([0.001, 0.02, 1.0]))
    running: list[Sequence] = []
    for _ in range(30):
        if running and draw.random() < 0.5:
            ended = draw.sample(running, draw.randint(1, len(running)))
            instance.end(ended)
            running = [s for s in running if s not in ended]
        elif len(running) < 8:
            running += instance.start(draw.randint(1, 8 - len(running)))
        if running:
            instance.steps(draw.randint(1, 6))


def with_prompts_between(*lengths: int) -> Instance:
    """Return an instance with steps of 64 tokens, where slots 0, 4 and 5 decode, and prompts of `lengths` wait for the
    slots between them.
    """
    instance = Instance(6)
    six = instance.start(6)
    instance.steps(2)
    instance.end(six[1:4])
    for slot in instance.scheduler.slots[1:4]:
        instance.cells.clear(slot)
    instance.scheduler.step_size.size = 64
    for n in lengths:
        instance.scheduler.enqueue(sequence(instance.random_prompt(n), at=instance.now))
    return instance


def test_prompts_between_decoding_slots_get_a_token_in_each_step_of_another_prefill() -> None:
    instance = with_prompts_between(400, 350, 300)
    instance.steps(2)
    computed = [len(slot.tokens) for slot in instance.scheduler.slots[1:4]]
    assert min(computed) == 2
    assert max(computed) > 40
    assert instance.n_evaluations == 2  # one token of each slot, then the other tokens of one prompt


def test_last_run_of_a_prompt_leaves_a_token_for_each_prompt_between_decoding_slots() -> None:
    instance = with_prompts_between(400, 350, 66)
    instance.steps(1)
    assert sorted(len(slot.tokens) for slot in instance.scheduler.slots[1:4]) == [1, 1, 62]
    assert instance.n_evaluations == 2


@pytest.mark.parametrize("fault", ["no memory", "no room"])
def test_sequence_whose_state_cannot_be_loaded_is_copied_instead(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = spread(copy_s=1.0)
    n_loads = 0

    def fail(seq: int, state: bytes, n_tokens: int) -> bool:
        nonlocal n_loads
        n_loads += 1
        if fault == "no memory":
            raise MemoryError
        return False

    monkeypatch.setattr(instance.runner, "seq_load", fail)
    slots = instance.scheduler.relocation(frozenset())
    assert slots is not None
    instance.now += 1
    source, target_id = slots[0], slots[1].id
    instance.cells.relocate(*slots, instance.now)
    assert n_loads == 1
    assert source.id == target_id
    assert instance.scheduler.move_budget.n_copies == 1
    instance.check()
    instance.steps(4)


def test_sequence_that_can_be_neither_loaded_nor_copied_stays_and_all_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = spread()
    tried: list[int] = []

    def fail(seq: int, *rest: object) -> bool:
        tried.append(seq)
        raise InternalError("injected")

    monkeypatch.setattr(instance.runner, "seq_load", fail)
    monkeypatch.setattr(instance.runner, "seq_copy", fail)
    instance.steps(4)
    assert len(tried) == 2  # one load and one copy
    assert instance.n_evaluations == 4
    monkeypatch.undo()
    instance.end(instance.start(1))
    instance.steps(4)
    assert instance.n_evaluations == 1
