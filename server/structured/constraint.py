"""The engine's interface to a constraint, which follows a sequence token by token."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # importing llguidance takes time
    from server.structured.grammar.matcher import MatcherConstraint


class Constraint(Protocol):
    """Decides which tokens may be next. Stateful, one per sequence. Implemented in `grammar`."""

    def fork(self) -> "Constraint":
        """Return a fresh copy in the same state, for another choice of the same request."""

    def allows(self, token: int) -> bool:
        """Return whether `token` may be next. Only raises `InternalError`, if llguidance fails."""

    def mask(self) -> "memoryview | bytes | bytearray":
        """Return a bit per token in little-endian 32-bit words, 1 = allowed; at least `n_mask_bytes`."""

    def masked_by(self) -> "MatcherConstraint | None":
        """Return the constraint that computes the mask, so that several are computed together. None: alone."""

    def accept(self, token: int) -> None:
        """Advance by an allowed token."""

    @property
    def finished(self) -> bool:
        """Return whether the output is complete, so that only an end token may follow."""


def n_mask_bytes(n_tokens: int) -> int:
    """Return the size of a mask in bytes, of whole 32-bit words."""
    return (n_tokens + 31) // 32 * 4
