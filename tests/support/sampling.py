"""Select how much of a large test matrix a run covers.

`make test` covers a fixed sample and a third of the hypothesis examples. With ``EXHAUSTIVE=1``, as in `make nightly`, a
run covers the whole matrix, and hypothesis searches for new examples.
"""

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

EXHAUSTIVE = os.environ.get("EXHAUSTIVE", "0") not in ("", "0")
EXAMPLES_SHARE = 1 if EXHAUSTIVE else 3
"""`make test` runs one of this many hypothesis examples."""


def sample(cases: Iterable[T], every: int, offset: int = 0) -> list[T]:
    """Return each `every`-th case, starting at ``offset % every``; all cases in an exhaustive run."""
    cases = list(cases)
    return cases if EXHAUSTIVE else cases[offset % every :: every]
