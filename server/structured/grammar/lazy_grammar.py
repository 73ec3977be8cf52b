"""A grammar that applies from a trigger to the end: llama-server's lazy grammars.

The grammar includes the trigger (llama.cpp src/llama-grammar.cpp, llama_grammar_accept_impl). Unlike llama.cpp,
tokens that the grammar rejects after a trigger are not sampled, instead of failing the request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import re2

from server.errors import InvalidRequest
from server.structured.grammar.markers import Markers
from server.structured.grammar.matcher import MatcherConstraint

_MOST_LOOKED_AT = 4096  # tokens of a mask where a pattern decides, which takes microseconds for each
_MAX_SIZE = 1000  # instructions of all patterns together: 30 ms a token at worst, on a text of `LONGEST`
LONGEST = 16_384
"""Bytes of text that patterns are looked for in; of a longer one its end."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns that trigger, looked for in a text's bytes (llama_grammar_trigger_pattern::find).

    There they are std::regex, whose time has no bound; RE2's is linear in the text, so that it has no look-around and
    no back references.
    """

    regexes: tuple[Any, ...] = ()

    @classmethod
    def compiled(cls, patterns: Sequence[str]) -> "Patterns":
        """Compile the patterns. Raises ValueError for an invalid or too large pattern."""
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1  # bytes, as there: text may end inside of a character
        options.log_errors = False
        made, size = [], 0
        for pattern in patterns:
            try:
                made.append(re2.compile(pattern.encode(), options))
            except re2.error as error:
                (reason,) = error.args
                said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
                raise ValueError(f"pattern {pattern!r}: {said} (the syntax is RE2's)") from None
            size += made[-1].programsize
        if size > _MAX_SIZE:
            raise ValueError(f"the patterns are too large: {size} RE2 instructions, at most {_MAX_SIZE} are allowed")
        return cls(tuple(made))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the patterns' texts, to send them to a model's worker process."""
        return Patterns.compiled, ([pattern.pattern.decode() for pattern in self.regexes],)

    def __bool__(self) -> bool:
        return bool(self.regexes)

    def begun(self, text: bytes) -> int:
        """Return where the grammar starts: a match's first non-empty group, else the match. -1: no match."""
        for pattern in self.regexes:
            if (match := pattern.search(text)) is not None:
                caught = (
                    match.start(group)
                    for group in range(1, pattern.groups + 1)
                    if match.end(group) > match.start(group)
                )
                return int(next(caught, match.start()))
        return -1


@dataclass(frozen=True, slots=True)
class Triggers:
    """Texts at any position, tokens and patterns. ``markers``: the texts and the tokens' texts."""

    texts: tuple[bytes, ...]
    tokens: frozenset[int]
    markers: Markers
    patterns: Patterns = field(default_factory=Patterns)

    def begun(self, text: bytes) -> bytes | None:
        """`text` from the first trigger on."""
        found = [at for at in (*(text.find(trigger) for trigger in self.texts), self.patterns.begun(text)) if at >= 0]
        return text[min(found) :] if found else None

    @property
    def n_seen(self) -> int:
        """Return how many bytes before a token may belong to a trigger."""
        return LONGEST if self.patterns else self.markers.longest


class LazyGrammar:
    """A `server.engine.request.Constraint` that allows everything before a trigger."""

    __slots__ = ("_active", "_inner", "_refused", "_tail", "_triggers")

    def __init__(self, inner: MatcherConstraint, triggers: Triggers) -> None:
        self._inner = inner
        self._triggers = triggers
        self._tail = b""
        self._active = False
        self._refused = -1  # by a trigger that it ends, at the place where the text is now

    def fork(self) -> "LazyGrammar":
        """An independent copy in the same state."""
        copy = LazyGrammar(self._inner.fork(), self._triggers)
        copy._tail, copy._active, copy._refused = self._tail, self._active, self._refused
        return copy

    def allows(self, token: int) -> bool:
        """Return whether `token` may be next."""
        if self._active:
            return self._inner.allows(token)
        begun = self._begun(token)
        allowed = begun is None or self._takes(self._inner.fork(), token, begun)
        if not allowed:
            self._refused = token
        return allowed

    def mask(self) -> bytes:
        """Return the allowed tokens. Before a trigger, these are all except those that continue it in a way that the
        grammar rejects.

        If a pattern ends inside the rejected token, only the tokens that contain the same byte are checked, and at
        most `_MOST_LOOKED_AT` of them are allowed.
        """
        if self._active:
            return self._inner.mask()
        markers = self._triggers.markers
        bits = bytearray(b"\xff" * markers.n_mask_bytes)
        refused = self._refused
        byte = self._ended_by(refused)
        of_patterns = markers.with_inside(byte) if byte is not None else ()
        for token in (*self._triggers.tokens, *markers.crossing, *of_patterns[:_MOST_LOOKED_AT]):
            if not self.allows(token):
                bits[token // 8] &= ~(1 << token % 8)
        for token in (*of_patterns[_MOST_LOOKED_AT:], *((refused,) if refused >= 0 else ())):
            bits[token // 8] &= ~(1 << token % 8)
        return bytes(bits)

    def masked_by(self) -> MatcherConstraint | None:
        """The grammar, once it holds."""
        return self._inner if self._active else None

    def accept(self, token: int) -> None:
        """Advance by an allowed token. Raises `InvalidRequest` for one that completes a pattern where the grammar can't
        continue.
        """
        if self._active:
            self._inner.accept(token)
            return
        begun = self._begun(token)
        if begun is not None:
            self._active = self._takes(self._inner, token, begun)
            if not self._active:
                said = begun.decode(errors="replace")
                raise InvalidRequest(f"grammar_triggers: the grammar can't begin with {said!r}, where a pattern ends")
        self._tail = (self._tail + self._triggers.markers.piece(token, shown=True))[-self._triggers.n_seen :]
        self._refused = -1

    def takes(self, trigger: bytes) -> bool:
        """Whether the grammar can begin with that text."""
        return self._triggers.markers.feed(self._inner.fork(), trigger)

    @property
    def finished(self) -> bool:
        """Whether the grammar holds and is complete."""
        return self._active and self._inner.finished

    def _begun(self, token: int) -> bytes | None:
        """Return the text that the grammar gets after `token`; None before a trigger."""
        piece = self._triggers.markers.piece(token, shown=True)
        return piece if token in self._triggers.tokens else self._triggers.begun(self._tail + piece)

    def _ended_by(self, token: int) -> int | None:
        """The byte of a refused token that a pattern ends with."""
        if token < 0 or not self._triggers.patterns:
            return None
        piece = self._triggers.markers.piece(token, shown=True)
        for end in range(1, len(piece) + 1):
            if self._triggers.patterns.begun(self._tail + piece[:end]) >= 0:
                return piece[end - 1]
        return None

    def _takes(self, constraint: MatcherConstraint, token: int, begun: bytes) -> bool:
        """Advance `constraint`, by the token itself if the grammar names it."""
        if token in self._triggers.tokens and constraint.allows(token):
            constraint.accept(token)
            return True
        return self._triggers.markers.feed(constraint, begun)
