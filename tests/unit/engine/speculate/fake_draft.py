"""A draft model for `FakeRunner` with a given error rate, and a clock that advances by the cost of decodes."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from server.engine.runner_api import BatchEntry
from tests.support.fakes import FakeRunner, evaluations

N_UBATCH = 512


class FakeDraft:
    """Drafts the tokens that `of` generates greedily, except `wrong` percent of them; the probability is always 0.9.
    Asserts that batches agree with its cells.

    ``on_decode`` is called with each batch first and may raise. ``n_cells``: cells of all sequences, as with unified
    KV.
    """

    def __init__(
        self,
        of: FakeRunner,
        *,
        wrong: int = 0,
        n_cells: int = 1 << 30,
        on_decode: Callable[[Sequence[BatchEntry]], None] | None = None,
    ) -> None:
        self.info = replace(of.info, n_batch=64)
        self.batches: list[list[int]] = []  # tokens of each sequence of each decode
        self.cells: dict[int, list[int]] = {s: [] for s in range(of.info.n_seq)}
        self._of = of
        self._wrong = wrong
        self._n_cells = n_cells
        self._on_decode = on_decode
        self._outputs: list[list[int]] = []

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        assert not self._of.closed
        if self._on_decode is not None:
            self._on_decode(entries)
        assert len({entry.seq for entry in entries}) == len(entries)
        assert 0 < sum(len(e.tokens) for e in entries) <= self.info.n_batch
        if sum(map(len, self.cells.values())) + sum(len(e.tokens) for e in entries) > self._n_cells:
            return False
        self._outputs = []
        for entry in entries:
            cells = self.cells[entry.seq]
            assert entry.pos == len(cells), f"position {entry.pos} of a sequence of {len(cells)}"
            cells.extend(entry.tokens)
            assert len(cells) <= self.info.n_ctx_seq
            if entry.n_outputs:
                self._outputs.append(list(cells))
        self.batches.append([len(e.tokens) for e in entries])
        return True

    def best(self, output: int) -> tuple[int, float]:
        tokens = self._outputs[output]
        history = self._of.vocab.detokenize(tokens)
        right = self._of._next(history)
        return (right if zlib.crc32(history[::-1]) % 100 >= self._wrong else ord("?")), 0.9

    def seq_remove(self, seq: int, pos: int) -> bool:
        del self.cells[seq][pos:]
        return True

    def seq_copy(self, source: int, target: int) -> None:
        assert not self.cells[target], "the target of a copy must be empty"
        self.cells[target] = list(self.cells[source])


class Machine:
    """A clock that advances by the cost of decodes: the milliseconds of each evaluation, and of each token.

    With ``unified`` KV a decode is one evaluation.
    """

    def __init__(
        self,
        step_ms: tuple[float, float] = (10.0, 1.0),
        draft_ms: tuple[float, float] = (0.5, 0.1),
        *,
        unified: bool = False,
    ) -> None:
        self._now = 0.0
        self._step_ms = step_ms
        self._draft_ms = draft_ms
        self._unified = unified

    def __call__(self) -> float:
        return self._now

    def step(self, entries: Sequence[BatchEntry]) -> None:
        """Advance by a decode of the model."""
        runs = [(entry.seq, len(entry.tokens)) for entry in entries]
        self._spend(self._step_ms, entries, 1 if self._unified else evaluations(runs, N_UBATCH))

    def draft(self, entries: Sequence[BatchEntry]) -> None:
        """Advance by a decode of the draft model."""
        self._spend(self._draft_ms, entries, 1)

    def wait(self, seconds: float) -> None:
        self._now += seconds

    def _spend(self, ms: tuple[float, float], entries: Sequence[BatchEntry], n_evaluations: int) -> None:
        self._now += (ms[0] * n_evaluations + ms[1] * sum(len(entry.tokens) for entry in entries)) / 1e3


def runner_with_draft(machine: Machine, wrong: int = 0, **options: object) -> FakeRunner:
    runner = FakeRunner(on_decode=machine.step, **options)  # type: ignore[arg-type]
    runner.draft = FakeDraft(runner, wrong=wrong, on_decode=machine.draft)
    return runner
