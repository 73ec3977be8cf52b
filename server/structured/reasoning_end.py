"""Ends reasoning early: at its token budget, or on a client's request (`reasoning_control`).

The end is forced into the output as if the model had generated it: a closing message, if there is one, and the
closing tag. As in llama.cpp's common/reasoning-budget.cpp, tokens after the opening tag count, including those of
the prompt. No character is cut, and reasoning that opens again has a new budget.
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

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.structured.grammar.matcher import MatcherConstraint

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Ending:
    """How reasoning is detected and ended."""

    opening: bytes
    closings: tuple[bytes, ...]  # any of them ends reasoning
    forced: tuple[int, ...]  # the tokens that end it early
    budget: int = UNLIMITED  # tokens
    reopening: tuple[int, ...] = ()  # the tokens that open further reasoning later, () for none

    def spent(self, n_tokens: int) -> bool:
        """Return whether reasoning of this many tokens must end."""
        return 0 <= self.budget <= n_tokens

    @property
    def longest(self) -> int:
        """Bytes of the longest closing."""
        return max(map(len, self.closings))


class ReasoningSwitch:
    """Shared by all choices of a chat. Only `end` is called from another thread than the step thread. ``heard`` is
    called with it, where the chat is generated in another process."""

    __slots__ = ("heard", "n_calls")

    def __init__(self) -> None:
        self.n_calls = 0
        self.heard: Callable[[], None] | None = None

    def end(self) -> None:
        """End the current reasoning. Later reasoning is not affected."""
        self.n_calls += 1
        if self.heard is not None:
            self.heard()


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
        ending = Ending(
            opening.encode(),
            tuple(end.encode() for end in closings),
            message + tokens(closings[0]),
            self.budget,
            tokens(opening) if reopens else (),
        )
        return ReasoningEnd(ending, inner, vocab, n_begun=None if begun is None else len(tokens(begun)), switch=switch)


def _wrong_message(reason: str) -> InvalidRequest:
    name = "reasoning_budget_message"
    return InvalidRequest(f"Field '{name}': {reason}", name)


class _State(Enum):
    START = 0  # only whitespace and a part of the opening tag so far
    THINKING = 1
    ENDING = 2  # waits for the end of a character
    CLOSING = 3  # the forced tokens are being generated
    ANSWER = 4


class ReasoningEnd:
    """Allows what `inner` allows (everything if None), and forces the tokens that end reasoning early.

    ``n_begun``: number of reasoning tokens in the prompt; None if it has not opened the reasoning.
    """

    def __init__(
        self,
        ending: Ending,
        inner: Constraint | None,
        vocab: Vocab,
        *,
        n_begun: int | None,
        switch: ReasoningSwitch | None = None,
    ) -> None:
        self._ending = ending
        self._switch = switch or ReasoningSwitch()
        self._inner = inner
        self._vocab = vocab
        self._state = _State.START
        self._n_thought = 0
        self._n_seen = 0
        self._n_forced = 0
        self._tail = b""
        self._recent: tuple[int, ...] = ()
        if n_begun is not None:
            self._think(n_begun)

    def fork(self) -> "ReasoningEnd":
        """Return a copy in the same state, on the same switch."""
        made = copy(self)
        made._inner = None if self._inner is None else self._inner.fork()
        return made

    def allows(self, token: int) -> bool:
        """Return whether `token` may be next. Also checks the switch."""
        if self._n_seen != self._switch.n_calls:
            self._n_seen = self._switch.n_calls
            if self._state is _State.THINKING:
                self._state = _State.ENDING
        if self._state is _State.ENDING and not _cuts_character(self._tail):
            self._state, self._n_forced = _State.CLOSING, 0
        if self._state is _State.CLOSING:
            return token == self._ending.forced[self._n_forced]
        return self._inner is None or self._inner.allows(token)

    def mask(self) -> "memoryview | bytes | bytearray":
        """Return the allowed tokens."""
        if self._state is not _State.CLOSING and self._inner is not None:
            return self._inner.mask()
        n_bytes = n_mask_bytes(self._vocab.n_tokens)
        if self._state is not _State.CLOSING:
            return b"\xff" * n_bytes
        forced = self._ending.forced[self._n_forced]
        mask = bytearray(n_bytes)
        mask[forced // 8] = 1 << forced % 8
        return mask

    def masked_by(self) -> "MatcherConstraint | None":
        """Return the inner grammar, where nothing is forced."""
        return None if self._state is _State.CLOSING or self._inner is None else self._inner.masked_by()

    def accept(self, token: int) -> None:
        """Advance by an allowed token."""
        # Forced markup may be what the grammar of the reasoning does not contain, such as control tokens.
        if self._inner is not None and (self._state is not _State.CLOSING or self._inner.allows(token)):
            self._inner.accept(token)
        if self._state is _State.CLOSING:
            self._n_forced += 1
            if self._n_forced == len(self._ending.forced):
                self._state = _State.ANSWER
        elif self._state is _State.ANSWER:
            self._reopened(token)
        else:
            self._read(token)

    @property
    def finished(self) -> bool:
        """Whether the output is complete."""
        return self._inner is not None and self._inner.finished

    def _think(self, n_tokens: int, tail: bytes = b"") -> None:
        """Enter reasoning of this many tokens, which ends at the budget."""
        self._state = _State.ENDING if self._ending.spent(n_tokens) else _State.THINKING
        self._n_thought, self._tail = n_tokens, tail

    def _read(self, token: int) -> None:
        text = self._tail + self._vocab.piece(token)
        n_tokens = self._n_thought + 1
        if self._state is _State.START:
            begun = text.lstrip()
            opening = self._ending.opening.lstrip()
            if not begun.startswith(opening):
                self._tail = begun
                if not opening.startswith(begun):
                    self._state = _State.ANSWER
                    self._reopened(token)
                return
            text, n_tokens = begun[len(opening) :], 0
        if any(closing in text for closing in self._ending.closings):
            self._state = _State.ANSWER
        elif self._state is _State.ENDING:
            self._tail = text[-self._ending.longest :]
        else:
            self._think(n_tokens, text[-self._ending.longest :])

    def _reopened(self, token: int) -> None:
        wanted = self._ending.reopening
        if not wanted:
            return
        self._recent = (*self._recent, token)[-len(wanted) :]
        if self._recent == wanted:
            self._recent = ()
            self._think(0)


def _cuts_character(text: bytes) -> bool:
    """Return whether UTF-8 text ends in the middle of a character that may still be completed."""
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    decoder.decode(text[-3:])
    return bool(decoder.getstate()[0])
