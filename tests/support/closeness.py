"""When two computed vectors are the same: kernels of another processor, or of another batch size, round otherwise.

A bound on single numbers does not hold from one processor to the next: a tiny BERT's vectors, alone and in a batch,
differ by 2e-4 in numbers up to 3 on one make and by less than 1e-5 on another, while their cosine stays 0.9999999.
"""

import numpy as np
import numpy.typing as npt

SPREAD = 1e-3
"""Of a vector's length. The library's own results differ by a tenth of it at most between batch sizes; two texts' by
hundreds of times as much."""
LOGPROB_SPREAD = 5e-3
"""The same for a log probability, as an absolute difference: logits of a few units, of which `SPREAD` is allowed."""


def same_vectors(one: npt.ArrayLike, other: npt.ArrayLike) -> bool:
    """Whether they are computed from the same: each row at most `SPREAD` of its length away from the other's, so that
    their cosine is 0.9999995 and their lengths are the same up to a thousandth. Rows shorter than 1 count as 1."""
    a, b = np.atleast_2d(np.asarray(one, np.float64)), np.atleast_2d(np.asarray(other, np.float64))
    if a.shape != b.shape:
        return False
    away = np.linalg.norm(a - b, axis=-1)
    return bool(np.all(away <= SPREAD * np.maximum(np.linalg.norm(b, axis=-1), 1.0)))
