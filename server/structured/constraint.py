"""What the engine steps along with a sequence, so that its output has the shape that was asked for."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.structured.grammar.matcher import MatcherConstraint


class Constraint(Protocol):
    """What the output must match; stateful, one per sequence. Implemented in `grammar`."""

    def fork(self) -> "Constraint":
        """A fresh copy in the same state, for another choice of the same request."""

    def allows(self, token: int) -> bool:
        """Whether `token` may come next. Raises for no token of the vocabulary, but
        `InternalError` when the library behind it has failed."""

    def mask(self) -> "memoryview | bytes | bytearray":
        """A bit per token, little-endian 32-bit words, 1 = allowed; at least ceil(n_vocab / 32) words."""

    def masked_by(self) -> "MatcherConstraint | None":
        """Whose mask `mask` gives now, so that it can be computed with others'; None where it is made otherwise."""

    def accept(self, token: int) -> None:
        """Advance by an allowed token."""

    @property
    def finished(self) -> bool:
        """True when the output is complete and only an end token may follow."""
