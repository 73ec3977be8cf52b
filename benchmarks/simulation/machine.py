"""The simulated machine: a runner with empty cells, and a clock that each call advances by its cost.

Costs follow a roofline model of 8 billion parameters on an H200. Sources:

- GPU: NVIDIA's data sheet of the H200 SXM (141 GB, 4.8 TB/s, 989 TFLOP/s dense in 16 bits).
- Model: the published dimensions of Llama 3.1 8B (32 layers, 8 KV heads of 128: 128 KiB of keys and values per token in
  16 bits; 32 attention heads of 128).
- Efficiency: 0.75 of the bandwidth and 0.5 of the arithmetic. Published measurements show 75 tok/s of one stream with
  vLLM and this model on an A100 40 GB, which is 0.77 of its roofline, and 0.5 to 0.75 of an H100's with
  FlashAttention-2 and -3.
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
ATTENTION_FLOPS = 4 * 32 * 32 * 128  # per pair of a token and an earlier one: products with keys and values
BANDWIDTH = 4.8e12 * 0.75
FLOPS = 989e12 * 0.5
SAVE = 1.8e9
"""Bytes per second from the cells: writing new pageable memory, measured on a two-core Intel machine."""
LOAD = 6.8e9
"""Bytes per second into the cells: reading warm memory, measured on the same machine."""
PINNED = 64e9 * 0.75
"""Bytes per second of pinned memory over PCIe 5 x16, according to the data sheet."""
STEP_S = 3.5e-3  # sampling and the engine, measured: 3 to 4 ms
LAUNCH_S = 0.5e-3  # kernel launches of an evaluation
PARALLEL = 0.8  # efficiency of a model on several GPUs
CELLS = 64 * 15_360  # of one GPU: 141 GB without 16 GB of weights and some scratch memory


@dataclass(frozen=True, slots=True)
class Gpu:
    """One or more GPUs with one model. ``save``, ``load``: bytes per second of offloaded and loaded states."""

    cards: int = 1
    save: float = SAVE
    load: float = LOAD

    @property
    def _speed(self) -> float:
        return self.cards * (PARALLEL if self.cards > 1 else 1.0)

    def part_s(self, n_evaluations: int, tokens: int, cells: int, pairs: int) -> float:
        """Return the seconds of `n_evaluations`, each of which reads all weights.

        ``tokens`` is their number in all evaluations, ``cells`` those of their sequences, and ``pairs`` the number of
        pairs of a token and an earlier cell.
        """
        memory_s = (2 * PARAMETERS * n_evaluations + KV_BYTES * cells) / BANDWIDTH
        compute_s = (2 * PARAMETERS * tokens + ATTENTION_FLOPS * pairs) / FLOPS
        return n_evaluations * LAUNCH_S + max(memory_s, compute_s) / self._speed

    @property
    def evaluation_s(self) -> float:
        """Seconds of an additional evaluation that only reads weights."""
        return self.part_s(1, 0, 0, 0)

    def copy_s(self, n_cells: int) -> float:
        """Return the seconds to copy a KV stream of `n_cells` within the GPU, used or not."""
        return 2 * KV_BYTES * n_cells / BANDWIDTH / self._speed

    def state_s(self, n_tokens: int, rate: float) -> float:
        """Return the seconds to offload or load the state of a sequence at `rate` bytes per second."""
        return KV_BYTES * n_tokens / rate / self.cards


@dataclass
class Machine:
    """Implements the runner methods that `server.engine.kv_store.Cells` calls. ``now``: seconds."""

    info: RunnerInfo
    gpu: Gpu
    now: float = 0.0
    moved_s: float = 0.0  # seconds of copies, offloads and loads
    n_evaluations: int = 0  # of decoding sequences
    n_saves: int = 0  # offloaded states
    n_loads: int = 0  # loaded states
    heads: None = None  # no MTP heads
    _copies_s: float = 0.0

    slots: list[Slot] = field(default_factory=list)  # those of the scheduler

    def as_runner(self) -> Runner:
        """Return the machine as a `Runner`, for code that only uses its cells."""
        return cast(Runner, self)

    def decode(self, entries: Sequence[BatchEntry], prompts: Sequence[BatchEntry]) -> float:
        """Advance the clock by a decode and return its seconds. `entries` are sorted by sequence id.

        The first token of each of `prompts` is evaluated with the adjacent sequences, the others separately.
        """
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
        return range(KV_BYTES * n_tokens)  # only its length matters

    def seq_load(self, seq: int, state: Any, n_tokens: int) -> bool:
        assert len(state) == n_tokens * KV_BYTES
        self._move(self.gpu.state_s(n_tokens, self.gpu.load))
        self.n_loads += 1
        return True


def machine(n_slots: int, *, is_pinned: bool = False) -> Machine:
    """Return a machine with one GPU per 64 slots. Slots have equal shares of the cells, as with ``--no-kv-unified``.

    ``is_pinned``: states are moved over the bus at full speed, which needs pinned memory.
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
