"""Parses reasoning at the start of the output::

    <think>
    The user asks …
    </think>

    The answer.

The generation prompt may have opened it already. Whitespace around it is dropped, as in llama.cpp's common/chat.cpp.
Formats with reasoning at any position parse it themselves (`frame`).
"""

from dataclasses import dataclass
from typing import Protocol

from server.formats.parsing.pieces import ContentText, Piece, joined
from server.formats.parsing.reader import EndOfText, Steps
from server.formats.parsing.stream_parser import LaterReasoning, Parse, Parser, Reading, StreamParser, answer

TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<ifm|think>", "</ifm|think>"),
    ("[unused16]", "[unused17]"),
)
_BUILT = {
    # Tags that a template composes or shares with others, by a text that only that template contains.
    ":opensource": TAGS[6],
    "<|channel|>analysis<|message|>": ("<|channel|>analysis<|message|>", "<|end|>"),
    "<|end_of_msg|>": ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    "<|tool_call:begin|>": ("<|think|>", "<|end|>"),
    "<|eom|>": (" to=self<|message|>", "<|eom|>"),
    "[BEGIN FINAL RESPONSE]": ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    "</thinking>": ("<thinking>", "</thinking>"),
}


def reasoning_tags_of(source: str) -> tuple[str, str]:
    """Return the reasoning tags in the template's source, by default ``<think>``."""
    return _named(source) or TAGS[0]


def has_reasoning_tags(source: str) -> bool:
    """Return whether the template contains reasoning tags, which separate reasoning from the reply."""
    return _named(source) is not None


def open_reasoning(prompt: str, tags: tuple[str, str]) -> str | None:
    """Return the reasoning text at the end of `prompt`; None if it ends outside of reasoning."""
    opening, closing = tags
    _, opened, begun = prompt.rpartition(opening)
    return begun if opened and closing not in begun else None


def _named(source: str) -> tuple[str, str] | None:
    built = next((pair for sign, pair in _BUILT.items() if sign in source), None)
    return built or next((pair for pair in TAGS if pair[1] in source), None)


class OutputParser(Protocol):
    """Parses one choice's text."""

    def feed(self, text: str) -> list[Piece]:
        """Add a chunk and return the pieces that can't change any more."""

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """Return the buffered pieces at the end of the text. ``cut``: the model was stopped early."""


@dataclass(slots=True)
class PlainParser:
    """Emits all text as content."""

    def feed(self, text: str) -> list[Piece]:
        return [ContentText(text)] if text else []

    def finish(self, *, cut: bool = False) -> list[Piece]:
        return []


class ReasoningParser:
    """Parses reasoning at the start; `inner` gets the rest.

    ``opened``, ``closed``: whether the generation prompt ends inside of reasoning, or contains the closing tag.
    ``openings``: markup of calls, which ``parse`` parses: in reasoning that never ends they are calls.
    """

    def __init__(
        self,
        inner: OutputParser,
        tags: tuple[str, str],
        opened: bool,
        closed: bool,
        *,
        how: Reading,
        openings: tuple[str, ...] = (),
        parse: Parse,
    ) -> None:
        self._inner = inner
        self._tags = tags
        self._openings = openings
        self._parse = parse
        self._turn = StreamParser(how=how)
        self._opened = opened
        self._expects_more = opened or closed  # or its opening tag was read
        self._steps: Steps[None] | None = self._read()

    def feed(self, text: str) -> list[Piece]:
        """Add a chunk and return the pieces that can't change any more."""
        if self._steps is None:
            return self._inner.feed(text)
        self._turn.text += text
        try:
            next(self._steps)
        except (StopIteration, EndOfText):
            self._steps = None
            rest, self._turn.text = self._turn.settle() + self._turn.text, ""
            self._turn.finish()
            if self._expects_more:
                self._read_later_reasoning()
            return self._pieces() + self._inner.feed(rest)
        return self._pieces()

    def _read_later_reasoning(self) -> None:
        """Have the answer's parser read further blocks, and leave out closing tags that close nothing."""
        how = self._turn.how
        if how.reasoning_in_content or not how.separate_reasoning:
            return
        if isinstance(self._inner, PlainParser):
            self._inner = Parser(answer, how)
            self._inner.turn.holds_spaces = False
        if isinstance(self._inner, Parser):
            self._inner.turn.expect_reasoning(LaterReasoning(self._tags, self._openings, self._parse), self._turn)

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """Return the buffered pieces: an incomplete tag is text."""
        self._turn.final, self._turn.cut = True, cut
        return self.feed("") + self._inner.finish(cut=cut)

    def _pieces(self) -> list[Piece]:
        pieces, self._turn.pieces = joined(self._turn.pieces), []
        return pieces

    def _read(self) -> Steps[None]:
        """Parse the reasoning; `inner` gets the rest."""
        turn, (opening, closing) = self._turn, self._tags
        tag = opening
        if not self._opened:
            turn.mark()
            yield from turn.spaces()
            if not (yield from turn.take(opening)):
                return
            tag = turn.settle()
            self._expects_more = True
        if turn.how.separate_reasoning or not self._opened:  # text that is left as it came has no tag of the prompt's
            turn.reasoning_tag(tag)
        end = yield from turn.read_reasoning((closing,), self._openings, self._parse)
        turn.reasoning_tag(end)
        turn.mark()
        yield from turn.spaces()
        space = turn.settle()
        if turn.how.reasoning_in_content:
            turn.content(space)
