"""Whatever sequences went through before, a decode computes what a context that read only one of them computes."""

import random
from pathlib import Path

import numpy as np
import pytest

from server.llama.context.runner import LlamaRunner
from tests.model.native_fixtures import Entry, open_runner, raw_logits
from tests.support.ggufs import MODELS, gguf_file

N_SEQ, N_CTX, MICRO_BATCH = 4, 1024, 64
N_STEPS = 40
ALIKE = 5e-3  # difference of logits; the smallest that a lost token makes is ten times as large
F32 = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}


class Random:
    """Random decodes, cuts, copies and clears of four sequences, with a record of what each must hold."""

    def __init__(self, runner: LlamaRunner, seed: int) -> None:
        self.runner = runner
        self.held: list[list[int]] = [[] for _ in range(N_SEQ)]
        self._random = random.Random(seed)
        self._text = self._random.choices(range(256, 380), k=N_CTX)

    def disturb(self) -> None:
        """Cut, copy or clear something."""
        seq, other = self._random.sample(range(N_SEQ), 2)
        what = self._random.choice(["cut", "copy", "clear"])
        if what == "copy" and self.held[seq]:
            self._clear(other)
            self.runner.seq_copy(seq, other)
            self.held[other] = list(self.held[seq])
        if what == "clear":
            self._clear(seq)
        elif self.held[other]:
            self._cut(other, self._random.randrange(len(self.held[other]) + 1))

    def decode(self) -> list[tuple[list[int], list[float]]]:
        """One batch for some of the sequences: what each holds then, with its logits."""
        entries, left = [], self.runner.info.n_batch
        for seq in self._random.sample(range(N_SEQ), self._random.randrange(1, N_SEQ + 1)):
            at = len(self.held[seq])
            n = min(self._random.choice([1, 1, 5, 30, 200]), left, N_CTX - 1 - at)
            if n > 0:
                entries.append(Entry(seq, at, self._next(at, n)))
                left -= n
        if not entries or not self.runner.decode(entries):
            return []
        for entry in entries:
            self.held[entry.seq] += entry.tokens
        return [(self.held[entry.seq], raw_logits(self.runner, i)) for i, entry in enumerate(entries)]

    def _next(self, at: int, n: int) -> list[int]:
        common = self._random.random() < 0.7
        return self._text[at : at + n] if common else self._random.choices(range(256, 380), k=n)

    def _cut(self, seq: int, n: int) -> None:
        if self.runner.seq_remove(seq, n):
            del self.held[seq][n:]
        else:
            self._clear(seq)

    def _clear(self, seq: int) -> None:
        self.runner.seq_remove(seq, 0)
        self.held[seq] = []


@pytest.mark.parametrize(
    ("kind", "unified"), [("experts", True), ("hybrid", False), ("sliding-window", True), ("sliding-window", False)]
)
def test_a_decode_is_not_changed_by_what_went_before(gguf_folder: Path, kind: str, unified: bool) -> None:
    """With batches larger than a micro-batch; a small window's cache once lost tokens of the first for the second."""
    path = gguf_file(gguf_folder, MODELS[kind])
    many = {"n_parallel": N_SEQ, "n_ctx": N_SEQ * N_CTX, "kv_unified": unified, "n_batch": 512, "n_ubatch": MICRO_BATCH}
    with open_runner(path, **many, **F32) as runner, open_runner(path, n_parallel=1, swa_full=True, **F32) as alone:
        sequences = Random(runner, seed=1)
        worst = 0.0
        for step in range(N_STEPS):
            sequences.disturb()
            for tokens, logits in sequences.decode()[step % N_SEQ :][:1]:
                alone.seq_remove(0, 0)
                assert alone.decode([Entry(0, 0, tokens)])
                worst = max(worst, float(np.abs(np.array(logits) - raw_logits(alone)).max()))
    assert worst < ALIKE
