"""The engine's interface to a constraint, which follows a sequence token by token."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.structured.grammar.matcher import MatcherConstraint


class Constraint(Protocol):
    """What the output must match. Stateful, one per sequence. Implemented in `grammar`."""

    def fork(self) -> "Constraint":
        """Return a fresh copy in the same state, for another choice of the same request."""

    def allows(self, token: int) -> bool:
        """Return whether `token` may be next. Never raises for a token of the vocabulary, except `InternalError` if the
        library fails.
        """

    def mask(self) -> "memoryview | bytes | bytearray":
        """Return a bit per token, little-endian 32-bit words, 1 = allowed; at least `n_mask_bytes`."""

    def masked_by(self) -> "MatcherConstraint | None":
        """Return the constraint whose mask is next, to compute it with others; None if it needs no mask."""

    def accept(self, token: int) -> None:
        """Advance by an allowed token."""

    @property
    def finished(self) -> bool:
        """True when the output is complete and only an end token may follow."""


def n_mask_bytes(n_tokens: int) -> int:
    """Return the bytes of a mask: whole 32-bit words."""
    return (n_tokens + 31) // 32 * 4
