"""The masks of several sequences in one call: llguidance computes them in threads of its own, without the GIL."""

import os
from collections.abc import Sequence

import llguidance
import numpy as np

from server.constrain.grammar.matcher import MatcherConstraint
from server.constrain.grammar.panics import contained
from server.errors import InvalidRequest

MAX_THREADS = 8  # a mask takes about 0.1 ms: more threads cost more to wake than they save


class Masks:
    """Owns the threads; used by one thread. The constraints of a call are for one vocabulary, each is there once."""

    def __init__(self) -> None:
        self._executor = llguidance.LLExecutor(min(os.cpu_count() or 1, MAX_THREADS))

    @contained
    def compute(self, constraints: Sequence[MatcherConstraint]) -> list[memoryview | InvalidRequest]:
        """For each what its `mask` would give, or the error that it would raise."""
        n_bytes = constraints[0].n_mask_bytes
        rows = np.zeros((len(constraints), n_bytes), np.uint8)
        matchers = [(constraint.matcher, row) for row, constraint in enumerate(constraints)]
        self._executor.unsafe_compute_mask_ptr(matchers, rows.ctypes.data, n_bytes, len(constraints))
        return [constraint.failure() or row.data for constraint, row in zip(constraints, rows, strict=True)]
