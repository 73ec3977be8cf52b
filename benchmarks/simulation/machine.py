"""The imagined machine: a runner whose cells have no contents, and a clock that moves by what each call costs.

How long a GPU takes: a roofline of a model of 8 billion parameters on an H200-like card.
Sources. Card: NVIDIA's data sheet of the H200 SXM (141 GB, 4.8 TB/s, 989 TFLOP/s dense in 16 bits). Model: Llama 3.1
8B's published shape (32 layers, 8 KV heads of 128: 128 KiB of keys and values per token in 16 bits; 32 heads of 128
for attention's products). Shares reached: 0.75 of the bandwidth and 0.5 of the arithmetic, as
published measurements of vLLM with this model (75 tok/s alone on an A100 40 GB are 0.77 of its roof) and of
FlashAttention-2 and -3 (0.5 to 0.75 of an H100's roof) show.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from server.engine.runner_api import BatchEntry, Runner, RunnerInfo
from server.engine.sequence import Slot
from tests.support.fakes import evaluations

PARAMETERS = 8.03e9
KV_BYTES = 2 * 32 * 8 * 128 * 2  # per token: keys and values, layers, heads, width, bytes
ATTENTION_FLOPS = 4 * 32 * 32 * 128  # per pair of a token and one before it: products with keys and with values
BANDWIDTH = 4.8e12 * 0.75
FLOPS = 989e12 * 0.5
SAVE = 1.8e9
"""Bytes per second out of the cells: writing fresh pageable memory, measured on a two-core Intel machine."""
LOAD = 6.8e9
"""Bytes per second into the cells: reading warm memory, measured on the same machine."""
PINNED = 64e9 * 0.75
"""Bytes per second of pinned memory over PCIe 5 x16, by the data sheet."""
STEP_S = 3.5e-3  # sampling and the engine's own work; measured: 3 to 4 ms
LAUNCH_S = 0.5e-3  # of an evaluation's kernels
PARALLEL = 0.8  # of the ideal, when one model is spread over several cards
CELLS = 64 * 15_360  # of one card: 141 GB less 16 GB of weights and some scratch


@dataclass(frozen=True, slots=True)
class Gpu:
    """``cards`` cards that hold one model together. ``save``, ``load``: bytes per second of moved states."""

    cards: int = 1
    save: float = SAVE
    load: float = LOAD

    @property
    def _speed(self) -> float:
        return self.cards * (PARALLEL if self.cards > 1 else 1.0)

    def part_s(self, n_evaluations: int, tokens: int, cells: int, pairs: int) -> float:
        """Seconds of evaluations of so many tokens in all, of sequences with so many cells; `pairs`: of a token and a
        cell before it. Each evaluation reads all weights."""
        memory_s = (2 * PARAMETERS * n_evaluations + KV_BYTES * cells) / BANDWIDTH
        compute_s = (2 * PARAMETERS * tokens + ATTENTION_FLOPS * pairs) / FLOPS
        return n_evaluations * LAUNCH_S + max(memory_s, compute_s) / self._speed

    @property
    def evaluation_s(self) -> float:
        """What one more evaluation takes that reads nothing but weights."""
        return self.part_s(1, 0, 0, 0)

    def copy_s(self, n_cells: int) -> float:
        """Copying a stream of so many cells within the card, whatever is in them: read and written."""
        return 2 * KV_BYTES * n_cells / BANDWIDTH / self._speed

    def state_s(self, n_tokens: int, rate: float) -> float:
        """Return the seconds to move the state of a sequence out of the cells or back, at `rate` bytes per second."""
        return KV_BYTES * n_tokens / rate / self.cards


@dataclass
class Machine:
    """Carries out what `server.engine.cache.kv_store.Cells` asks of a runner; ``now`` is the time in seconds."""

    info: RunnerInfo
    gpu: Gpu
    now: float = 0.0
    moved_s: float = 0.0  # spent on copies and states, of all
    n_evaluations: int = 0  # of streams
    n_saves: int = 0  # states out of the cells
    n_loads: int = 0  # and back
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
        return KV_BYTES * len(self.slots[seq].tokens)

    def seq_save(self, seq: int) -> Any:
        n_tokens = len(self.slots[seq].tokens)
        self._move(self.gpu.state_s(n_tokens, self.gpu.save))
        self.n_saves += 1
        return range(KV_BYTES * n_tokens)  # nothing but a length

    def seq_load(self, seq: int, state: Any, n_tokens: int) -> bool:
        assert len(state) == n_tokens * KV_BYTES
        self._move(self.gpu.state_s(n_tokens, self.gpu.load))
        self.n_loads += 1
        return True


def machine(n_slots: int, *, is_pinned: bool = False) -> Machine:
    """Return one card for every 64 slots, each with an equal part of the cells, as ``--no-kv-unified`` has it.

    `is_pinned`: states move over the bus at full speed, which needs pinned memory.
    """
    cards = max(1, n_slots // 64)
    n_ctx = CELLS * cards // n_slots
    gpu = Gpu(cards, PINNED, PINNED) if is_pinned else Gpu(cards)
    return Machine(
        RunnerInfo(
            *(n_slots, n_ctx, n_ctx * n_slots, 2048, 2048, False),
            evaluation_s=gpu.evaluation_s,
            copy_s=gpu.copy_s(n_ctx),
        ),
        gpu,
    )
