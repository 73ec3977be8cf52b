"""One sequence's progress through a grammar, and the masks of several sequences in one call: llguidance computes those
in threads of its own, without the GIL.
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

# With RUST_BACKTRACE=1 llguidance records a stack for each error that it handles: a schema took 3.3 s instead of 0.6.
os.environ.setdefault("RUST_LIB_BACKTRACE", "0")

P = ParamSpec("P")
R = TypeVar("R")
_SOURCE_LINE = re.compile(r"\s*\d+ \| ")


def contained(call: Callable[P, R]) -> Callable[P, R]:
    """`call`, raising `InternalError` where llguidance panics: what it was called for is lost, and nothing else."""

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            # Each Rust library has a class of its own for panics, which is no `Exception`, and which can't be imported.
            if type(error).__name__ != "PanicException":
                raise
            raise InternalError(f"the grammar library failed: {str(error)[:400]}") from error

    return guarded


class Recipe(NamedTuple):
    """What a constraint was made of, for a compiler elsewhere over the same vocabulary (`GrammarCompiler.recreate`)."""

    request: str = ""  # its kind, the client's request and its field, as JSON
    begun: bytes = b""  # the text that it has taken since


class MatcherConstraint:
    """`server.engine.request.Constraint` over an llguidance matcher.

    A matcher that runs into a limit in the middle of the output stays in error. Then `allows` says False for every
    token, and `mask` and `accept` raise InvalidRequest with the reason, which the engine turns into the request's
    failure: the output cannot be continued truthfully. A panic of the library is an InternalError, of any method.

    The lexer has fuel for one mask; only a mask refills it, so `allows` computes one when tokens alone have used some
    (`REFILL_S`). CPU time above `SLOW_S` for a single call is added up, and ends the output beyond `MAX_SLOW_S`.

    ``is_watched``: the next mask is to be computed by `mask`, which measures it. ``tokenizer``: of ``matcher``.
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
        made = copy(self)
        made.matcher = self.matcher.deep_copy()
        return made

    @contained
    def allows(self, token: int) -> bool:
        """Return whether `token` may be next. Takes a few microseconds; False in an error state."""
        if not 0 <= token < self.tokenizer.n_tokens or self._slow_s > MAX_SLOW_S:
            return False
        if self._since_mask_s > REFILL_S:
            with contextlib.suppress(InvalidRequest):  # validating fails, too, and `mask` says why
                self.mask()
        began = time.thread_time()
        is_end = token in self.tokenizer.ends and self.matcher.is_accepting()
        allowed = is_end or self.matcher.validate_tokens([token]) == 1
        self._count(time.thread_time() - began)
        return bool(allowed)

    @contained
    def mask(self) -> bytes:
        """Return a bit per token in little-endian 32-bit words; raises InvalidRequest when the matcher gave up."""
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
        """Advance; raises InvalidRequest for a token that is not allowed or when the matcher gave up."""
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
        """True when the output may end here (it may also continue)."""
        return bool(self.matcher.is_accepting())

    @contained
    def failure(self) -> InvalidRequest | None:
        """Return why the matcher gave up, if it did."""
        if self.matcher.is_error():
            reason = first_line(self.matcher.get_error())
        elif self._slow_s > MAX_SLOW_S:
            reason = f"its masks have taken more than {MAX_SLOW_S:g} s: use simpler patterns and alternatives"
        else:
            return None
        return InvalidRequest(f"the output cannot be kept to the grammar: {reason}", self._param)


def first_line(error: str) -> str:
    """llguidance's message without its dumps of the parser's state and of the grammar."""
    if error.startswith("panic"):
        return "the grammar is too large"
    kept: list[str] = []
    for line in error.splitlines():
        if line.startswith(("<state>", "<non-verbose", "<grammar>")) or _SOURCE_LINE.match(line):
            break
        if line.strip(" ^"):
            kept.append(line.strip())
    message = " ".join(kept)[:400]
    if "too many expressions" in message:
        return "its patterns cost too much (too many expressions): use simpler patterns, or smaller counts and lengths"
    return "no output matches" if message in ("", "NoExtensionBias") else message


MAX_THREADS = 8  # a mask takes about 0.1 ms: more threads cost more to wake than they save


class Masks:
    """Owns the threads; used by one thread. The constraints of a call are for one vocabulary, each is there once."""

    def __init__(self) -> None:
        self._executor = llguidance.LLExecutor(min(os.cpu_count() or 1, MAX_THREADS))

    def compute(self, constraints: Sequence[MatcherConstraint]) -> list[memoryview | InvalidRequest]:
        """Compute the mask of each constraint, or the error that it would raise.

        The CPU time of one mask is not known when several are computed in a call. So after a slow call each of its
        constraints computes the next mask by itself.
        """
        rest = [each for each in constraints if not each.is_watched]
        alone = {n: _mask_of(each) for n, each in enumerate(constraints) if each.is_watched}
        together = iter(self._together(rest) if rest else ())
        return [alone[n] if n in alone else next(together) for n in range(len(constraints))]

    @contained
    def _together(self, constraints: Sequence[MatcherConstraint]) -> list[memoryview | InvalidRequest]:
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
