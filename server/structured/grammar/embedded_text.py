"""Enforces a client's grammar for a custom tool's input inside the grammar of the call.

The call's grammar has a hole at the position of the input. There, a second matcher follows the input up to an end
marker. In a JSON string this is the quote, and escapes are decoded. So the client's grammar is compiled unchanged. In
the call's grammar, hole number n is a control token that occurs nowhere else, n + 1 times.
"""

from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np

from server.errors import InvalidRequest
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.grammar.text_tokens import TextTokens, is_plain

_BACKSLASH, _SPACE = b"\\"[0], b" "[0]
_SHORT_ESCAPES = dict(zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True))


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    """The initial constraint of a text that precedes ``end`` and contains none of the texts in ``never``."""

    constraint: MatcherConstraint
    escaped: bool = False  # with short JSON escapes, as in strings of schemas
    end: bytes = b""
    never: tuple[bytes, ...] = ()


class EmbeddedTexts(MatcherConstraint):
    """The constraint of a call whose grammar has holes for `texts`. ``hole``: the control token that marks them."""

    __slots__ = ("_hole", "_outer", "_text", "_texts", "_tokens")

    def __init__(
        self, outer: MatcherConstraint, texts: tuple[EmbeddedText, ...], hole: int, tokens: TextTokens
    ) -> None:
        super().__init__(outer.matcher, outer.tokenizer, outer._param, outer.recipe)
        self._outer, self._texts, self._hole, self._tokens = outer, texts, hole, tokens
        self._text: _Text | None = None
        self._enter()

    def fork(self) -> Self:
        fork = copy(self)
        fork._outer, fork._text = self._outer.fork(), None if self._text is None else self._text.fork()
        return fork

    def allows(self, token: int) -> bool:
        """Return whether `token` may be next. It may belong partly to the call and partly to the text."""
        if self._text is None:
            if self._outer.allows(token):
                return True
        elif self._text.allows_whole(token, self._tokens.piece(token)):
            return True
        piece = self._tokens.piece(token)
        return bool(piece) and self.fork()._advance(piece)

    def mask(self) -> bytes:
        """Return the allowed tokens. Tokens that contain a border or an escape after their start may be missing."""
        if self._text is None:
            return self._outer.mask()
        bits = self._text.mask()
        escapes = self._tokens.single.values() if self._text.pending else self._tokens.escapes
        for token in escapes if self._text.text.escaped else ():
            if self.allows(token):
                bits[token // 8] |= np.uint8(1 << token % 8)
        if not bits.any():
            raise InvalidRequest("the output cannot be constrained to the grammar of the tool's input", self._param)
        return bits.tobytes()

    def masked_by(self) -> MatcherConstraint | None:
        return self._outer if self._text is None else None

    def accept(self, token: int) -> None:
        if self._text is None and self._outer.allows(token):
            self._outer.accept(token)
            self._enter()
        elif self._text is not None and self._text.allows_whole(token, self._tokens.piece(token)):
            self._text.accept_whole(token, self._tokens.piece(token))
            self._leave()
        elif not self._advance(self._tokens.piece(token)):
            raise self.failure() or InvalidRequest("the output cannot be kept to the grammar", self._param)

    @property
    def finished(self) -> bool:
        return self._text is None and self._outer.finished

    @property
    def complete(self) -> bool:
        return self._text is None and self._outer.complete

    def failure(self) -> InvalidRequest | None:
        inner = None if self._text is None or self._text.inner is None else self._text.inner.failure()
        return inner or self._outer.failure()

    def _advance(self, piece: bytes) -> bool:
        """Advance by a piece. Return False if it is not allowed; the state is undefined then."""
        for n in range(len(piece)):
            byte = piece[n : n + 1]
            if self._text is None:
                if not self._tokens.feed(self._outer, byte):
                    return False
                self._enter()
            elif not self._text.take(byte[0]):
                return False
            else:
                self._leave()
        return True

    def _leave(self) -> None:
        """Return to the call if the text has ended."""
        if self._text is not None and self._text.after is not None:
            self._outer, self._text = self._text.after, None
            self._enter()

    def _enter(self) -> None:
        """Start a text if the call is at a hole."""
        n_marks = 0
        while self._outer.allows(self._hole):
            self._outer.accept(self._hole)
            n_marks += 1
        if n_marks:
            text = self._texts[n_marks - 1]
            self._text = _Text(text, text.constraint.fork(), self._outer, self._tokens)


class _Text:
    """The state inside a text. Until the end marker is complete, its bytes may belong to the text.

    ``inner``: the text's constraint; None if the text can't continue. ``_exits``: the call's constraint after each
    possible start of the end marker, with the number of marker bytes so far. ``after``: the call's constraint after the
    text. ``pending``: the last byte was the backslash of an escape.
    """

    __slots__ = ("_exits", "_outer", "_tail", "_tokens", "after", "inner", "pending", "text")

    def __init__(
        self, text: EmbeddedText, inner: MatcherConstraint | None, outer: MatcherConstraint, tokens: TextTokens
    ) -> None:
        self.text, self.inner, self._outer, self._tokens = text, inner, outer, tokens
        self._exits: list[tuple[MatcherConstraint, int]] = []
        self._tail = b""
        self.after: MatcherConstraint | None = None
        self.pending = False

    def fork(self) -> "_Text":
        fork = copy(self)
        fork._outer, fork._exits = self._outer.fork(), [(exit_.fork(), n) for exit_, n in self._exits]
        fork.inner = None if self.inner is None else self.inner.fork()
        return fork

    def allows_whole(self, token: int, piece: bytes) -> bool:
        if not piece:  # a control token
            return any(exit_.allows(token) for exit_ in self._ended())
        is_inside = not (self._exits or self.pending) and self._is_inside(piece)
        return is_inside and self.inner is not None and self.inner.allows(token)

    def accept_whole(self, token: int, piece: bytes) -> None:
        if not piece:
            self.after = next(exit_ for exit_ in self._ended() if exit_.allows(token))
            self.after.accept(token)
            return
        assert self.inner is not None
        self.inner.accept(token)
        self._tail = self._tail_of(self._tail + piece)

    def mask(self) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        whole = self._tokens.plain if self.text.escaped else self._tokens.text
        n_bytes = len(whole)
        bits = np.zeros(n_bytes, np.uint8)
        if self.inner is not None and not self.pending:
            bits = np.frombuffer(self.inner.mask(), np.uint8)[:n_bytes] & whole
            for token in {token for text in self.text.never for token in self._tokens.containing(text[-1])}:
                if self._contains(self._tokens.pieces[token]):
                    bits[token // 8] &= np.uint8(~(1 << token % 8) & 255)
            if self.inner.complete:
                bits = bits | np.frombuffer(self._outer.mask(), np.uint8)[:n_bytes]
        for exit_, _ in self._exits:
            bits = bits | np.frombuffer(exit_.mask(), np.uint8)[:n_bytes]
        return bits

    def take(self, byte: int) -> bool:
        text, feed, end = bytes([byte]), self._tokens.feed, self.text.end
        if self.text.escaped and self.inner is not None:
            if self.pending:
                self.pending = False
                return byte in _SHORT_ESCAPES and feed(self.inner, bytes([_SHORT_ESCAPES[byte]]))
            if byte == _BACKSLASH:
                self.pending = True
                return any(self.inner.allows(self._tokens.single.get(char, -1)) for char in _SHORT_ESCAPES.values())
            if byte < _SPACE:
                return False
        exits = [*self._exits]
        if end and self.inner is not None and self.inner.complete and byte == end[0]:
            exits.append((self._outer.fork(), 0))
        self._exits = [(exit_, n + 1) for exit_, n in exits if feed(exit_, text)]
        is_end = self._contains(text)
        for exit_, n in self._exits:
            if n == len(end) and end in self.text.never:
                self.after = exit_
                return True
        if is_end:
            return False
        self._tail = self._tail_of(self._tail + text)
        if self.inner is not None and not feed(self.inner, text):
            self.inner = None
        return self.inner is not None or bool(self._exits)

    def _ended(self) -> list[MatcherConstraint]:
        """Return the constraints of the call that a control token may continue."""
        found = [exit_ for exit_, n in self._exits if n == len(self.text.end)]
        if not self.text.end and self.inner is not None and self.inner.complete:
            found.append(self._outer)
        return found

    def _is_inside(self, piece: bytes) -> bool:
        """Return whether `piece` belongs to the text without escapes and contains no start of the end marker."""
        if self._contains(piece) or (self.text.escaped and not is_plain(piece)):
            return False
        return not self.text.end or self.text.end[0] not in piece

    def _contains(self, piece: bytes) -> bool:
        """Return whether `piece` would complete a forbidden text."""
        return any(text in self._tail[-len(text) + 1 :] * (len(text) > 1) + piece for text in self.text.never)

    def _tail_of(self, text: bytes) -> bytes:
        longest = max(map(len, self.text.never), default=0)
        return text[-longest + 1 :] if longest > 1 else b""
