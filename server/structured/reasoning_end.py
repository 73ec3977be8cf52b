"""Ends reasoning early: at its token budget, or on a client's request (`reasoning_control`).

The end is forced into the output as if the model had generated it: an optional closing message and the closing tag.
As in llama.cpp's common/reasoning-budget.cpp, tokens after the opening tag count, including those of the prompt. No
character is truncated, and further reasoning has a new budget.
"""

import codecs
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from server.errors import InvalidRequest
from server.structured.constraint import Constraint, n_mask_bytes
from server.vocab import Vocab

if TYPE_CHECKING:  # importing llguidance takes time
    from server.structured.grammar.matcher import MatcherConstraint

UNLIMITED = -1


class ReasoningSwitch:
    """Ends reasoning on request; shared by all choices of a chat.

    Only `end` may be called outside of the step thread. ``on_end``: also called by `end`, to forward it to the process
    that generates the chat.
    """

    __slots__ = ("n_calls", "on_end")

    def __init__(self) -> None:
        self.n_calls = 0
        self.on_end: Callable[[], None] | None = None

    def end(self) -> None:
        """End the current reasoning. Later reasoning is not affected."""
        self.n_calls += 1
        if self.on_end is not None:
            self.on_end()


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """``budget``: token limit, or `UNLIMITED`. ``message``: text that ends the reasoning at the limit."""

    budget: int = UNLIMITED
    message: str = ""

    def ended(
        self,
        inner: Constraint | None,
        vocab: Vocab,
        opening: str,
        closings: Sequence[str],
        *,
        begun: str | None,
        reopens: bool,
        switch: ReasoningSwitch | None = None,
    ) -> "ReasoningEnd":
        """Wrap `inner` in a constraint that ends the reasoning, with the first of `closings`.

        ``begun``: reasoning text at the prompt's end; None for none. ``reopens``: whether reasoning may start again.
        Raises `InvalidRequest` if the message contains a tag or ends the reply.
        """
        if any(tag in self.message for tag in (opening, *closings)):
            tags = f"{opening}, {', '.join(closings)}"
            raise _wrong_message(f"must hold no markup that opens or ends reasoning ({tags})")

        def tokens(text: str) -> tuple[int, ...]:
            return tuple(vocab.tokenize(text, add_special=False, parse_special=True)) if text else ()

        message = tokens(self.message)
        if not vocab.eog.isdisjoint(message):
            raise _wrong_message("must hold no token that ends the reply")
        constraint = ReasoningEnd(
            inner=inner,
            vocab=vocab,
            opening=opening.encode().lstrip(),
            closings=tuple(end.encode() for end in closings),
            forced=message + tokens(closings[0]),
            budget=self.budget,
            reopening=tokens(opening) if reopens else (),
            switch=switch or ReasoningSwitch(),
        )
        if begun is not None:
            constraint.enter_reasoning(len(tokens(begun)))
        return constraint


def _wrong_message(reason: str) -> InvalidRequest:
    name = "reasoning_budget_message"
    return InvalidRequest(f"Field '{name}': {reason}", name)


class _State(Enum):
    START = 0  # only whitespace and a part of the opening tag so far
    REASONING = 1
    ENDING = 2  # waits until the current character is complete
    ANSWER = 3


@dataclass(slots=True, kw_only=True, eq=False)
class ReasoningEnd:
    """Allows what `inner` allows (everything if None), and forces the tokens that end reasoning early."""

    inner: Constraint | None
    vocab: Vocab
    opening: bytes
    closings: tuple[bytes, ...]  # any of them ends reasoning
    forced: tuple[int, ...]  # the tokens that end it early
    budget: int  # tokens
    reopening: tuple[int, ...]  # the tokens that open further reasoning later, () for none
    switch: ReasoningSwitch
    _state: _State = _State.START
    _pending: tuple[int, ...] = ()  # forced tokens that are not generated yet
    _n_reasoning: int = 0  # tokens
    _n_seen: int = 0  # calls of the switch that were handled
    _tail: bytes = b""
    _recent: tuple[int, ...] = ()

    def fork(self) -> "ReasoningEnd":
        fork = copy(self)
        fork.inner = None if self.inner is None else self.inner.fork()
        return fork

    def allows(self, token: int) -> bool:
        """Return whether `token` may be next. Also checks the switch."""
        if self._n_seen != self.switch.n_calls:
            self._n_seen = self.switch.n_calls
            if self._state is _State.REASONING:
                self._state = _State.ENDING
        if self._state is _State.ENDING and not _is_inside_character(self._tail):
            self._state, self._pending = _State.ANSWER, self.forced
        if self._pending:
            return token == self._pending[0]
        return self.inner is None or self.inner.allows(token)

    def mask(self) -> "memoryview | bytes | bytearray":
        if not self._pending and self.inner is not None:
            return self.inner.mask()
        mask = bytearray((b"\0" if self._pending else b"\xff") * n_mask_bytes(self.vocab.n_tokens))
        for forced in self._pending[:1]:
            mask[forced // 8] = 1 << forced % 8
        return mask

    def masked_by(self) -> "MatcherConstraint | None":
        return None if self._pending or self.inner is None else self.inner.masked_by()

    def accept(self, token: int) -> None:
        # Forced markup may contain tokens that the grammar of the reasoning rejects, such as control tokens.
        if self.inner is not None and (not self._pending or self.inner.allows(token)):
            self.inner.accept(token)
        if self._pending:
            self._pending = self._pending[1:]
        elif self._state is _State.ANSWER:
            self._track_reopening(token)
        else:
            self._track(token)

    @property
    def finished(self) -> bool:
        return self.inner is not None and self.inner.finished

    def enter_reasoning(self, n_tokens: int, tail: bytes = b"") -> None:
        """Enter reasoning of this many tokens, which ends at the budget."""
        self._state = _State.ENDING if 0 <= self.budget <= n_tokens else _State.REASONING
        self._n_reasoning, self._tail = n_tokens, tail

    def _track(self, token: int) -> None:
        text = self._tail + self.vocab.piece(token)
        n_tokens = self._n_reasoning + 1
        if self._state is _State.START:
            begun = text.lstrip()
            if not begun.startswith(self.opening):
                self._tail = begun
                if not self.opening.startswith(begun):
                    self._state = _State.ANSWER
                    self._track_reopening(token)
                return
            text, n_tokens = begun[len(self.opening) :], 0
        if any(closing in text for closing in self.closings):
            self._state = _State.ANSWER
            return
        tail = text[-max(map(len, self.closings)) :]
        if self._state is _State.ENDING:
            self._tail = tail
        else:
            self.enter_reasoning(n_tokens, tail)

    def _track_reopening(self, token: int) -> None:
        if not self.reopening:
            return
        self._recent = (*self._recent, token)[-len(self.reopening) :]
        if self._recent == self.reopening:
            self._recent = ()
            self.enter_reasoning(0)


def _is_inside_character(text: bytes) -> bool:
    """Return whether UTF-8 text ends in the middle of a character that may still be completed."""
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    decoder.decode(text[-3:])
    return bool(decoder.getstate()[0])
