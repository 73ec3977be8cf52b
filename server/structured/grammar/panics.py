"""Converts panics of llguidance, which is written in Rust, to errors of this project.

pyo3 raises them as a ``PanicException``, which is no `Exception`: uncaught, one would end the step thread.
"""

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from server.errors import InternalError

# With RUST_BACKTRACE=1 llguidance records a stack for each error that it handles: a schema took 3.3 s instead of 0.6.
os.environ.setdefault("RUST_LIB_BACKTRACE", "0")

P = ParamSpec("P")
R = TypeVar("R")


def is_panic(error: BaseException) -> bool:
    """Return whether a Rust library panicked. Each library has an exception of its own, which cannot be imported."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


def contained(call: Callable[P, R]) -> Callable[P, R]:
    """`call`, raising `InternalError` where the library panics: what it was called for is lost, and nothing else."""

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise InternalError(f"the grammar library failed: {str(error)[:400]}") from error

    return guarded
