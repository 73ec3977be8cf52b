"""Ending the thoughts of a running chat from outside: ``reasoning_control`` and ``/v1/chat/completions/control``.

The switch is turned on the event loop; the constraint, which the step thread asks about every token, sees it at the
next one and lets nothing pass but the closing tag (llama.cpp common/reasoning-budget.cpp, a budget without a limit).
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from server.dialects.fields import Body, parse
from server.engine.protocols import Vocab
from server.engine.request import Constraint
from server.errors import InvalidRequest

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.grammar.constraint import MatcherConstraint

REASONING_END = "reasoning_end"


class ControlBody(Body):
    """The body of ``POST /v1/chat/completions/control``."""

    id: str | None = None
    action: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """A checked one: end the thoughts of that completion. ``model`` None is any."""

    completion_id: str
    model: str | None


def read_control(given: object) -> Control:
    """Check the body. Raises `InvalidRequest` in llama-server's words."""
    body = parse(ControlBody, given)
    if not body.id:
        raise InvalidRequest("missing completion id", "id")
    if body.action != REASONING_END:
        raise InvalidRequest(f"unknown control action; there is '{REASONING_END}'", "action")
    return Control(body.id, body.model or None)


class ReasoningSwitch:
    """Shared by all choices of a chat. Only `end` is called from another thread than the step thread."""

    __slots__ = ("n_calls",)

    def __init__(self) -> None:
        self.n_calls = 0

    def end(self) -> None:
        """End the thoughts that are being generated; later ones are not concerned."""
        self.n_calls += 1


class _State(Enum):
    START = 0  # nothing but white space and a part of the opening tag has come
    THINKING = 1
    ENDING = 2  # waits for the end of a character
    CLOSING = 3  # the closing tag is written, token by token
    ANSWER = 4


class ReasoningControl:
    """Lets pass what `inner` lets pass (everything, when None) but for the tokens that end the thoughts early.

    Thoughts stand at the beginning of the output, as `chat.reasoning` reads them; ``begun`` says that the prompt has
    opened them already.
    """

    def __init__(
        self, switch: ReasoningSwitch, inner: Constraint | None, vocab: Vocab, tags: tuple[str, str], *, begun: bool
    ) -> None:
        self._switch = switch
        self._inner = inner
        self._vocab = vocab
        self._tags = tags
        self._opening, self._closing = (tag.encode() for tag in tags)
        self._forced = vocab.tokenize(tags[1], add_special=False, parse_special=True)
        self._state = _State.THINKING if begun else _State.START
        self._n_seen = 0
        self._n_forced = 0
        self._tail = b""

    def fork(self) -> "ReasoningControl":
        """A copy in the same state, on the same switch."""
        inner = None if self._inner is None else self._inner.fork()
        copy = ReasoningControl(self._switch, inner, self._vocab, self._tags, begun=False)
        copy._state, copy._tail = self._state, self._tail
        copy._n_seen, copy._n_forced = self._n_seen, self._n_forced
        return copy

    def allows(self, token: int) -> bool:
        """Whether `token` may come next. This is where a turned switch is seen."""
        if self._n_seen != self._switch.n_calls:
            self._n_seen = self._switch.n_calls
            if self._state is _State.THINKING:
                self._state = _State.ENDING
        if self._state is _State.ENDING and not cuts_character(self._tail):
            self._state = _State.CLOSING
        if self._state is _State.CLOSING:
            return token == self._forced[self._n_forced]
        return self._inner is None or self._inner.allows(token)

    def mask(self) -> "memoryview | bytes | bytearray":
        """The allowed tokens."""
        if self._state is not _State.CLOSING and self._inner is not None:
            return self._inner.mask()
        n_bytes = (self._vocab.n_tokens + 31) // 32 * 4
        if self._state is not _State.CLOSING:
            return b"\xff" * n_bytes
        forced = self._forced[self._n_forced]
        mask = bytearray(n_bytes)
        mask[forced // 8] = 1 << forced % 8
        return mask

    def masked_by(self) -> "MatcherConstraint | None":
        """The inner grammar, where no tag is being forced."""
        return None if self._state is _State.CLOSING or self._inner is None else self._inner.masked_by()

    def accept(self, token: int) -> None:
        """Advance by an allowed token."""
        if self._inner is not None:
            self._inner.accept(token)
        if self._state is _State.CLOSING:
            self._n_forced += 1
            if self._n_forced == len(self._forced):
                self._state = _State.ANSWER
        elif self._state is not _State.ANSWER:
            self._read(self._vocab.piece(token))

    @property
    def finished(self) -> bool:
        """Whether the output is complete."""
        return self._inner is not None and self._inner.finished

    def _read(self, piece: bytes) -> None:
        self._tail += piece
        if self._state is _State.START:
            text = self._tail.lstrip()
            if not text.startswith(self._opening):
                if not self._opening.startswith(text):
                    self._state = _State.ANSWER
                return
            self._state, self._tail = _State.THINKING, text[len(self._opening) :]
        if self._closing in self._tail:
            self._state = _State.ANSWER
        self._tail = self._tail[-len(self._closing) :]


def cuts_character(text: bytes) -> bool:
    """Whether UTF-8 text ends in the middle of a character that may still be completed."""
    for n_back in range(1, min(len(text), 3) + 1):
        byte = text[-n_back]
        if byte >= 0xC0:
            n_bytes = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return n_back < n_bytes
        if byte < 0x80:
            return False
    return False
