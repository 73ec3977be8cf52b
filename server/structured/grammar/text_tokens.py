"""Indexes of a vocabulary's tokens by their text, for constraints that follow the text byte by byte."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from server.structured.constraint import n_mask_bytes
from server.structured.grammar.matcher import MatcherConstraint
from server.vocab import Vocab

_QUOTE, _BACKSLASH, _SPACE = b'"'[0], b"\\"[0], b" "[0]


@dataclass(frozen=True, slots=True)
class Markers:
    """An index for some markers.

    ``crossing``: tokens that may contain the end of a marker and text after it. ``longest``: bytes of the longest one.
    """

    tokens: "TextTokens"
    crossing: tuple[int, ...]
    longest: int


class TextTokens:
    """Indexes of one vocabulary, each built from all tokens at its first use. Thread-safe.

    ``quotes``: tokens that may end a string. ``items``: tokens that may open an array and end one of its items.
    ``plain``: a mask of the tokens without characters to escape in JSON. ``text``: a mask of the tokens with a text.
    ``escapes``: tokens that start with a backslash.
    """

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self.n_mask_bytes = n_mask_bytes(vocab.n_tokens)
        self._with_inside: dict[int, tuple[int, ...]] = {}
        self._containing: dict[int, list[int]] = {}

    def build(self, *names: str) -> None:
        """Build these indexes now, instead of on the step thread at their first use."""
        for name in names:
            getattr(self, name)

    @cached_property
    def pieces(self) -> list[bytes]:
        """Return the text of each token; empty for control tokens."""
        return [self.vocab.piece(token, special=False) for token in range(self.vocab.n_tokens)]

    def piece(self, token: int, *, shown: bool = False) -> bytes:
        """Return the text of a token; empty for a control token unless `shown`."""
        return self.vocab.piece(token, special=shown) if 0 <= token < self.vocab.n_tokens else b""

    @cached_property
    def single(self) -> dict[int, int]:
        """Return the token of each byte that has one."""
        return {piece[0]: token for token, piece in enumerate(self.pieces) if len(piece) == 1}

    def feed(self, constraint: MatcherConstraint, text: bytes) -> bool:
        """Advance by a text, byte by byte. Return False if it is not allowed, or a byte has no token."""
        for byte in text:
            token = self.single.get(byte, -1)
            if token < 0 or not constraint.allows(token):
                return False
            constraint.accept(token)
        return True

    def markers(self, texts: Sequence[bytes]) -> Markers:
        """Return the tokens that may cross the end of one of these texts."""
        crossing = {token for byte in {text[-1] for text in texts if text} for token in self.with_inside(byte)}
        return Markers(self, tuple(sorted(crossing)), max(map(len, texts), default=0))

    def with_inside(self, byte: int) -> tuple[int, ...]:
        """Return the tokens that contain the byte before their last position."""
        if byte not in self._with_inside:
            found = (token for token, piece in enumerate(self.pieces) if 0 <= piece.find(byte) < len(piece) - 1)
            self._with_inside[byte] = tuple(found)
        return self._with_inside[byte]

    def containing(self, byte: int) -> list[int]:
        if byte not in self._containing:
            self._containing[byte] = [token for token, piece in enumerate(self.pieces) if byte in piece]
        return self._containing[byte]

    @cached_property
    def quotes(self) -> NDArray[np.intp]:
        return np.array([t for t, piece in enumerate(self.pieces) if b'"' in piece], np.intp)

    @cached_property
    def items(self) -> NDArray[np.intp]:
        return np.array([t for t, piece in enumerate(self.pieces) if b"[" in piece and b"," in piece], np.intp)

    @cached_property
    def plain(self) -> NDArray[np.uint8]:
        return self._mask(t for t, piece in enumerate(self.pieces) if piece and is_plain(piece))

    @cached_property
    def text(self) -> NDArray[np.uint8]:
        return self._mask(t for t, piece in enumerate(self.pieces) if piece)

    @cached_property
    def escapes(self) -> list[int]:
        return [t for t, piece in enumerate(self.pieces) if piece[:1] == b"\\"]

    def _mask(self, tokens: Iterable[int]) -> NDArray[np.uint8]:
        bits = np.zeros(self.n_mask_bytes * 8, np.uint8)
        bits[list(tokens)] = 1
        return np.packbits(bits, bitorder="little")


def is_plain(piece: bytes) -> bool:
    """Return whether a piece of a JSON string decodes to itself."""
    return not any(byte < _SPACE or byte in (_QUOTE, _BACKSLASH) for byte in piece)
