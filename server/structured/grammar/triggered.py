"""Free text in which a marker starts a constrained part: tool calls that a model opens itself."""

from dataclasses import dataclass, replace
from typing import TypeAlias

from server.structured.grammar.markers import Markers
from server.structured.grammar.matcher import MatcherConstraint

ReasoningTags: TypeAlias = tuple[bytes, tuple[bytes, ...]]
"""The texts that open and close the reasoning."""


@dataclass(frozen=True, slots=True)
class TriggeredTag:
    """``marker`` starts what ``constraint`` describes. ``at_start``: only at the start of a message."""

    marker: bytes
    constraint: MatcherConstraint
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for all choices of a request.

    ``shown``: control tokens whose text counts; others have no text. ``reasoning``: the reasoning tags, between which
    no marker counts; reasoning is at the start, or ``anywhere``.
    """

    begun: tuple[TriggeredTag, ...]
    markers: Markers
    shown: frozenset[int] = frozenset()
    reasoning: ReasoningTags | None = None
    anywhere: bool = False

    @property
    def opening(self) -> bytes:
        """Return the text that opens reasoning after the start; b"" for none."""
        return self.reasoning[0] if self.reasoning is not None and self.anywhere else b""

    def may_begin(self, text: bytes) -> bool:
        """Whether a marker may have begun in `text`: most text holds no marker's first byte."""
        opening = self.opening[:1]
        return any(begun.marker[:1] in text for begun in self.begun) or (bool(opening) and opening in text)


@dataclass(frozen=True, slots=True)
class _Free:
    """The end of the text so far.

    ``tail``: the part in which a marker may have started. ``head``: the whole message while it may still start
    reasoning or a marker that only counts at the start, else None. ``thinking``: inside reasoning.
    """

    tail: bytes = b""
    head: bytes | None = b""
    thinking: bool = False
    may_think: bool = False


class TriggeredConstraint:
    """A `server.engine.request.Constraint` that allows everything up to a marker, then only what the marker starts.

    Outside of a call, `allows` only checks the token's own text. A token that completes a marker and continues is
    allowed if the grammar accepts the continuation.
    """

    __slots__ = ("_free", "_inner", "_rules")

    def __init__(self, rules: Rules, *, thinking: bool = False) -> None:
        self._rules = rules
        self._free = _Free(thinking=thinking, may_think=rules.reasoning is not None and not thinking)
        self._inner: MatcherConstraint | None = None

    def fork(self) -> "TriggeredConstraint":
        """An independent copy in the same state."""
        copy = TriggeredConstraint(self._rules)
        copy._free = self._free
        copy._inner = None if self._inner is None else self._inner.fork()
        return copy

    def allows(self, token: int) -> bool:
        """Return whether `token` may be next."""
        if self._inner is None:
            return self._free_allows(token)
        return self._inner.allows(token) or (self._inner.complete and self._free_allows(token))

    def mask(self) -> bytes:
        """The allowed tokens. Outside of a call all but those that open one wrongly."""
        inner = self.masked_by()
        if inner is not None:
            return inner.mask()
        bits = bytearray(b"\xff" * self._rules.markers.n_mask_bytes)
        for token in self._rules.markers.crossing:
            if not self.allows(token):
                bits[token // 8] &= ~(1 << token % 8)
        return bytes(bits)

    def masked_by(self) -> MatcherConstraint | None:
        """The grammar of the call that is being written; elsewhere most tokens are free."""
        return self._inner if self._inner is not None and not self._inner.complete else None

    def accept(self, token: int) -> None:
        """Advance by an allowed token."""
        if self._inner is not None:
            if self._inner.allows(token):
                self._inner.accept(token)
                if self._inner.finished:
                    self._leave()
                return
            self._leave()
        self._free, found = self._after(token)
        if found is not None:
            begun, rest = found
            self._inner = begun.constraint.fork()
            self._rules.markers.feed(self._inner, rest)
            if self._inner.finished:
                self._leave()

    @property
    def finished(self) -> bool:
        """Return False: after a call, anything may follow."""
        return False

    def _leave(self) -> None:
        """Return to free text after a call. It is not the start of a message."""
        self._inner, self._free = None, _Free(head=None)

    def _free_allows(self, token: int) -> bool:
        _, found = self._after(token)
        if found is None or not found[1]:
            return True
        return self._rules.markers.feed(found[0].constraint.fork(), found[1])

    def _after(self, token: int) -> tuple[_Free, tuple[TriggeredTag, bytes] | None]:
        """Return the state after a token of free text, and the marker that it completes with the following text."""
        piece = self._rules.markers.piece(token, shown=token in self._rules.shown)
        if not piece:
            return self._free, None
        free, text = self._free, piece
        if free.head is None and not (free.tail or free.thinking or self._rules.may_begin(piece)):
            return free, None
        if free.may_think:
            free, text = self._reasoning_begin(free, text)
        while True:
            if free.thinking:
                joined = free.tail + text
                end = self._reasoning_end(joined)
                if end is None:
                    return replace(free, tail=joined[-self._longest_end :]), None
                free, text = _Free(), joined[end:]
            opened = self._opened_again(free.tail + text)
            if opened is None:
                head = None if free.head is None else free.head + text
                return self._marked(replace(free, tail=free.tail + text, head=head))
            free, text = _Free(thinking=True), opened

    @property
    def _longest_end(self) -> int:
        assert self._rules.reasoning is not None
        return max(map(len, self._rules.reasoning[1]))

    def _reasoning_end(self, text: bytes) -> int | None:
        """Return where the text after the reasoning starts."""
        assert self._rules.reasoning is not None
        places = ((text.find(end), end) for end in self._rules.reasoning[1])
        at, end = min(((at, end) for at, end in places if at >= 0), default=(-1, b""))
        return None if at < 0 else at + len(end)

    def _opened_again(self, text: bytes) -> bytes | None:
        """Return the text after an opening tag of further reasoning, unless a marker is before it."""
        opening = self._rules.opening
        at = text.find(opening) if opening else -1
        if at < 0 or any(-1 < text.find(begun.marker) < at for begun in self._rules.begun if not begun.at_start):
            return None
        return text[at + len(opening) :]

    def _reasoning_begin(self, free: _Free, text: bytes) -> tuple[_Free, bytes]:
        """Return whether the message starts with reasoning: that text, or the text so far."""
        assert self._rules.reasoning is not None
        opening = self._rules.reasoning[0]
        begun = ((free.head or b"") + text).lstrip()
        if begun.startswith(opening):
            return _Free(thinking=True), begun[len(opening) :]
        return replace(free, may_think=opening.startswith(begun)), text

    def _marked(self, free: _Free) -> tuple[_Free, tuple[TriggeredTag, bytes] | None]:
        """Find the first marker in the tail, and markers at the start in the head."""
        places = ((free.tail.find(begun.marker), begun) for begun in self._rules.begun if not begun.at_start)
        found = [(at, begun) for at, begun in places if at >= 0]
        if found:
            at, begun = min(found, key=lambda each: (each[0], -len(each[1].marker)))
            return free, (begun, free.tail[at + len(begun.marker) :])
        head = free.head
        if head is not None:
            start = head.lstrip()
            for begun in self._rules.begun:
                if begun.at_start and start.startswith(marker := begun.marker.lstrip()):
                    return free, (begun, start[len(marker) :])
            if len(head) > self._rules.markers.longest and not free.may_think:
                head = None
        tail = free.tail[-max(self._rules.markers.longest, len(self._rules.opening)) :]
        return replace(free, tail=tail if self._rules.may_begin(tail) else b"", head=head), None
