"""Parses one turn of the assistant: runs a format's generator on the text and emits parts of the message.

Text that a format does not recognize becomes content: a false start of a call (`StreamParser.attempt`), text after
an error, and everything after the format's generator has ended. But if the text is cut off inside of a call, or in
markup that is expected after one, its partial markup is dropped. Half a marker elsewhere is content.
"""

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from server.formats.calls import json_text
from server.formats.parsing.pieces import ContentText, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from server.formats.parsing.reader import EndOfText, NotMarkup, Reader, Steps, pieces_of
from server.formats.tool_call_syntax import TOOL_NAME

_ALPHABET = string.ascii_letters + string.digits
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings of a parser. The two of reasoning follow from reasoning_format: deepseek, none, or both (-legacy)."""

    functions: Mapping[str, Schema] = field(default_factory=dict)  # the parameters' schemas; empty if unknown
    callable: bool = True  # whether to parse calls
    forced: bool = False  # the turn has only reasoning and calls, so that all other text is markup
    parallel: bool = True  # False keeps only the first call, as the client requested
    separate_reasoning: bool = True
    reasoning_in_content: bool = False
    id_length: int = 32
    taken: frozenset[str] = frozenset()  # ids of existing calls
    tags: tuple[str, str] | None = None  # of reasoning at the start, which precedes what the format's parser reads
    opened: bool = False  # whether the prompt ends inside of that reasoning
    closed: bool = False  # whether the prompt contains its closing tag
    openings: tuple[str, ...] = ()  # markup of calls, which reasoning that never ends may contain
    primer: str = ""  # the end of the prompt, which the format's parser must have read


Parse = Callable[["StreamParser"], Steps[None]]
_NO_TAG_AFTER = frozenset(" \t\"'`([{<")
_FENCE = "```"
_LINE_CHARS = 256


class StreamParser(Reader):
    """Parses one choice's text: `feed` it, then `finish`. The other methods are for the generator of a format.

    Text that the generator consumes and emits nothing for is returned as content if it turns out to be no markup.
    Whitespace is buffered, because it is dropped before and between calls.

    ``parse``: creates the generator. ``n_calls``: how many calls the message has already.
    """

    def __init__(self, parse: Parse, how: Reading, *, n_calls: int = 0) -> None:
        super().__init__()
        self.how, self.n_calls = how, n_calls
        self.holds_spaces = True
        self.later: tuple[str, str] | None = None  # the tags of reasoning that content may contain
        self._parse = parse
        self._pieces: list[Piece] = []
        self._ids: set[str] = set()
        self._in_call = False  # a call has begun for sure, and is not over
        self._spaces: list[str] = []
        self._reasoning_spaces: list[str] = []
        self._inside = False  # reasoning has started with more than whitespace
        self._has_reasoning = False
        self._line = ""  # the last line of the content, for `later`
        self._fenced = False  # in a block of code
        self._has_content = False
        self._steps: Steps[None] | None = parse(self) if how.tags is None else self._reasoning_first(*how.tags)
        if how.tags is None and how.primer:
            self.feed(how.primer)
            self._spaces.clear()
            self._reasoning_spaces.clear()

    def feed(self, text: str) -> list[Piece]:
        if self._steps is None and not (self.holds_spaces or self.raw or self._spaces):
            return [ContentText(text)] if text else []
        for piece in pieces_of(text):
            self.text += piece
            self._advance()
            if self._steps is None and self.text:
                self.give_back()
                self.content(self.consume(len(self.text)))
        pieces, self._pieces = self._pieces, []
        return pieces

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """Return the buffered pieces at the end of the text. ``cut``: the model was stopped early.

        Buffered text is content, except whitespace after calls, and truncated markup in or after a call.
        """
        self.final, self.cut = True, cut
        self._advance()
        if cut and self._in_call:
            self.settle()
            self.text = ""
        self.give_back()
        if self.text:
            self.content(self.consume(len(self.text)))
        if self._spaces and not self.n_calls:
            self._emit(ContentText("".join(self._spaces)))
        self._spaces.clear()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _advance(self) -> None:
        if self._steps is not None:
            try:
                next(self._steps)
            except (StopIteration, EndOfText):
                self._steps = None

    def content(self, text: str) -> None:
        self.raw.clear()
        if not self.how.forced:
            self._show(text)

    def give_back(self) -> None:
        """Emit the text consumed since `settle` as content."""
        if raw := self.settle():
            self.content(raw)

    def drop_spaces(self) -> None:
        """Drop the white space at the end of the content so far."""
        self._spaces.clear()

    def content_until(self, *markers: str) -> Steps[str]:
        """Emit content up to one of the markers and return the marker; further reasoning is emitted as such."""
        while True:
            found = yield from self.until((*markers, *(self.later or ())), self.content)
            self.settle()
            if found in markers:
                return found
            if not self._is_tag_place():
                self.content(found)
                continue
            assert self.later is not None
            opening, closing = self.later
            if found == opening:
                self.reasoning_tag(opening)
                self.reasoning_tag((yield from self.read_reasoning(closing)))
            self._line = ""
            if not self._has_content:
                yield from self.spaces()
                self.settle()

    def _show(self, text: str) -> None:
        if self.later is not None:
            self._follow_lines(text)
        self._put(ContentText, text, len(text.rstrip() if self.holds_spaces else text), self._spaces)

    def _put(self, kind: type[ContentText | Reasoning], text: str, n_sure: int, spaces: list[str]) -> None:
        """Emit the first `n_sure` characters, after the buffered white space, and buffer the others."""
        if n_sure:
            self._emit(kind("".join(spaces) + text[:n_sure]))
            spaces.clear()
        if n_sure < len(text):
            spaces.append(text[n_sure:])

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
        self.raw.clear()
        if self.how.reasoning_in_content:
            self._show(text)
        if not self.how.separate_reasoning:
            return
        if not self._inside:
            text = text.lstrip()
        n_sure = len(text.rstrip())
        if n_sure:
            self._inside = self._has_reasoning = True
        self._put(Reasoning, text, n_sure, self._reasoning_spaces)

    def reasoning_tag(self, text: str) -> None:
        """Handle a reasoning tag: it separates parts of reasoning, and is shown if reasoning stays in the content."""
        self.raw.clear()
        self._inside = False
        self._reasoning_spaces.clear()
        if self._has_reasoning:
            self._reasoning_spaces.append("\n")
        if self.how.reasoning_in_content:
            self._show(text)

    def tagged_reasoning(self, opening: str, closings: tuple[str, ...], restarts: tuple[str, ...]) -> Steps[None]:
        """Emit reasoning after `opening`, up to one of `closings` or before one of `restarts`."""
        self.reasoning_tag(opening)
        end = yield from self._reasoning_until(*closings, *restarts)
        if end in closings:
            self.reasoning_tag(end)
        else:
            self.back(end)

    def read_reasoning(self, *ends: str) -> Steps[str]:
        """Emit reasoning up to one of `ends` and return that. Raises `EndOfText` if there is none.

        Markup of calls starts calls if the text ends after them. If more reasoning or its end follows, they were only
        mentioned and are reasoning as well.
        """
        while True:
            found = yield from self._reasoning_until(*ends, *self.how.openings)
            if found not in ends:
                found = yield from self._mentioned(found, ends)
            if found:
                return found

    def _mentioned(self, opening: str, ends: tuple[str, ...]) -> Steps[str]:
        """Parse what may be calls, from `opening` on, up to one of `ends` and return that; "" if other text follows."""
        aside = StreamParser(self._parse, replace(self.how, tags=None, primer=""), n_calls=self.n_calls)
        calls: list[Piece] = []

        def take(pieces: list[Piece]) -> None:
            calls.extend(pieces)
            if not all(isinstance(piece, ToolCallBegin | ToolCallArguments) for piece in pieces):
                raise NotMarkup

        try:
            take(aside.feed(opening))
            found = yield from self.until(ends, lambda text: take(aside.feed(text)))
        except NotMarkup:
            last = self.raw.pop() if self.raw else ""
            self.reasoning(opening + self.settle())
            self.back(last)  # it may open a call, too
            return ""
        except EndOfText:
            self.consume(len(self.text))
            text = opening + self.settle()
            try:
                take(aside.finish(cut=self.cut))
            except NotMarkup:
                calls.clear()
            for piece in calls:
                self._emit(piece)
            if calls:
                self.n_calls = aside.n_calls
            else:
                self.reasoning(text)
            raise
        self.reasoning(opening + self.settle().removesuffix(found))
        return found

    def _reasoning_until(self, *markers: str) -> Steps[str]:
        """Emit reasoning up to one of the markers and return the marker; a truncated marker is reasoning as well."""
        try:
            found = yield from self.until(markers, self.reasoning)
        except EndOfText:
            self.reasoning(self.consume(len(self.text)))
            raise
        self.settle()
        return found

    def _reasoning_first(self, opening: str, closing: str) -> Steps[None]:
        how, tag = self.how, opening
        expects_more = how.opened or how.closed
        if not how.opened:
            yield from self.spaces()
            tag = (yield from self.take(opening)) and self.settle()
        if tag:
            if how.separate_reasoning or not how.opened:  # text that is left as it came has no tag of the prompt's
                self.reasoning_tag(tag)
            self.reasoning_tag((yield from self.read_reasoning(closing)))
            yield from self.spaces()
            space, expects_more = self.settle(), True
            if how.reasoning_in_content:
                self.content(space)
        if expects_more and how.separate_reasoning and not how.reasoning_in_content:
            self.later = how.tags
        self.text = how.primer + self.settle() + self.text
        yield from self._parse(self)

    def attempt(self, opening: str, steps: Steps[None], *, doubtful: bool = False) -> Steps[bool]:
        """Parse the text after `opening`; if it is not a call, the consumed text is content.

        ``doubtful``: content may start the same way, so it is only a call once `steps` confirm it (`certain`,
        `begin`).
        """
        self.raw[:] = [opening]
        self._in_call = not doubtful
        n_before = self.n_calls
        try:
            yield from steps
        except EndOfText:
            self._in_call = self._in_call or (self.cut and self.n_calls > n_before)
            raise
        except NotMarkup:
            if self.cut and self._in_call:  # the text ended before it was confirmed as markup
                raise EndOfText from None
            self.give_back()
            self._in_call = False
            return False
        self.end_call()
        return True

    def knows(self, name: str) -> bool:
        return bool(name) and (name in self.how.functions or not self.how.functions)

    def name(self) -> Steps[str]:
        """Return a function's name in markup without quotes. Only a known one contains spaces."""
        name = yield from self.match(TOOL_NAME)
        while any(known.startswith(f"{name} ") for known in self.how.functions) and (yield from self.take(" ")):
            word = yield from self.match(TOOL_NAME)
            longer = f"{name} {word}"
            if not any(f"{known} ".startswith(f"{longer} ") for known in self.how.functions):
                self.back(f" {word}")
                break
            name = longer
        return name

    def certain(self) -> None:
        """Commit: the text since `attempt` is a call."""
        self._in_call = True

    def begin(self, name: str, call_id: str = "") -> None:
        """Start a call; the text before its arguments is markup."""
        self.settle()
        self.certain()
        self._spaces.clear()
        self._line = ""
        self.n_calls += 1
        name = json_text.encodable(name)
        self._write(ToolCallBegin(self.n_calls - 1, self._id(json_text.encodable(call_id)), name))

    def arguments(self, text: str) -> None:
        """Emit JSON text of the current call's arguments."""
        self.raw.clear()
        self.close_arguments(text)

    def close_arguments(self, text: str) -> None:
        """Emit the end of the arguments, while the consumed text may be content."""
        if text:
            self._write(ToolCallArguments(self.n_calls - 1, text))

    def end_call(self) -> None:
        """Mark the end of a call: text from here on is content, unless it is markup that the format expects."""
        self.settle()
        self._in_call = False

    def _id(self, written: str) -> str:
        """Return the model's id, or a new one if another call has it.

        Models restart numbering in each turn, and clients identify calls by their ids (Claude Code 2.1 removes the
        second one from its history as interrupted).
        """
        if not written or written in self.how.taken or written in self._ids:
            written = "".join(secrets.choice(_ALPHABET) for _ in range(self.how.id_length))
        self._ids.add(written)
        return written

    def _write(self, piece: Piece) -> None:
        if self.how.parallel or self.n_calls == 1:
            self._emit(piece)

    def _emit(self, piece: Piece) -> None:
        """Add a piece; more text of the last one is joined with it."""
        last = self._pieces[-1] if self._pieces else None
        if last is None or isinstance(piece, ToolCallBegin) or type(piece) is not type(last):
            self._pieces.append(piece)
        else:
            self._pieces[-1] = replace(last, text=last.text + piece.text)


def plain(turn: StreamParser) -> Steps[None]:
    """Parse an output without calls: all text is content, except further reasoning."""
    turn.holds_spaces = False
    while turn.later is not None:
        yield from turn.content_until()


def plain_parser() -> StreamParser:
    """Return a parser for which all text is content."""
    return StreamParser(plain, Reading())
