"""A constraint that starts after the reasoning and the markup that the chat format puts before the reply.

llama-server includes both in its grammars (common/chat-auto-parser-generator.cpp, analyze_reasoning::build_parser;
common/parsers/gpt-oss.cpp); here they wrap any constraint.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from server.errors import InternalError
from server.structured.constraint import Constraint
from server.vocab import Vocab

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.structured.grammar.matcher import MatcherConstraint

MAX_SPACES = 8  # whitespace tokens between the reasoning and the reply


@dataclass(frozen=True, slots=True)
class Framing:
    """``opening`` and ``closing`` are reasoning tags, ``lead`` precedes a reply, ``again`` follows the reasoning."""

    opening: bytes
    closing: bytes
    lead: bytes = b""
    again: bytes = b""


class _State(Enum):
    BEGINNING = 0  # either the reasoning or the reply starts
    THINKING = 1
    BETWEEN = 2
    LEAD = 3  # required markup
    ANSWER = 4


class AfterReasoning:
    """Accepts any text without an end of generation up to the closing tag, then whitespace or markup, then what `inner`
    accepts.

    ``begun``: the prompt opened the reasoning. ``may_think``: the model may open it at the start of its turn.
    """

    __slots__ = ("_framing", "_free", "_inner", "_n_spaces", "_state", "_tail", "_trial", "_vocab", "_wanted")

    def __init__(self, inner: Constraint, vocab: Vocab, framing: Framing, *, begun: bool, may_think: bool) -> None:
        self._inner = inner
        self._vocab = vocab
        self._framing = framing
        self._tail = b""  # of the reasoning; at the start, all text so far
        self._wanted = framing.lead  # remaining required markup
        self._n_spaces = 0
        self._trial: Constraint | None = None  # a possible reply, while the text may still open the reasoning
        self._free = _without(b"\xff" * ((vocab.n_tokens + 31) // 32 * 4), vocab.eog)
        self._state = _State.LEAD if framing.lead else _State.ANSWER
        if begun:
            self._state = _State.THINKING
        elif may_think:
            self._state = _State.BEGINNING
            self._trial = None if framing.lead else inner.fork()

    def fork(self) -> "AfterReasoning":
        """An independent copy in the same state."""
        copy = AfterReasoning(self._inner.fork(), self._vocab, self._framing, begun=False, may_think=False)
        copy._trial = None if self._trial is None else self._trial.fork()
        copy._tail, copy._wanted = self._tail, self._wanted
        copy._n_spaces, copy._state = self._n_spaces, self._state
        return copy

    def allows(self, token: int) -> bool:
        """Return whether `token` may be next."""
        match self._state:
            case _State.BEGINNING:
                return self._opens(token) or self._answers(token) or self._skips(token)
            case _State.THINKING:
                return token not in self._vocab.eog and not self._rest(token)
            case _State.LEAD:
                return self._leads(token)
        return self._is_space(token) or self._inner.allows(token)

    def mask(self) -> "memoryview | bytes | bytearray":
        """Return the allowed tokens. Between reasoning and reply, these are those of the reply and one tokenization of
        the markup.
        """
        match self._state:
            case _State.BEGINNING:
                opened = self._opened[len(self._tail) :] if self._tail else self._framing.opening
                if self._trial is None:
                    return self._only(opened, self._wanted)
                return _joined(self._trial.mask(), self._only(opened))
            case _State.THINKING if not self._closing_begun():
                return self._free
            case _State.THINKING:
                # the closing tag is half written: no token may complete it and begin the answer
                return _without(self._free, (t for t in range(self._vocab.n_tokens) if self._rest(t)))
            case _State.LEAD:
                return self._only(self._wanted)
        return self._inner.mask()

    def masked_by(self) -> "MatcherConstraint | None":
        """Return the reply's grammar after the reasoning."""
        return self._inner.masked_by() if self._state in (_State.BETWEEN, _State.ANSWER) else None

    def accept(self, token: int) -> None:
        """Advance. Raises `InternalError` for a token that closes the reasoning and also starts the reply."""
        match self._state:
            case _State.BEGINNING:
                self._begin(token)
            case _State.THINKING:
                self._think(token)
            case _State.LEAD:
                self._wanted = self._wanted[len(self._vocab.piece(token)) :]
                self._state = _State.LEAD if self._wanted else _State.ANSWER
            case _State.BETWEEN if self._is_space(token) and not self._inner.allows(token):
                self._n_spaces += 1
            case _:
                self._state = _State.ANSWER
                self._inner.accept(token)

    @property
    def finished(self) -> bool:
        """Whether the answer is complete."""
        if self._state is _State.BEGINNING:
            return self._trial is not None and self._trial.finished
        return self._state is _State.ANSWER and self._inner.finished

    def _begin(self, token: int) -> None:
        opens, answers, piece = self._opens(token), self._answers(token), self._vocab.piece(token)
        if self._skips(token):
            self._n_spaces += 1
            if answers and self._trial is not None:
                self._trial.accept(token)
            return
        if opens and (text := self._opening(piece)).startswith(self._opened):
            self._trial, self._tail = None, text[len(self._opened) :]
            self._state = _State.THINKING
            return
        if not answers:  # then the reasoning is opening
            self._trial, self._wanted = None, b""
        elif self._trial is not None:
            self._trial.accept(token)
        else:
            self._wanted = self._wanted[len(piece) :]
        if opens:
            self._tail = self._opening(piece)
            return
        if self._trial is not None:
            self._inner, self._trial = self._trial, None
        self._state = _State.LEAD if self._wanted else _State.ANSWER

    def _think(self, token: int) -> None:
        if self._rest(token):
            raise InternalError("a token ends the reasoning and starts the reply")
        self._tail += self._vocab.piece(token)
        if self._framing.closing in self._tail:
            self._wanted = self._framing.again + self._framing.lead
            self._state = _State.LEAD if self._wanted else _State.BETWEEN
        self._tail = self._tail[-len(self._framing.closing) :]

    def _opens(self, token: int) -> bool:
        """Return whether `token` continues the opening tag."""
        text = self._opening(self._vocab.piece(token))
        return (
            bool(text)
            and token not in self._vocab.eog
            and (text.startswith(self._opened) or self._opened.startswith(text))
        )

    def _opening(self, piece: bytes) -> bytes:
        """Return the part of the opening markup so far, extended by `piece`."""
        text = self._tail + piece
        return text if self._framing.lead else text.lstrip()

    @property
    def _opened(self) -> bytes:
        """Return the text that opens the reasoning. Leading whitespace is included if replies have markup too."""
        return self._framing.opening if self._framing.lead else self._framing.opening.lstrip()

    def _skips(self, token: int) -> bool:
        """Return whether `token` is leading whitespace."""
        return (
            not (self._framing.lead or self._tail)
            and self._n_spaces < MAX_SPACES
            and token not in self._vocab.eog
            and self._vocab.piece(token).isspace()
        )

    def _answers(self, token: int) -> bool:
        if self._trial is not None:
            return self._trial.allows(token)
        return self._leads(token)

    def _leads(self, token: int) -> bool:
        piece = self._vocab.piece(token)
        return bool(piece) and self._wanted.startswith(piece)

    def _only(self, *texts: bytes) -> bytearray:
        """Return a mask of the tokens that continue these texts, one for each."""
        mask = bytearray((self._vocab.n_tokens + 31) // 32 * 4)
        for text in filter(None, texts):
            token = self._next(text)
            mask[token // 8] |= 1 << token % 8
        return mask

    def _next(self, text: bytes) -> int:
        """The token that `text` begins with, as the model would write it. Raises `InternalError` where none does."""
        spelled = self._vocab.tokenize(text.decode("utf-8", "ignore"), add_special=False, parse_special=True)
        for token in (*spelled[:1], *range(self._vocab.n_tokens)):
            piece = self._vocab.piece(token)
            if piece and text.startswith(piece):
                return int(token)
        raise InternalError(f"no token of this model begins {text!r}")

    def _closing_begun(self) -> bool:
        return any(self._tail.endswith(self._framing.closing[:n]) for n in range(1, len(self._framing.closing)))

    def _rest(self, token: int) -> bytes:
        """Return the text of `token` after the closing tag, without whitespace."""
        _, closed, rest = (self._tail + self._vocab.piece(token)).partition(self._framing.closing)
        return rest.strip() if closed else b""

    def _is_space(self, token: int) -> bool:
        return (
            self._state is _State.BETWEEN
            and self._n_spaces < MAX_SPACES
            and token not in self._vocab.eog
            and self._vocab.piece(token).isspace()
        )


def _joined(one: "memoryview | bytes | bytearray", other: bytearray) -> bytes:
    """Both masks, of which `one` may be longer."""
    bits = bytearray(one)
    for at, byte in enumerate(other):
        bits[at] |= byte
    return bytes(bits)


def _without(mask: bytes, tokens: Iterable[int]) -> bytes:
    """`mask` with the bits of some tokens cleared."""
    cleared = bytearray(mask)
    for token in tokens:
        cleared[token // 8] &= ~(1 << token % 8)
    return bytes(cleared)
