"""A grammar that begins to hold when a trigger comes, and then holds to the end: llama-server's lazy grammars.

llama.cpp src/llama-grammar.cpp, llama_grammar_accept_impl: the grammar describes the trigger, too. Unlike there, what a
grammar would refuse behind a trigger is not sampled, instead of failing the request.
"""

from dataclasses import dataclass

from server.constrain.grammar.markers import Markers
from server.constrain.grammar.matcher import MatcherConstraint


@dataclass(frozen=True, slots=True)
class Triggers:
    """Texts, wherever they come, and tokens. ``markers`` is of the texts and of the tokens'."""

    texts: tuple[bytes, ...]
    tokens: frozenset[int]
    markers: Markers

    def begun(self, text: bytes) -> bytes | None:
        """`text` from the first trigger on."""
        found = [at for at in (text.find(trigger) for trigger in self.texts) if at >= 0]
        return text[min(found) :] if found else None


class LazyGrammar:
    """`server.engine.request.Constraint`: everything may come until a trigger does."""

    __slots__ = ("_active", "_inner", "_tail", "_triggers")

    def __init__(self, inner: MatcherConstraint, triggers: Triggers) -> None:
        self._inner = inner
        self._triggers = triggers
        self._tail = b""
        self._active = False

    def fork(self) -> "LazyGrammar":
        """An independent copy in the same state."""
        copy = LazyGrammar(self._inner.fork(), self._triggers)
        copy._tail, copy._active = self._tail, self._active
        return copy

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        if self._active:
            return self._inner.allows(token)
        begun = self._begun(token)
        return begun is None or self._takes(self._inner.fork(), token, begun)

    def mask(self) -> bytes:
        """The allowed tokens; before a trigger all but those that would go on wrongly behind it."""
        if self._active:
            return self._inner.mask()
        markers = self._triggers.markers
        bits = bytearray(b"\xff" * markers.n_mask_bytes)
        for token in (*self._triggers.tokens, *markers.crossing):
            if not self.allows(token):
                bits[token // 8] &= ~(1 << token % 8)
        return bytes(bits)

    def masked_by(self) -> MatcherConstraint | None:
        """The grammar, once it holds."""
        return self._inner if self._active else None

    def accept(self, token: int) -> None:
        """Advance by an allowed token."""
        if self._active:
            self._inner.accept(token)
            return
        begun = self._begun(token)
        if begun is not None:
            self._active = self._takes(self._inner, token, begun)
        markers = self._triggers.markers
        self._tail = (self._tail + markers.piece(token, shown=True))[-markers.longest :]

    def takes(self, trigger: bytes) -> bool:
        """Whether the grammar can begin with that text."""
        return self._triggers.markers.feed(self._inner.fork(), trigger)

    @property
    def finished(self) -> bool:
        """Whether the grammar holds and is complete."""
        return self._active and self._inner.finished

    def _begun(self, token: int) -> bytes | None:
        """What the grammar gets when `token` comes now; None before a trigger."""
        piece = self._triggers.markers.piece(token, shown=True)
        return piece if token in self._triggers.tokens else self._triggers.begun(self._tail + piece)

    def _takes(self, constraint: MatcherConstraint, token: int, begun: bytes) -> bool:
        """Advance `constraint`, by the token itself where it stands for a token in the grammar."""
        if token in self._triggers.tokens and constraint.allows(token):
            constraint.accept(token)
            return True
        return self._triggers.markers.feed(constraint, begun)
