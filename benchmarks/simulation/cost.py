"""How long a GPU takes: a roofline of a model of 8 billion parameters on an H200-like card.

Sources. Card: NVIDIA's data sheet of the H200 SXM (141 GB, 4.8 TB/s, 989 TFLOP/s dense in 16 bits; PCIe 5 x16, 64
GB/s). Model: Llama 3.1 8B's published shape (32 layers, 8 KV heads of 128: 128 KiB of keys and values per token in 16
bits; 32 heads of 128 for attention's products). Shares reached: 0.75 of the bandwidth and 0.5 of the arithmetic, as
published measurements of vLLM with this model (75 tok/s alone on an A100 40 GB are 0.77 of its roof) and of
FlashAttention-2 and -3 (0.5 to 0.75 of an H100's roof) show.
"""

from dataclasses import dataclass

PARAMETERS = 8.03e9
KV_BYTES = 2 * 32 * 8 * 128 * 2  # per token: keys and values, layers, heads, width, bytes
ATTENTION_FLOPS = 4 * 32 * 32 * 128  # per pair of a token and one before it: products with keys and with values
BANDWIDTH = 4.8e12 * 0.75
FLOPS = 989e12 * 0.5
BUS = 64e9 * 0.75
STEP_S = 1.0e-3  # sampling and the engine's own work
LAUNCH_S = 0.5e-3  # of an evaluation's kernels
PARALLEL = 0.8  # of the ideal, when one model is spread over several cards
CELLS = 64 * 15_360  # of one card: 141 GB less 16 GB of weights and some scratch


@dataclass(frozen=True, slots=True)
class Gpu:
    """``cards`` cards that hold one model together."""

    cards: int = 1

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

    def bus_s(self, n_tokens: int) -> float:
        """Bringing the cells of a sequence to RAM, or back."""
        return KV_BYTES * n_tokens / BUS / self.cards
