"""One sequence's progress through a grammar, and the masks of several sequences in one call: llguidance computes those
in threads of its own, without the GIL.
"""

import os
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import llguidance
import numpy as np

from server.constrain.grammar.panics import contained
from server.errors import InternalError, InvalidRequest

_SOURCE_LINE = re.compile(r"\s*\d+ \| ")


class Recipe(NamedTuple):
    """What a constraint was made of, for a compiler elsewhere over the same vocabulary (`GrammarCompiler.made_anew`).
    ``begun``: the text that it has taken since."""

    kind: Literal["grammar", "json_schema"] = "grammar"
    text: str = ""
    param: str = ""
    begun: bytes = b""


class MatcherConstraint:
    """`server.engine.request.Constraint` over an llguidance matcher.

    A matcher that runs into a limit in the middle of the output stays in error. Then `allows` says False for every
    token, and `mask` and `accept` raise InvalidRequest with the reason, which the engine turns into the request's
    failure: the output cannot be continued truthfully. A panic of the library is an InternalError, of any method.
    """

    __slots__ = ("_ends", "_matcher", "_n_tokens", "_param", "recipe")

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        n_tokens: int,
        ends: frozenset[int],
        param: str | None = None,
        recipe: Recipe = Recipe(),  # noqa: B008 - it never changes
    ) -> None:
        self._matcher = matcher
        self._n_tokens = n_tokens
        self._ends = ends
        self._param = param
        self.recipe = recipe

    @contained
    def fork(self) -> "MatcherConstraint":
        """An independent copy in the same state."""
        return MatcherConstraint(self._matcher.deep_copy(), self._n_tokens, self._ends, self._param, self.recipe)

    @contained
    def allows(self, token: int) -> bool:
        """Whether `token` may come next: a few microseconds, False in an error state."""
        if not 0 <= token < self._n_tokens:
            return False
        if token in self._ends and self._matcher.is_accepting():
            return True
        return bool(self._matcher.validate_tokens([token]) == 1)

    @contained
    def mask(self) -> bytes:
        """A bit per token in little-endian 32-bit words; raises InvalidRequest when the matcher gave up."""
        bits: bytes = self._matcher.compute_bitmask()
        if failure := self.failure():
            raise failure
        return bits

    def masked_by(self) -> "MatcherConstraint | None":
        """Itself, for `server.constrain.grammar.matcher`."""
        return self

    @property
    def matcher(self) -> llguidance.LLMatcher:
        """The native one."""
        return self._matcher

    @property
    def n_mask_bytes(self) -> int:
        """Of a mask: whole 32-bit words."""
        return (self._n_tokens + 31) // 32 * 4

    @contained
    def accept(self, token: int) -> None:
        """Advance; raises InvalidRequest for a token that is not allowed or when the matcher gave up."""
        if not self._matcher.consume_token(token):
            raise self.failure() or InternalError(f"the matcher neither took token {token} nor said why")

    @property
    @contained
    def finished(self) -> bool:
        """True when only an end token may follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    @property
    @contained
    def complete(self) -> bool:
        """True when the output may end here (it may also go on)."""
        return bool(self._matcher.is_accepting())

    @contained
    def failure(self) -> InvalidRequest | None:
        """Why the matcher gave up, if it did."""
        if not self._matcher.is_error():
            return None
        reason = first_line(self._matcher.get_error())
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
    return "no output matches" if message in ("", "NoExtensionBias") else message


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
