"""The imagined machine: a runner whose cells have no contents, and a clock that moves by what each call costs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from benchmarks.simulation.cost import CELLS, KV_BYTES, STEP_S, Gpu
from server.engine.runner_api import BatchEntry, Runner, RunnerInfo
from server.engine.schedule.evaluations import evaluations
from server.engine.sequence import Slot


class StateBytes:
    """The state of a sequence: nothing but its size."""

    __slots__ = ("_n",)

    def __init__(self, n_tokens: int) -> None:
        self._n = n_tokens * KV_BYTES

    def __len__(self) -> int:
        return self._n


@dataclass
class Machine:
    """Carries out what `server.engine.kv.cells.Cells` asks of a runner; ``now`` is the time in seconds."""

    info: RunnerInfo
    gpu: Gpu
    now: float = 0.0
    moved_s: float = 0.0  # spent on copies and states, of all
    n_evaluations: int = 0  # of streams
    heads: None = None  # of the model's own, that guess
    _copies_s: float = 0.0

    slots: list[Slot] = field(default_factory=list)  # the scheduler's own: what each sequence holds

    def as_runner(self) -> Runner:
        """For what takes a runner and uses its cells only."""
        return cast(Runner, self)

    def decode(self, entries: Sequence[BatchEntry], prompts: Sequence[BatchEntry]) -> float:
        """The seconds that it takes. `entries` are in the order of their ids. Of those of `prompts` the first token is
        evaluated with what stands beside it, the others by themselves."""
        n_runs = 1 + sum([b.seq - a.seq != 1 for a, b in pairwise(entries)])
        cells = sum([e.pos for e in entries])
        n_prompt = pairs = 0
        for e in prompts:
            n_prompt += len(e.tokens) - 1
            pairs += (len(e.tokens) - 1) * e.pos
        seconds = STEP_S + self.gpu.part_s(n_runs, len(entries), cells, cells)
        if n_prompt:
            n_evaluations = evaluations([(e.seq, len(e.tokens) - 1) for e in prompts], self.info.n_ubatch)
            seconds += self.gpu.part_s(n_evaluations, n_prompt, sum([e.pos for e in prompts]), pairs)
        seconds += self._copies_s
        self.moved_s += self._copies_s
        self._copies_s = 0.0
        self.n_evaluations += n_runs
        self.now += seconds
        return seconds

    def _move(self, seconds: float) -> None:
        self.now += seconds
        self.moved_s += seconds

    def seq_remove(self, seq: int, pos: int) -> bool:
        return True

    def seq_copy(self, source: int, target: int) -> None:
        self._copies_s += self.info.copy_s  # the library copies inside the next decode

    def seq_size(self, seq: int) -> int:
        return len(StateBytes(len(self.slots[seq].tokens)))

    def seq_save(self, seq: int) -> Any:
        n_tokens = len(self.slots[seq].tokens)
        self._move(self.gpu.bus_s(n_tokens))
        return StateBytes(n_tokens)

    def seq_load(self, seq: int, state: Any, n_tokens: int) -> bool:
        assert len(state) == n_tokens * KV_BYTES
        self._move(self.gpu.bus_s(n_tokens))
        return True


def machine(n_slots: int) -> Machine:
    """One card for every 64 slots, each with an equal part of the cells, as ``--no-kv-unified`` has it."""
    cards = max(1, n_slots // 64)
    n_ctx = CELLS * cards // n_slots
    gpu = Gpu(cards)
    return Machine(
        RunnerInfo(
            *(n_slots, n_ctx, n_ctx * n_slots, 2048, 2048, False),
            evaluation_s=gpu.evaluation_s,
            copy_s=gpu.copy_s(n_ctx),
        ),
        gpu,
    )
