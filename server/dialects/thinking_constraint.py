"""A constraint that begins behind the model's thoughts, for prompts that have opened them already.

llama-server leaves a grammar aside while the model reasons, too (common/sampling.cpp, reasoning budget state).
"""

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from server.engine.protocols import Vocab
from server.engine.request import Constraint
from server.errors import InternalError

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.grammar.constraint import MatcherConstraint

MAX_SPACES = 8  # white-space tokens between the thoughts and the answer


class _State(Enum):
    THINKING = 0
    BETWEEN = 1
    ANSWER = 2


class AfterThinking:
    """Any text but an end up to the closing tag, white space, then what `inner` wants."""

    __slots__ = ("_closing", "_free", "_inner", "_n_spaces", "_state", "_tail", "_vocab")

    def __init__(self, inner: Constraint, vocab: Vocab, closing: str) -> None:
        self._inner = inner
        self._vocab = vocab
        self._closing = closing.encode()
        self._tail = b""
        self._n_spaces = 0
        self._state = _State.THINKING
        self._free = _without(b"\xff" * ((vocab.n_tokens + 31) // 32 * 4), vocab.eog)

    def fork(self) -> "AfterThinking":
        """An independent copy in the same state."""
        copy = AfterThinking(self._inner.fork(), self._vocab, self._closing.decode())
        copy._tail, copy._n_spaces, copy._state = self._tail, self._n_spaces, self._state
        return copy

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        if self._state is _State.THINKING:
            return token not in self._vocab.eog and not self._rest(token)
        return self._is_space(token) or self._inner.allows(token)

    def mask(self) -> "memoryview | bytes | bytearray":
        """The allowed tokens; between thoughts and answer only those of the answer."""
        if self._state is not _State.THINKING:
            return self._inner.mask()
        if not self._closing_begun():
            return self._free
        # the closing tag is half written: no token may complete it and begin the answer
        return _without(self._free, (t for t in range(self._vocab.n_tokens) if self._rest(t)))

    def masked_by(self) -> "MatcherConstraint | None":
        """The answer's grammar, behind the thoughts."""
        return None if self._state is _State.THINKING else self._inner.masked_by()

    def accept(self, token: int) -> None:
        """Advance. Raises `InternalError` for a token that closes the thoughts and already begins the answer."""
        if self._state is _State.THINKING:
            if self._rest(token):
                raise InternalError("a token closes the thoughts and begins the answer")
            self._tail += self._vocab.piece(token)
            if self._closing in self._tail:
                self._state = _State.BETWEEN
            self._tail = self._tail[-len(self._closing) :]
        elif self._is_space(token) and not self._inner.allows(token):
            self._n_spaces += 1
        else:
            self._state = _State.ANSWER
            self._inner.accept(token)

    @property
    def finished(self) -> bool:
        """Whether the answer is complete."""
        return self._state is _State.ANSWER and self._inner.finished

    def _closing_begun(self) -> bool:
        return any(self._tail.endswith(self._closing[:n]) for n in range(1, len(self._closing)))

    def _rest(self, token: int) -> bytes:
        """What `token` would say behind the closing tag, white space aside."""
        _, closed, rest = (self._tail + self._vocab.piece(token)).partition(self._closing)
        return rest.strip() if closed else b""

    def _is_space(self, token: int) -> bool:
        return (
            self._state is _State.BETWEEN
            and self._n_spaces < MAX_SPACES
            and token not in self._vocab.eog
            and self._vocab.piece(token).isspace()
        )


def _without(mask: bytes, tokens: Iterable[int]) -> bytes:
    """`mask` with the bits of some tokens cleared."""
    cleared = bytearray(mask)
    for token in tokens:
        cleared[token // 8] &= ~(1 << token % 8)
    return bytes(cleared)
