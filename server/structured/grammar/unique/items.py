"""`uniqueItems`, which no grammar can express: refuses the tokens that repeat an item, or that leave it no other way.

A second matcher reads the output byte by byte. It finds the prefixes of items that can only become repetitions
(`cursor`), so that a reply never reaches a state from which every continuation is impossible.
"""

import time
from bisect import bisect_left, bisect_right
from functools import cached_property

import llguidance
import numpy as np
from numpy.typing import NDArray

from server.errors import InvalidRequest
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.grammar.panics import contained
from server.structured.grammar.unique.cursor import Cursor
from server.vocab import Vocab

_ENDS = frozenset(b'",]} \t\n\r')  # one of these is in every token that ends an item


class ItemEnds:
    """A vocabulary's tokens that may end an item (``ending``; ``quotes``: also inside a string), and those that may
    open an array and end two of its items (``whole``).
    """

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        pieces = [vocab.piece(token, special=False) for token in range(vocab.n_tokens)]
        self.ending = np.array([t for t, piece in enumerate(pieces) if not _ENDS.isdisjoint(piece)], np.intp)
        self.quotes = np.array([t for t in self.ending if b'"' in pieces[t]], np.intp)
        self.whole = np.array([t for t in self.ending if b"[" in pieces[t] and b"," in pieces[t]], np.intp)

    @cached_property
    def _sorted(self) -> list[int]:
        return sorted(range(self.vocab.n_tokens), key=self._piece)

    def beginning_with(self, text: bytes) -> NDArray[np.intp]:
        """Return the tokens whose text begins with `text`."""
        first = bisect_left(self._sorted, text, key=self._piece)
        after = bisect_right(self._sorted, text, first, key=lambda token: self._piece(token)[: len(text)])
        return np.array(self._sorted[first:after], np.intp)

    def _piece(self, token: int) -> bytes:
        return self.vocab.piece(token, special=False)


class UniqueItems(MatcherConstraint):
    """A matcher's constraint without the tokens that repeat an item.

    ``state``: a matcher of the same grammar over bytes.
    """

    __slots__ = ("_base", "_cursor", "_item_ends", "_state")

    def __init__(
        self, base: MatcherConstraint, cursor: Cursor, item_ends: ItemEnds, state: llguidance.LLMatcher
    ) -> None:
        super().__init__(base.matcher, base._n_tokens, base._ends, base._param, base.recipe)
        self._base, self._cursor, self._item_ends, self._state = base, cursor, item_ends, state

    @contained
    def fork(self) -> "UniqueItems":
        """Return an independent copy in the same state."""
        copy = UniqueItems(self._base.fork(), self._cursor.fork(text=True), self._item_ends, self._state.deep_copy())
        copy._since_mask_s, copy._slow_s = self._since_mask_s, self._slow_s
        return copy

    @contained
    def allows(self, token: int) -> bool:
        """Return whether `token` may be next."""
        return super().allows(token) and self._cursor.may_take(self._piece(token), self._state)

    @contained
    def mask(self) -> bytes:
        """Return a bit per token. Raises `InvalidRequest` when the matcher gave up or only repetitions are left."""
        bits = np.frombuffer(super().mask(), np.uint8).copy()
        began = time.thread_time()
        dead_ends = [self._item_ends.beginning_with(text) for text in self._cursor.dead_ends() if text]
        for token in _set(bits, np.concatenate([self._may_end(), *dead_ends])).tolist():
            if not self._cursor.may_take(self._piece(token), self._state):
                bits[token // 8] &= np.uint8(~(1 << token % 8) & 255)
        self._count(time.thread_time() - began)
        if not bits.any():
            raise InvalidRequest("the output cannot be kept to 'uniqueItems': an item repeats another one", self._param)
        return bits.tobytes()

    def _may_end(self) -> NDArray[np.intp]:
        """Return the tokens that may end an item here."""
        if not self._cursor.is_inside:
            return self._item_ends.whole
        return self._item_ends.quotes if self._cursor.in_string else self._item_ends.ending

    def masked_by(self) -> None:
        """Return nothing: the matcher alone does not determine the mask."""

    @contained
    def accept(self, token: int) -> None:
        """Advance by an allowed token."""
        super().accept(token)
        began = time.thread_time()
        piece = self._piece(token)
        self._cursor.take(piece, self._state)
        for byte in piece:
            self._state.consume_token(byte)
        self._state.compute_bitmask()  # gives the lexer new fuel
        self._count(time.thread_time() - began)

    def _piece(self, token: int) -> bytes:
        vocab = self._item_ends.vocab
        return vocab.piece(token, special=False) if token < vocab.n_tokens else b""


def _set(bits: NDArray[np.uint8], tokens: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the `tokens` whose bit is set."""
    found: NDArray[np.intp] = tokens[(bits[tokens // 8] >> (tokens % 8)) & 1 != 0]
    return found
