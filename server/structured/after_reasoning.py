"""A constraint that starts after the reasoning and the markup that the chat format puts before the reply.

llama-server includes both in its grammars (common/chat-auto-parser-generator.cpp, analyze_reasoning::build_parser;
common/parsers/gpt-oss.cpp); here they wrap any constraint.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server.errors import InternalError
from server.structured.constraint import Constraint
from server.vocab import Vocab

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.structured.grammar.matcher import MatcherConstraint

MAX_SPACES = 8  # whitespace tokens before the reply


@dataclass(frozen=True, slots=True)
class Framing:
    """``opening`` and ``closing`` are reasoning tags, ``lead`` precedes a reply, ``again`` follows the reasoning."""

    opening: bytes
    closing: bytes
    lead: bytes = b""
    again: bytes = b""


class AfterReasoning:
    """Accepts any text without an end of generation up to the closing tag, then whitespace or markup, then what `inner`
    accepts.

    ``begun``: the prompt opened the reasoning. ``may_think``: the model may open it at the start of its turn. The text
    then leads to reasoning or to a reply, as long as it fits both.
    """

    __slots__ = (
        *("_framing", "_free", "_is_thinking", "_later", "_lead", "_may_skip", "_n_spaces", "_opening", "_reply"),
        *("_tail", "_vocab"),
    )

    def __init__(self, inner: Constraint, vocab: Vocab, framing: Framing, *, begun: bool, may_think: bool) -> None:
        may_think = may_think and not begun
        self._vocab = vocab
        self._framing = framing
        self._free = _without(b"\xff" * ((vocab.n_tokens + 31) // 32 * 4), vocab.eog)
        self._is_thinking = begun
        self._tail = b""  # of the reasoning
        self._later = inner if begun or may_think else None  # for the reply after reasoning, if there may be some
        self._reply = None if begun else inner.fork() if may_think else inner  # None if reasoning is first
        self._lead = framing.lead  # remaining markup before the reply
        self._opening: bytes | None = None  # the remaining opening tag; None if no reasoning may begin
        if may_think:
            self._opening = framing.opening if framing.lead else framing.opening.lstrip()
        self._may_skip = may_think and not framing.lead  # whether whitespace is skipped here
        self._n_spaces = 0

    def fork(self) -> "AfterReasoning":
        """Return an independent copy in the same state."""
        copy = AfterReasoning.__new__(AfterReasoning)
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        copy._later = None if self._later is None else self._later.fork()
        copy._reply = None if self._reply is None else self._reply.fork()
        return copy

    def allows(self, token: int) -> bool:
        """Return whether `token` may be next."""
        if self._is_thinking:
            return token not in self._vocab.eog and not self._rest(token)
        return self._replies(token) or bool(self._opens(token)) or self._skips(token)

    def mask(self) -> "memoryview | bytes | bytearray":
        """Return the allowed tokens. Between reasoning and reply, these are those of the reply and one tokenization of
        the markup.
        """
        if self._is_thinking:
            if not self._closing_begun():
                return self._free
            # the closing tag is half written: no token may complete it and begin the answer
            return _without(self._free, (t for t in range(self._vocab.n_tokens) if self._rest(t)))
        opening = self._framing.opening if self._may_skip and self._opening else self._opening or b""
        if self._reply is None or self._lead:
            return self._only(opening, b"" if self._reply is None else self._lead)
        mask = self._reply.mask()
        return _joined(mask, self._only(opening)) if opening else mask

    def masked_by(self) -> "MatcherConstraint | None":
        """Return the reply's grammar if only the reply may follow."""
        return None if self._reply is None or self._opening is not None or self._lead else self._reply.masked_by()

    def accept(self, token: int) -> None:
        """Advance. Raises `InternalError` for a token that closes the reasoning and also starts the reply."""
        if self._is_thinking:
            self._think(token)
            return
        if self._reply is not None and self._opening is None and not self._lead and not self._may_skip:
            self._reply.accept(token)
            return
        replies, opened = self._replies(token), self._opens(token)
        if self._skips(token) and (self._opening is not None or not replies):
            self._n_spaces += 1
            if replies and self._reply is not None:
                self._reply.accept(token)
            return
        self._may_skip = False
        if opened and self._opening is not None and opened.startswith(self._opening):
            self._is_thinking, self._tail = True, opened[len(self._opening) :]
            self._opening = self._reply = None
            return
        self._opening = self._opening[len(opened) :] if opened and self._opening is not None else None
        if opened and not replies:
            self._reply = None
        elif self._lead:
            self._lead = self._lead[len(self._vocab.piece(token)) :]
        elif self._reply is not None:
            self._reply.accept(token)
        if self._opening is None:
            self._later = None

    @property
    def finished(self) -> bool:
        """Return whether the reply is complete."""
        return self._reply is not None and not self._lead and self._reply.finished

    def _think(self, token: int) -> None:
        if self._rest(token):
            raise InternalError("a token ends the reasoning and starts the reply")
        self._tail += self._vocab.piece(token)
        if self._framing.closing in self._tail:
            self._is_thinking, self._reply, self._later = False, self._later, None
            self._lead = self._framing.again + self._framing.lead
            self._may_skip = not self._lead
        self._tail = self._tail[-len(self._framing.closing) :]

    def _opens(self, token: int) -> bytes:
        """Return the text of `token` that continues the opening tag; b"" if it doesn't."""
        if self._opening is None or token in self._vocab.eog:
            return b""
        text = self._vocab.piece(token)
        text = text.lstrip() if self._may_skip else text
        return text if text and (text.startswith(self._opening) or self._opening.startswith(text)) else b""

    def _replies(self, token: int) -> bool:
        """Return whether `token` continues the reply or the markup before it."""
        if self._reply is None:
            return False
        if not self._lead:
            return self._reply.allows(token)
        piece = self._vocab.piece(token)
        return bool(piece) and self._lead.startswith(piece)

    def _skips(self, token: int) -> bool:
        """Return whether `token` is whitespace before the reasoning or the reply."""
        return (
            self._may_skip
            and self._n_spaces < MAX_SPACES
            and token not in self._vocab.eog
            and self._vocab.piece(token).isspace()
        )

    def _only(self, *texts: bytes) -> bytearray:
        """Return a mask of the tokens that continue these texts, one for each."""
        mask = bytearray((self._vocab.n_tokens + 31) // 32 * 4)
        for text in filter(None, texts):
            token = self._next(text)
            mask[token // 8] |= 1 << token % 8
        return mask

    def _next(self, text: bytes) -> int:
        """Return the token that `text` begins with, as the model would write it. Raises `InternalError` where none
        does.
        """
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
