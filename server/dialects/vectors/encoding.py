"""Vectors as replies carry them: cut, normalized, and in base64."""

import base64
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from server.engine.media import MediaPrompt
from server.engine.runner_api import Vectors

NONE, MAX_ABSOLUTE, TAXICAB, EUCLIDEAN = -1, 0, 1, 2
MAX_NORM = 1000
_INT16_RANGE = 32760.0


class VectorJob(Protocol):
    """The inputs to compute, and the writer of the response."""

    @property
    def inputs(self) -> Sequence[Sequence[int] | MediaPrompt]:
        """Return the tokens of each input, with its media."""

    def reply(self, found: Sequence[Vectors]) -> bytes:
        """The reply's JSON; blocking, for a thread."""


def normalized(vectors: Vectors, norm: int) -> Vectors:
    """Each row at length 1 under `norm` (llama.cpp common/common.cpp, common_embd_normalize): -1 as it is, 0 the
    largest component at 32760, 1 taxicab, 2 euclidean, p the p-norm. A row of zeros stays one."""
    if norm == NONE:
        return vectors
    rows = vectors.astype(np.float64)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    if norm == MAX_ABSOLUTE:
        length = largest / _INT16_RANGE
    else:  # scaled by the largest value, whose power could overflow
        parts = np.abs(np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0))
        length = largest * (parts**norm).sum(axis=1, keepdims=True) ** (1.0 / norm)
    result: Vectors = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0).astype(np.float32)
    return result


def base64_floats(vector: Vectors) -> str:
    """The numbers as little-endian 32-bit floats, as OpenAI's ``encoding_format: base64``."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
