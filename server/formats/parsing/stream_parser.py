"""Parses one turn of the assistant: runs a format's generator on the text and emits parts of the message.

Text that a format does not recognize becomes content: a false start of a call (`StreamParser.attempt`), text after
an error, and everything after the format's generator has ended. But if the text is cut off inside of a call, or in
markup that is expected after one, its partial markup is dropped. Half a marker elsewhere is content.
"""

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from server.formats.calls import json_text
from server.formats.parsing.pieces import ContentText, Piece, Reasoning, ToolCallArguments, ToolCallBegin, joined
from server.formats.parsing.reader import EndOfText, NotMarkup, Reader, Steps, pieces_of

_ALPHABET = string.ascii_letters + string.digits
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings of a parser.

    ``functions``: the parameters' schema of each function; empty if unknown. ``callable``: whether to parse calls.
    ``forced``: the turn has only reasoning and calls, so that all other text is markup. ``parallel=False`` keeps
    only the first call, as the client requested. ``separate_reasoning`` and ``reasoning_in_content`` follow from
    reasoning_format: deepseek, none, and deepseek-legacy (both). ``taken``: ids of existing calls.
    """

    functions: Mapping[str, Schema] = field(default_factory=dict)
    callable: bool = True
    forced: bool = False
    parallel: bool = True
    separate_reasoning: bool = True
    reasoning_in_content: bool = False
    id_length: int = 32
    taken: frozenset[str] = frozenset()


Parse = Callable[["StreamParser"], Steps[None]]
_NO_TAG_AFTER = frozenset(" \t\"'`([{<")
_FENCE = "```"
_LINE_CHARS = 256


@dataclass(frozen=True, slots=True)
class LaterReasoning:
    """Reasoning that an answer may contain, in the same ``tags`` as the reasoning before it.

    ``openings`` are markup of calls, which ``parse`` reads.
    """

    tags: tuple[str, str]
    openings: tuple[str, ...]
    parse: Parse


@dataclass(slots=True)
class StreamParser(Reader):
    """Converts text to pieces. Whitespace is buffered, because it is dropped before and between calls."""

    how: Reading = field(default_factory=Reading)
    pieces: list[Piece] = field(default_factory=list)
    n_calls: int = 0
    _ids: set[str] = field(default_factory=set)
    _in_call: bool = False  # a call has begun for sure, and is not over
    _spaces: list[str] = field(default_factory=list)
    _reasoning_spaces: list[str] = field(default_factory=list)
    _inside: bool = False  # reasoning has started with more than whitespace
    _has_reasoning: bool = False
    later: LaterReasoning | None = None
    holds_spaces: bool = True
    _line: str = ""  # the last line of the content, for `later`
    _fenced: bool = False  # in a block of code
    _has_content: bool = False

    def content(self, text: str) -> None:
        """Emit content."""
        if not self.how.forced:
            self._show(text)

    def _show(self, text: str) -> None:
        if self.later is not None:
            self._follow_lines(text)
        sure = text.rstrip() if self.holds_spaces else text
        if sure:
            self.pieces.append(ContentText("".join(self._spaces) + sure))
            self._spaces.clear()
        if len(sure) < len(text):
            self._spaces.append(text[len(sure) :])

    def _follow_lines(self, text: str) -> None:
        """Remember where the content is: in which line, and whether in a block of code."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._fenced ^= line.lstrip().startswith(_FENCE)
        if len(self._line) > _LINE_CHARS:  # enough for `_is_tag_place`
            self._line = self._line[: _LINE_CHARS // 2] + self._line[-1]
        self._has_content = self._has_content or not text.isspace()

    def _is_tag_place(self) -> bool:
        """Return whether a tag at this position is markup: not in code, in quotes, or a word within a line."""
        line = self._line
        if self._fenced or line.lstrip().startswith(_FENCE) or line.count("`") % 2:
            return False
        return not line.strip() or line[-1] not in _NO_TAG_AFTER

    def reasoning(self, text: str) -> None:
        """Emit reasoning text. If reasoning is separate, whitespace around it is dropped."""
        if self.how.reasoning_in_content:
            self._show(text)
        if not self.how.separate_reasoning:
            return
        if not self._inside:
            text = text.lstrip()
        sure = text.rstrip()
        if sure:
            self.pieces.append(Reasoning("".join(self._reasoning_spaces) + sure))
            self._reasoning_spaces.clear()
            self._inside = self._has_reasoning = True
        if self._inside and len(sure) < len(text):
            self._reasoning_spaces.append(text[len(sure) :])

    def reasoning_tag(self, text: str) -> None:
        """Handle a reasoning tag: it separates parts of reasoning, and is shown if reasoning stays in the content."""
        self._inside = False
        self._reasoning_spaces.clear()
        if self._has_reasoning:
            self._reasoning_spaces.append("\n")
        if self.how.reasoning_in_content:
            self._show(text)

    def certain(self) -> None:
        """Commit: the text since `attempt` is a call."""
        self._in_call = True

    def end_call(self) -> None:
        """Mark the end of a call: text from here on is content, unless it is markup that the format expects."""
        self.mark()
        self._in_call = False

    def begin(self, name: str, call_id: str = "") -> None:
        """Start a call; the text before its arguments is markup."""
        self.settle()
        self.certain()
        self._spaces.clear()
        self._line = ""
        self.n_calls += 1
        name = json_text.encodable(name)
        self._write(ToolCallBegin(self.n_calls - 1, self._id(json_text.encodable(call_id)), name))

    def _id(self, written: str) -> str:
        """Return the model's id, or a new one if another call has it.

        Models restart numbering in each turn, and clients identify calls by their ids (Claude Code 2.1 removes the
        second one from its history as interrupted).
        """
        if not written or written in self.how.taken or written in self._ids:
            written = "".join(secrets.choice(_ALPHABET) for _ in range(self.how.id_length))
        self._ids.add(written)
        return written

    def arguments(self, text: str) -> None:
        """Emit JSON text of the current call's arguments."""
        if text:
            self._write(ToolCallArguments(self.n_calls - 1, text))

    def drop_spaces(self) -> None:
        """Drop the white space at the end of the content so far."""
        self._spaces.clear()

    def knows(self, name: str) -> bool:
        """Return whether a function may have that name."""
        return bool(name) and (name in self.how.functions or not self.how.functions)

    def content_until(self, *markers: str) -> Steps[str]:
        """Emit content up to one of the markers and return the marker; further reasoning is emitted as such."""
        if self.later is None:
            return (yield from self.until(markers, self.content))
        opening, closing = self.later.tags
        while True:
            found = yield from self.until((*markers, opening, closing), self.content)
            if found in markers:
                return found
            if not self._is_tag_place():
                self.content(found)
                continue
            if found == opening:
                self.reasoning_tag(opening)
                yield from self.read_reasoning((closing,), self.later.openings, self.later.parse)
                self.reasoning_tag(closing)
            self._line = ""
            if not self._has_content:
                yield from self.spaces()

    def reasoning_until(self, *markers: str) -> Steps[str]:
        """Emit reasoning up to one of the markers and return the marker; a truncated marker is reasoning as well."""
        try:
            return (yield from self.until(markers, self.reasoning))
        except EndOfText:
            self.reasoning(self.consume(len(self.text)))
            raise

    def tagged_reasoning(self, opening: str, closings: tuple[str, ...], restarts: tuple[str, ...]) -> Steps[None]:
        """Emit reasoning after `opening`, up to one of `closings` or before one of `restarts`."""
        self.reasoning_tag(opening)
        end = yield from self.reasoning_until(*closings, *restarts)
        if end in closings:
            self.reasoning_tag(end)
        else:
            self.back(end)

    def read_reasoning(self, ends: tuple[str, ...], openings: tuple[str, ...], parse: Parse) -> Steps[str]:
        """Emit reasoning up to one of `ends` and return that. Raises `EndOfText` if there is none.

        `parse` reads text after one of `openings` separately. If the text ends after it, it is calls. If more
        reasoning or its end follows, it was only mentioned and is reasoning as well.
        """
        while True:
            found = yield from self.reasoning_until(*ends, *openings)
            if found in ends:
                return found
            aside = _Aside(Parser(parse, self.how, n_calls=self.n_calls))
            try:
                aside.read(found)
                found = yield from self.until(ends, aside.read)
            except NotMarkup:
                *mentioned, last = aside.read_so_far
                if not mentioned:
                    mentioned, last = [last], ""
                self.reasoning("".join(mentioned))
                self.back(last)  # it may open a call, too
                continue
            except EndOfText:
                rest = self.consume(len(self.text))
                if aside.close(cut=self.cut):
                    self.pieces.extend(aside.pieces)
                    self.n_calls = aside.parser.turn.n_calls
                else:
                    self.reasoning("".join(aside.read_so_far) + rest)
                raise
            self.reasoning("".join(aside.read_so_far))
            return found

    def attempt(self, opening: str, steps: Steps[None], *, doubtful: bool = False) -> Steps[bool]:
        """Parse the text after `opening`; if it is not a call, the consumed text is content.

        ``doubtful``: content may start the same way, so it is only a call once `steps` confirm it (`certain`,
        `begin`).
        """
        self.raw = [opening]
        self._in_call = not doubtful
        n_before = self.n_calls
        try:
            yield from steps
        except EndOfText:
            if self.cut and self.n_calls > n_before:
                self._in_call = True
            raise
        except NotMarkup:
            if self.cut and self._in_call:  # the text ended before it was confirmed as markup
                raise EndOfText from None
            self.give_back()
            self._in_call = False
            return False
        self.settle()
        self._in_call = False
        return True

    def give_back(self) -> None:
        """Emit the text consumed since `mark` as content."""
        raw = self.settle()
        if raw:
            self.content(raw)

    def finish(self) -> None:
        """Emit the buffered text as content, except whitespace after calls, and truncated markup in or after a call."""
        if self.cut and self._in_call:
            self.settle()
            self.text = ""
        self.give_back()
        if self.text:
            self.content(self.consume(len(self.text)))
        if self._spaces and not self.n_calls:
            self.pieces.append(ContentText("".join(self._spaces)))
        self._spaces.clear()

    def _write(self, piece: Piece) -> None:
        if self.how.parallel or self.n_calls == 1:
            self.pieces.append(piece)


def plain(turn: StreamParser) -> Steps[None]:
    """Parse an output without calls: all text is content, except further reasoning."""
    turn.holds_spaces = False
    while turn.later is not None:
        yield from turn.content_until()


def anywhere(calls: Mapping[str, Parse], *silent: str) -> Parse:
    """Create a format's generator. `calls` parse the text after their openings, at any position; `silent` markup is
    dropped.
    """

    def parse(turn: StreamParser) -> Steps[None]:
        while True:
            found = yield from turn.content_until(*calls, *silent)
            if found in calls:
                yield from turn.attempt(found, calls[found](turn))

    return parse


class Parser:
    """Feeds a format's generator. `primer`: the end of the prompt, which the format must have read.

    ``n_calls``: how many calls the message has already.
    """

    __slots__ = ("_steps", "turn")

    def __init__(self, parse: Parse, how: Reading, *, primer: str = "", n_calls: int = 0) -> None:
        self.turn = StreamParser(how=how, n_calls=n_calls)
        self._steps: Steps[None] | None = parse(self.turn)
        if primer:
            self.feed(primer)
            self.turn._spaces.clear()
            self.turn._reasoning_spaces.clear()

    def feed(self, text: str) -> list[Piece]:
        """Add a chunk and return the pieces that can't change any more."""
        turn = self.turn
        if self._steps is None and not (turn.holds_spaces or turn.raw or turn._spaces):
            return [ContentText(text)] if text else []
        for piece in pieces_of(text):
            turn.text += piece
            self._advance()
            if self._steps is None and turn.text:
                turn.give_back()
                turn.content(turn.consume(len(turn.text)))
        pieces, turn.pieces = joined(turn.pieces), []
        return pieces

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """Return the buffered pieces."""
        turn = self.turn
        turn.final, turn.cut = True, cut
        self._advance()
        turn.finish()
        pieces, turn.pieces = joined(turn.pieces), []
        return pieces

    def _advance(self) -> None:
        if self._steps is not None:
            try:
                next(self._steps)
            except (StopIteration, EndOfText):
                self._steps = None


def plain_parser() -> Parser:
    """Return a parser for which all text is content."""
    return Parser(plain, Reading())


@dataclass(slots=True)
class _Aside:
    """Text in reasoning that may be calls."""

    parser: Parser
    read_so_far: list[str] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)

    def read(self, text: str) -> None:
        """Raises `NotMarkup` when it is no call, or one that more text follows."""
        self.read_so_far.append(text)
        if not self._take(self.parser.feed(text)):
            raise NotMarkup

    def _take(self, pieces: list[Piece]) -> bool:
        """Return whether these pieces are of calls."""
        self.pieces += pieces
        return all(isinstance(piece, ToolCallBegin | ToolCallArguments) for piece in pieces)

    def close(self, *, cut: bool) -> bool:
        """End the text and return whether it consisted of calls only."""
        return self._take(self.parser.finish(cut=cut)) and bool(self.pieces)
