"""A constraint that starts after the reasoning and the markup that the chat format puts before the reply.

llama-server includes both in its grammars (common/chat-auto-parser-generator.cpp, analyze_reasoning::build_parser;
common/parsers/gpt-oss.cpp). Here they have a separate grammar, which precedes any constraint.
"""

from copy import copy
from typing import TYPE_CHECKING

from server.structured.constraint import Constraint
from server.vocab import Vocab

if TYPE_CHECKING:  # importing llguidance takes time
    from server.structured.grammar.matcher import MatcherConstraint


class AfterReasoning:
    """Accepts what `framing` accepts, then what `inner` accepts. While the text matches both, either may continue.

    ``framing``: the grammar of the reasoning and the markup; each token is either completely inside or outside of it.
    ``opening``: the opening tag, after which the text is reasoning and not the reply.
    """

    __slots__ = ("_framing", "_inner", "_opening", "_reply", "_start", "_vocab")

    def __init__(self, inner: Constraint, vocab: Vocab, framing: "MatcherConstraint", opening: bytes) -> None:
        self._inner, self._vocab, self._opening = inner, vocab, opening.lstrip()
        self._framing: MatcherConstraint | None = framing
        self._reply = inner.fork() if framing.complete else None
        self._start: bytes | None = b""  # the text while it may be a prefix of the opening tag

    def fork(self) -> "AfterReasoning":
        fork = copy(self)
        fork._framing = None if self._framing is None else self._framing.fork()
        fork._reply = None if self._reply is None else self._reply.fork()
        return fork

    def allows(self, token: int) -> bool:
        return self._frames(token) or (self._reply is not None and self._reply.allows(token))

    def _frames(self, token: int) -> bool:
        return self._framing is not None and token not in self._vocab.eog and self._framing.allows(token)

    def mask(self) -> "memoryview | bytes | bytearray":
        if self._framing is None or self._reply is None:
            only = self._framing or self._reply
            assert only is not None
            return only.mask()
        mask = bytearray(self._framing.mask())
        for token in self._vocab.eog:
            mask[token // 8] &= ~(1 << token % 8)
        for at, byte in enumerate(self._reply.mask()[: len(mask)]):
            mask[at] |= byte
        return mask

    def masked_by(self) -> "MatcherConstraint | None":
        if self._framing is None:
            return None if self._reply is None else self._reply.masked_by()
        return self._framing if self._reply is None else None

    def accept(self, token: int) -> None:
        if self._framing is None:
            assert self._reply is not None
            self._reply.accept(token)
            return
        framed = self._reply is None or self._frames(token)
        self._follow_start(token)
        if self._reply is not None and self._reply.allows(token):
            self._reply.accept(token)
        else:
            self._reply = None
        if not framed:
            self._framing = None
            return
        self._framing.accept(token)
        if self._framing.complete and self._reply is None:
            self._reply = self._inner.fork()
        if self._framing.finished:
            self._framing = None

    def _follow_start(self, token: int) -> None:
        if self._start is not None:
            self._start = (self._start + self._vocab.piece(token)).lstrip()
            if self._start.startswith(self._opening):
                self._reply = self._start = None
            elif not self._opening.startswith(self._start):
                self._start = None

    @property
    def finished(self) -> bool:
        return self._reply is not None and self._reply.finished
