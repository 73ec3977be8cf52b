"""The tokens of a vocabulary that may cross the end of a marker in free text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from server.structured.grammar.matcher import MatcherConstraint
from server.vocab import Vocab


@dataclass(frozen=True, slots=True)
class Markers:
    """``crossing``: tokens that may contain the end of a marker and text after it. ``longest``: of the markers.

    ``with_inside``: returns the tokens with text after that byte.
    """

    vocab: Vocab
    single: Mapping[int, int]
    crossing: tuple[int, ...]
    longest: int
    with_inside: Callable[[int], tuple[int, ...]]

    @property
    def n_mask_bytes(self) -> int:
        """Return the size of a mask: whole 32-bit words."""
        return (self.vocab.n_tokens + 31) // 32 * 4

    def piece(self, token: int, *, shown: bool) -> bytes:
        """Return the text of a token; nothing for a control token that isn't shown."""
        if not 0 <= token < self.vocab.n_tokens:
            return b""
        return self.vocab.piece(token, special=shown)

    def feed(self, constraint: MatcherConstraint, text: bytes) -> bool:
        """Advance by a text, byte by byte. Return False if it is not allowed, or a byte has no token."""
        for byte in text:
            token = self.single.get(byte, -1)
            if token < 0 or not constraint.allows(token):
                return False
            constraint.accept(token)
        return True


class MarkerIndex:
    """Finds the tokens for `Markers`; looks through the vocabulary once for each byte that markers end with."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._single: dict[int, int] = {}
        self._crossing: dict[int, tuple[int, ...]] = {}

    def markers(self, texts: list[bytes]) -> Markers:
        """Return the `Markers` for these texts. Not thread-safe."""
        if not self._single:
            pieces = ((token, self._vocab.piece(token, special=False)) for token in range(self._vocab.n_tokens))
            self._single = {piece[0]: token for token, piece in pieces if len(piece) == 1}
        ends = {text[-1] for text in texts}
        crossing = sorted({token for byte in ends for token in self.with_inside(byte)})
        return Markers(self._vocab, self._single, tuple(crossing), max(map(len, texts), default=0), self.with_inside)

    def with_inside(self, byte: int) -> tuple[int, ...]:
        """Return the tokens with text after that byte."""
        if byte not in self._crossing:
            pieces = ((token, self._vocab.piece(token, special=False)) for token in range(self._vocab.n_tokens))
            self._crossing[byte] = tuple(token for token, piece in pieces if 0 <= piece.find(byte) < len(piece) - 1)
        return self._crossing[byte]
