"""Tracks one sequence's progress through a grammar, and computes the masks of several sequences in one call.

llguidance computes masks in its own threads, without the GIL.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from typing import NamedTuple, ParamSpec, Self, TypeVar

import llguidance
import numpy as np

from server.errors import InternalError, InvalidRequest
from server.structured.constraint import n_mask_bytes
from server.structured.grammar.limits import MAX_SLOW_S, REFILL_S, SLOW_S
from server.structured.grammar.tokenizer import Tokenizer

# With RUST_BACKTRACE=1, llguidance records a backtrace for each handled error: a schema took 3.3 s instead of 0.6 s.
os.environ.setdefault("RUST_LIB_BACKTRACE", "0")

P = ParamSpec("P")
R = TypeVar("R")
NO_OUTPUT = "no output matches"
_SOURCE_LINE = re.compile(r"\s*\d+ \| ")


def contained(call: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to raise `InternalError` if llguidance panics, so that only one request fails."""

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            # Each Rust library has its own panic class, which is not an `Exception` and can't be imported.
            if type(error).__name__ != "PanicException":
                raise
            raise InternalError(f"the grammar library failed: {str(error)[:400]}") from error

    return guarded


class Recipe(NamedTuple):
    """The origin of a constraint, for another compiler with the same vocabulary (`GrammarCompiler.recreate`)."""

    request: str = ""  # the kind, the client's request and its field, as JSON
    begun: bytes = b""  # the text that the constraint has accepted since


class MatcherConstraint:
    """Implements `Constraint` with an llguidance matcher.

    A matcher that exceeds a limit stays in an error state. Then `allows` returns False for every token, and `mask` and
    `accept` raise `InvalidRequest` with the reason, which fails the request: its output cannot be continued correctly.
    Every method raises `InternalError` if llguidance panics.

    The lexer has fuel for one mask. Only computing a mask refills it, so `allows` computes one after tokens have used
    `REFILL_S`. CPU time above `SLOW_S` in a single call is added up. A sum above `MAX_SLOW_S` is an error.

    ``is_watched``: the next mask must be computed alone, by `mask`, which measures its time.
    """

    __slots__ = ("_param", "_since_mask_s", "_slow_s", "is_watched", "matcher", "recipe", "tokenizer")

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        tokenizer: Tokenizer,
        param: str | None = None,
        recipe: Recipe = Recipe(),  # noqa: B008 - it never changes
    ) -> None:
        self.matcher = matcher
        self.tokenizer = tokenizer
        self._param = param
        self._since_mask_s = self._slow_s = 0.0
        self.is_watched = False
        self.recipe = recipe

    @contained
    def fork(self) -> Self:
        fork = copy(self)
        fork.matcher = self.matcher.deep_copy()
        return fork

    @contained
    def allows(self, token: int) -> bool:
        """Return whether `token` may be next. Takes a few microseconds; False in an error state."""
        if not 0 <= token < self.tokenizer.n_tokens or self._slow_s > MAX_SLOW_S:
            return False
        if self._since_mask_s > REFILL_S:
            with contextlib.suppress(InvalidRequest):  # then validating also fails, and `mask` raises the reason
                self.mask()
        began = time.thread_time()
        is_end = token in self.tokenizer.ends and self.matcher.is_accepting()
        allowed = is_end or self.matcher.validate_tokens([token]) == 1
        self._count(time.thread_time() - began)
        return bool(allowed)

    @contained
    def mask(self) -> bytes:
        """Return a bit per token in little-endian 32-bit words. Raises `InvalidRequest` in an error state."""
        began = time.thread_time()
        bits: bytes = self.matcher.compute_bitmask()
        cpu_s = time.thread_time() - began
        self._count(cpu_s)
        self._since_mask_s, self.is_watched = 0.0, cpu_s > SLOW_S
        if failure := self.failure():
            raise failure
        return bits

    def _count(self, cpu_s: float) -> None:
        self._since_mask_s += cpu_s
        if cpu_s > SLOW_S:
            self._slow_s += cpu_s - SLOW_S

    def masked_by(self) -> "MatcherConstraint | None":
        return self

    @contained
    def accept(self, token: int) -> None:
        """Advance by a token. Raises `InvalidRequest` if it is not allowed, or in an error state."""
        began = time.thread_time()
        taken = self.matcher.consume_token(token)
        self._count(time.thread_time() - began)
        if not taken or self._slow_s > MAX_SLOW_S:
            raise self.failure() or InternalError(f"the matcher rejected token {token} without a reason")

    @property
    @contained
    def finished(self) -> bool:
        return bool(self.matcher.is_stopped()) and not self.matcher.is_error()

    @property
    @contained
    def complete(self) -> bool:
        """Return whether the output may end here. It may also continue."""
        return bool(self.matcher.is_accepting())

    @contained
    def failure(self) -> InvalidRequest | None:
        """Return the error of an error state; None otherwise."""
        if self.matcher.is_error():
            reason = first_line(self.matcher.get_error())
        elif self._slow_s > MAX_SLOW_S:
            reason = f"its masks have taken more than {MAX_SLOW_S:g} s: use simpler patterns and alternatives"
        else:
            return None
        return InvalidRequest(f"the output cannot be kept to the grammar: {reason}", self._param)


def first_line(error: str) -> str:
    """Return llguidance's message without its dumps of the parser's state and of the grammar."""
    if error.startswith("panic"):
        return "the grammar is too large"
    lines: list[str] = []
    for line in error.splitlines():
        if line.startswith(("<state>", "<non-verbose", "<grammar>")) or _SOURCE_LINE.match(line):
            break
        if line.strip(" ^"):
            lines.append(line.strip())
    message = " ".join(lines)[:400]
    if "too many expressions" in message:
        return "its patterns cost too much (too many expressions): use simpler patterns, or smaller counts and lengths"
    return NO_OUTPUT if message in ("", "NoExtensionBias") else message


MAX_THREADS = 8  # a mask takes about 0.1 ms: more threads cost more to wake than they save


class Masks:
    """Computes masks with its own threads. Used by one thread. A call's constraints are distinct, of one vocabulary."""

    def __init__(self) -> None:
        self._executor = llguidance.LLExecutor(min(os.cpu_count() or 1, MAX_THREADS))

    def compute(self, constraints: Sequence[MatcherConstraint]) -> list[memoryview | InvalidRequest]:
        """Return the mask of each constraint, or the error that computing it raises.

        A call that computes several masks does not return the CPU time of each one. So after a slow call, the next mask
        of each of its constraints is computed alone.
        """
        rest = [each for each in constraints if not each.is_watched]
        single = {n: _mask_of(each) for n, each in enumerate(constraints) if each.is_watched}
        batched = iter(self._batch(rest) if rest else ())
        return [single[n] if n in single else next(batched) for n in range(len(constraints))]

    @contained
    def _batch(self, constraints: Sequence[MatcherConstraint]) -> list[memoryview | InvalidRequest]:
        n_bytes = n_mask_bytes(constraints[0].tokenizer.n_tokens)
        rows = np.zeros((len(constraints), n_bytes), np.uint8)
        matchers = [(constraint.matcher, row) for row, constraint in enumerate(constraints)]
        began = time.perf_counter()
        self._executor.unsafe_compute_mask_ptr(matchers, rows.ctypes.data, n_bytes, len(constraints))
        if time.perf_counter() - began > SLOW_S:
            for constraint in constraints:
                constraint.is_watched = True
        return [constraint.failure() or row.data for constraint, row in zip(constraints, rows, strict=True)]


def _mask_of(constraint: MatcherConstraint) -> memoryview | InvalidRequest:
    try:
        return memoryview(constraint.mask())
    except InvalidRequest as error:
        return error
