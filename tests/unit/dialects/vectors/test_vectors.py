"""Norms and base64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from server.dialects.vectors.embeddings import normalized
from server.engine.runner_api import Vectors

ROWS = np.array([[3.0, -4.0], [0.0, 0.0], [0.5, 0.5]], np.float32)


@pytest.mark.parametrize(
    ("norm", "first"),
    [
        (-1, [3.0, -4.0]),
        (0, [24570.0, -32760.0]),
        (1, [3 / 7, -4 / 7]),
        (2, [0.6, -0.8]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)]),
    ],
)
def test_each_row_has_length_one_under_its_norm(norm: int, first: list[float]) -> None:
    found = normalized(ROWS, norm)
    assert np.allclose(found[0], first, rtol=1e-6)
    assert not found[1].any()
    assert found.dtype == np.float32


@given(
    hnp.arrays(np.float32, (3, 5), elements=st.floats(-1e6, 1e6, width=32)),
    st.sampled_from([1, 2, 3, 7, 64]),
)
def test_norms_hold_for_any_rows(rows: Vectors, norm: int) -> None:
    found = normalized(rows, norm).astype(np.float64)
    lengths = (np.abs(found) ** norm).sum(axis=1) ** (1 / norm)
    assert np.allclose(lengths[np.abs(rows).max(axis=1) > 1e-30], 1.0, atol=1e-4)
