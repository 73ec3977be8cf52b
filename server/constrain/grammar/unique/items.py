"""`uniqueItems`, which no grammar can say: an item that would repeat another is kept from ending.

Where the items' schema names their values (`enum`, `const`, booleans), only those that are not there yet may be begun.
Elsewhere a repetition is noticed when the item would end; an item that then has no other way to go on ends the output
with an error, for the output can't be taken back.
"""

import numpy as np
from numpy.typing import NDArray

from server.constrain.grammar.matcher import MatcherConstraint
from server.constrain.grammar.unique.cursor import Cursor
from server.constrain.grammar.unique.places import UniquePlaces
from server.errors import InvalidRequest
from server.vocab import Vocab

_ENDS = frozenset(b'",]} \t\n\r')  # one of these is in every token that ends an item


class ItemEnds:
    """The tokens of a vocabulary that may end an item, those of them that may inside of a string, and those that may
    open an array and end two items of it.
    """

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        pieces = [vocab.piece(token, special=False) for token in range(vocab.n_tokens)]
        self.ending = np.array([t for t, piece in enumerate(pieces) if not _ENDS.isdisjoint(piece)], np.intp)
        self.quotes = np.array([t for t in self.ending if b'"' in pieces[t]], np.intp)
        self.whole = np.array([t for t in self.ending if b"[" in pieces[t] and b"," in pieces[t]], np.intp)


class UniqueItems(MatcherConstraint):
    """A matcher's constraint, less what would repeat an item."""

    __slots__ = ("_base", "_cursor", "_item_ends")

    def __init__(self, base: MatcherConstraint, cursor: Cursor, item_ends: ItemEnds) -> None:
        super().__init__(base.matcher, base._n_tokens, base._ends, base._param, base.recipe)
        self._base = base
        self._cursor = cursor
        self._item_ends = item_ends

    @classmethod
    def over(cls, base: MatcherConstraint, places: UniquePlaces, item_ends: ItemEnds) -> "UniqueItems":
        """At the beginning of the output."""
        return cls(base, Cursor(places), item_ends)

    def fork(self) -> "UniqueItems":
        """An independent copy in the same state."""
        return UniqueItems(self._base.fork(), self._cursor.fork(text=True), self._item_ends)

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        return super().allows(token) and self._cursor.may_take(self._piece(token))

    def mask(self) -> bytes:
        """A bit per token; raises InvalidRequest when the matcher gave up, and where only repetitions are left."""
        bits = np.frombuffer(super().mask(), np.uint8).copy()
        if self._cursor.has_members:
            wanted = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        else:
            wanted = _set(bits, self._that_count())
        for token in wanted.tolist():
            if not self._cursor.may_take(self._piece(token)):
                bits[token // 8] &= ~np.uint8(1 << token % 8)
        if not bits.any():
            raise InvalidRequest("the output cannot be kept to 'uniqueItems': an item repeats another one", self._param)
        return bits.tobytes()

    def _that_count(self) -> NDArray[np.intp]:
        """The tokens that may repeat an item with what they end."""
        if not self._cursor.is_inside:
            return self._item_ends.whole
        return self._item_ends.quotes if self._cursor.in_string else self._item_ends.ending

    def masked_by(self) -> None:
        """Nothing: what the matcher allows is not all that counts."""

    def accept(self, token: int) -> None:
        """Advance by an allowed token."""
        super().accept(token)
        self._cursor.take(self._piece(token))

    def _piece(self, token: int) -> bytes:
        vocab = self._item_ends.vocab
        return vocab.piece(token, special=False) if token < vocab.n_tokens else b""


def _set(bits: NDArray[np.uint8], tokens: NDArray[np.intp]) -> NDArray[np.intp]:
    """Those of `tokens` whose bit is set."""
    found: NDArray[np.intp] = tokens[(bits[tokens // 8] >> (tokens % 8)) & 1 != 0]
    return found
