"""Compare computed vectors with a tolerance: kernels round differently for each CPU type and batch size.

The tolerance is relative to a vector's length, as no bound on single components holds for every CPU. For example, a
tiny BERT's vectors alone and in a batch differ by 2e-4 in components up to 3 on one CPU, and by less than 1e-5 on
another. Their cosine is 0.9999999 on both.
"""

import numpy as np
import numpy.typing as npt

SPREAD = 1e-3
"""The tolerance as a share of a vector's length. Batch sizes change the library's results by a tenth of it at most;
vectors of different texts differ by hundreds of times as much."""
LOGPROB_SPREAD = 5e-3
"""The absolute tolerance for log probabilities: `SPREAD` of logits of a few units."""


def same_vectors(one: npt.ArrayLike, other: npt.ArrayLike) -> bool:
    """Return whether the distance of each pair of rows is at most `SPREAD` of their length.

    The cosine of such rows is at least 0.9999995. Rows shorter than 1 count as 1.
    """
    a, b = np.atleast_2d(np.asarray(one, np.float64)), np.atleast_2d(np.asarray(other, np.float64))
    if a.shape != b.shape:
        return False
    distances = np.linalg.norm(a - b, axis=-1)
    return bool(np.all(distances <= SPREAD * np.maximum(np.linalg.norm(b, axis=-1), 1.0)))
