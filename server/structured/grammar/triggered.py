"""Free text in which a marker starts a constrained part: a tool call, or llama-server's lazy grammar.

A lazy grammar applies to the end and includes its trigger (llama.cpp src/llama-grammar.cpp, llama_grammar_accept_impl).
Tokens that the grammar rejects after a trigger are not sampled, while llama.cpp fails the request.
"""

from copy import copy
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias

import re2

from server.errors import InvalidRequest
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.grammar.text_tokens import Markers

MAX_CHECKED = 4096  # tokens of a mask that are checked with patterns, which takes microseconds each
_MAX_SIZE = 1000  # instructions of all patterns together: at most 30 ms a token for a text of `LONGEST`
LONGEST = 16_384
"""Bytes of text that patterns search: the end of a longer text."""

ReasoningTags: TypeAlias = tuple[bytes, tuple[bytes, ...]]
"""The texts that open and close the reasoning."""


@lru_cache(maxsize=64)
def compiled_patterns(patterns: tuple[str, ...]) -> tuple[Any, ...]:
    """Compile patterns to search in the bytes of a text. Raises `ValueError` for an invalid or too large one.

    llama.cpp uses std::regex, whose time is unbounded. RE2 takes linear time, but has no look-around and no back
    references.
    """
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes, as in llama.cpp: text may end inside a character
    options.log_errors = False
    compiled, size = [], 0
    for pattern in patterns:
        try:
            compiled.append(re2.compile(pattern.encode(), options))
        except re2.error as error:
            (reason,) = error.args
            message = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise ValueError(f"pattern {pattern!r}: {message} (the syntax is RE2's)") from None
        size += compiled[-1].programsize
    if size > _MAX_SIZE:
        raise ValueError(f"the patterns are too large: {size} RE2 instructions, at most {_MAX_SIZE} are allowed")
    return tuple(compiled)


@dataclass(frozen=True, slots=True)
class LazyGrammar:
    """A grammar with its triggers: texts at any position, tokens, and patterns."""

    constraint: MatcherConstraint
    texts: tuple[bytes, ...]
    tokens: frozenset[int]
    patterns: tuple[str, ...]

    def triggered(self, text: bytes) -> bytes | None:
        """Return `text` from the first trigger on; None without a trigger."""
        found = [at for at in (*(text.find(trigger) for trigger in self.texts), self._matched(text)) if at >= 0]
        return text[min(found) :] if found else None

    def _matched(self, text: bytes) -> int:
        """Return the start of a pattern's first non-empty group, otherwise of its match; -1 for no match.

        As in llama.cpp, llama_grammar_trigger_pattern::find.
        """
        for pattern in compiled_patterns(self.patterns):
            if match := pattern.search(text):
                spans = (match.span(group) for group in range(1, pattern.groups + 1))
                return int(next((start for start, end in spans if end > start), match.start()))
        return -1

    @property
    def n_seen(self) -> int:
        """Return how many bytes before a token may belong to a pattern."""
        return LONGEST if self.patterns else 0

    def end_of_pattern(self, tail: bytes, piece: bytes) -> int | None:
        """Return the byte of `piece` at which a pattern matches after `tail`; None for none."""
        ends = range(1, len(piece) + 1) if self.patterns else ()
        return next((piece[end - 1] for end in ends if self._matched(tail + piece[:end]) >= 0), None)


@dataclass(frozen=True, slots=True)
class TriggeredTag:
    """A marker and the constraint that it starts. ``at_start``: only at the start of a message."""

    marker: bytes
    constraint: MatcherConstraint
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for all choices of a request."""

    tags: tuple[TriggeredTag, ...]
    markers: Markers
    shown: frozenset[int] = frozenset()  # control tokens that have a text
    reasoning: ReasoningTags = (b"", ())  # markers between these tags are ignored; b"" = none
    anywhere: bool = False  # reasoning may be anywhere, not only at the start
    lazy: LazyGrammar | None = None  # the grammar that a trigger starts, instead of tags

    @property
    def opening(self) -> bytes:
        """Return the text that opens reasoning after the start; b"" for none."""
        return self.reasoning[0] if self.anywhere else b""


class _Place(Enum):
    """A position in free text. Its state also has the text: all of it at the start, otherwise the end."""

    FIRST = 0  # at the start of the message, where reasoning may open
    START = 1  # at the start of the message or after reasoning, where markers for the start count
    REASONING = 2
    TEXT = 3


_Free: TypeAlias = tuple[_Place, bytes]
_Started: TypeAlias = tuple[MatcherConstraint, bytes] | None


class TriggeredConstraint:
    """Implements `Constraint`: allows everything up to a marker, then what the marker's constraint allows.

    Outside of a call, `allows` only checks the token's own text. A token that completes a marker and continues is
    allowed if the grammar accepts the continuation.
    """

    __slots__ = ("_free", "_inner", "_rejected", "_rules")

    def __init__(self, rules: Rules, *, thinking: bool = False) -> None:
        self._rules = rules
        first = _Place.FIRST if rules.reasoning[0] else _Place.START
        self._free: _Free = (_Place.REASONING if thinking else first, b"")
        self._inner: MatcherConstraint | None = None
        self._rejected = -1  # the last checked token, if a trigger rejected it

    @property
    def is_lazy(self) -> bool:
        return self._rules.lazy is not None

    def fork(self) -> "TriggeredConstraint":
        fork = copy(self)
        fork._inner = None if self._inner is None else self._inner.fork()
        return fork

    def allows(self, token: int) -> bool:
        if self._inner is None:
            allowed = self._free_allows(token)
            self._rejected = -1 if allowed else token
            return allowed
        return self._inner.allows(token) or (self._may_leave and self._free_allows(token))

    def mask(self) -> bytes:
        """Return the allowed tokens. In free text, only tokens that continue a marker wrongly are excluded.

        If a trigger's pattern ends inside the rejected token, only the tokens that contain the same byte are checked.
        At most `MAX_CHECKED` of them are allowed.
        """
        inner = self.masked_by()
        if inner is not None:
            return inner.mask()
        markers, lazy, rejected = self._rules.markers, self._rules.lazy, self._rejected
        bits = bytearray(b"\xff" * markers.tokens.n_mask_bytes)
        checked, cleared = [*markers.crossing], [rejected] if rejected >= 0 else []
        if lazy is not None:
            byte = lazy.end_of_pattern(self._free[1], markers.tokens.piece(rejected, shown=True))
            of_patterns = () if byte is None else markers.tokens.with_inside(byte)
            checked += [*lazy.tokens, *of_patterns[:MAX_CHECKED]]
            cleared += of_patterns[MAX_CHECKED:]
        cleared += [token for token in checked if not self.allows(token)]
        for token in cleared:
            bits[token // 8] &= ~(1 << token % 8)
        self._rejected = rejected
        return bytes(bits)

    def masked_by(self) -> MatcherConstraint | None:
        """Return the grammar of the constrained part; None in free text, where most tokens are allowed."""
        return None if self._inner is None or self._may_leave else self._inner

    def accept(self, token: int) -> None:
        """Advance by an allowed token. Raises `InvalidRequest` if it ends a trigger's pattern and the grammar can't
        continue.
        """
        self._rejected = -1
        if self._inner is not None and (not self._may_leave or self._inner.allows(token)):
            self._inner.accept(token)
        else:
            if self._inner is not None:
                self._leave()
            self._free, found = self._after(token)
            if found is not None:
                constraint, text = found
                self._inner = constraint.fork()
                if not self._start(self._inner, token, text) and self._rules.lazy is not None:
                    shown = text.decode(errors="replace")
                    raise InvalidRequest(
                        f"grammar_triggers: the grammar can't begin with {shown!r}, where a pattern ends"
                    )
        if self._inner is not None and self._rules.lazy is None and self._inner.finished:
            self._leave()

    @property
    def finished(self) -> bool:
        """Return whether a lazy grammar is complete. After a call, anything may follow."""
        return self._rules.lazy is not None and self._inner is not None and self._inner.finished

    @property
    def _may_leave(self) -> bool:
        return self._rules.lazy is None and self._inner is not None and self._inner.complete

    def _leave(self) -> None:
        """Return to free text after a call, which is not the start of a message."""
        self._inner, self._free = None, (_Place.TEXT, b"")

    def _free_allows(self, token: int) -> bool:
        _, found = self._after(token)
        return found is None or not found[1] or self._start(found[0].fork(), token, found[1])

    def _start(self, constraint: MatcherConstraint, token: int, text: bytes) -> bool:
        """Advance by the text from the constraint's start on, or by a trigger's token if the grammar names it."""
        lazy = self._rules.lazy
        if lazy is not None and token in lazy.tokens and constraint.allows(token):
            constraint.accept(token)
            return True
        return self._rules.markers.tokens.feed(constraint, text)

    def _after(self, token: int) -> tuple[_Free, _Started]:
        """Return the state after a token of free text, and the constraint that it starts with the text for it."""
        rules, (place, text) = self._rules, self._free
        if rules.lazy is not None:
            piece = rules.markers.tokens.piece(token, shown=True)
            triggered = rules.lazy.triggered(text + piece) if token not in rules.lazy.tokens else piece
            tail = (text + piece)[-max(rules.lazy.n_seen, rules.markers.longest) :]
            return (place, tail), None if triggered is None else (rules.lazy.constraint, triggered)
        piece = rules.markers.tokens.piece(token, shown=token in rules.shown)
        if not piece:
            return self._free, None
        text += piece
        opening, ends = rules.reasoning
        if place is _Place.FIRST:
            start = text.lstrip()
            if start.startswith(opening):
                place, text = _Place.REASONING, start[len(opening) :]
            elif not opening.startswith(start):
                place = _Place.START
        while True:
            if place is _Place.REASONING:
                at, end = min(((text.find(end), end) for end in ends if end in text), default=(-1, b""))
                if at < 0:
                    return (place, text[-max(map(len, ends)) :]), None
                place, text = _Place.START, text[at + len(end) :]
            opened = self._reopened(text)
            if opened is None:
                return self._marked(place, text)
            place, text = _Place.REASONING, opened

    def _reopened(self, text: bytes) -> bytes | None:
        """Return the text after an opening tag of further reasoning, unless a marker is before it."""
        opening = self._rules.opening
        at = text.find(opening) if opening else -1
        if at < 0 or any(-1 < text.find(tag.marker) < at for tag in self._rules.tags if not tag.at_start):
            return None
        return text[at + len(opening) :]

    def _marked(self, place: _Place, text: bytes) -> tuple[_Free, _Started]:
        """Find the first marker in the text, and markers at the start."""
        rules = self._rules
        positions = ((text.find(tag.marker), tag) for tag in rules.tags if not tag.at_start)
        found = [(at, tag) for at, tag in positions if at >= 0]
        if found:
            at, tag = min(found, key=lambda each: (each[0], -len(each[1].marker)))
            return (place, text), (tag.constraint, text[at + len(tag.marker) :])
        if place is not _Place.TEXT:
            start = text.lstrip()
            for tag in rules.tags:
                if tag.at_start and start.startswith(marker := tag.marker.lstrip()):
                    return (place, text), (tag.constraint, start[len(marker) :])
            if place is _Place.FIRST or len(text) <= rules.markers.longest:
                return (place, text), None
        return (_Place.TEXT, text[-max(rules.markers.longest, len(rules.opening)) :]), None
