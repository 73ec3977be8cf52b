"""Norms and base64."""

import numpy as np
import pytest

from server.dialects.vectors import normalized

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
