"""Parses one turn of the assistant: runs a format's generator on the text and emits parts of the message.

Text that a format does not recognize becomes content: a false start of a call (`StreamParser.attempt`), text after
an error, and everything after the format's generator has ended. But if the text is truncated inside a call, or in
markup that is expected after one, the partial markup is dropped. A truncated marker elsewhere is content.
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
class ParserOptions:
    """Settings of a parser. ``separate_reasoning`` and ``reasoning_in_content`` follow from reasoning_format."""

    functions: Mapping[str, Schema] = field(default_factory=dict)  # the parameters' schemas; empty if unknown
    callable: bool = True  # whether to parse calls
    forced: bool = False  # the turn has only reasoning and calls, so that all other text is markup
    parallel: bool = True  # False keeps only the first call, as the client requested
    separate_reasoning: bool = True
    reasoning_in_content: bool = False
    id_length: int = 32
    taken: frozenset[str] = frozenset()  # ids of existing calls
    tags: tuple[str, str] | None = None  # of reasoning at the start, before the output that the format's parser parses
    opened: bool = False  # whether the prompt ends inside of that reasoning
    closed: bool = False  # whether the prompt contains its closing tag
    openings: tuple[str, ...] = ()  # markup of calls, which reasoning that never ends may contain
    primer: str = ""  # the end of the prompt, which the format's parser parses first


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

    def __init__(self, parse: Parse, options: ParserOptions, *, n_calls: int = 0) -> None:
        super().__init__()
        self.options, self.n_calls = options, n_calls
        self.holds_spaces = True
        self.later_tags: tuple[str, str] | None = None  # the tags of reasoning that content may contain
        self._parse = parse
        self._pieces: list[Piece] = []
        self._ids: set[str] = set()
        self._in_call = False  # inside text that is a call for sure
        self._spaces: list[str] = []
        self._reasoning_spaces: list[str] = []
        self._in_reasoning = False  # reasoning has started with more than whitespace
        self._has_reasoning = False
        self._line = ""  # the last line of the content, for `later_tags`
        self._fenced = False  # in a code block
        self._has_content = False
        self._steps: Steps[None] | None = parse(self) if options.tags is None else self._reasoning_first(*options.tags)
        if options.tags is None and options.primer:
            self.feed(options.primer)
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
        if not self.options.forced:
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
            found = yield from self.until((*markers, *(self.later_tags or ())), self.content)
            self.settle()
            if found in markers:
                return found
            if not self._is_tag_place():
                self.content(found)
                continue
            assert self.later_tags is not None
            opening, closing = self.later_tags
            if found == opening:
                self.reasoning_tag(opening)
                self.reasoning_tag((yield from self.read_reasoning(closing)))
            self._line = ""
            if not self._has_content:
                yield from self.spaces()
                self.settle()

    def _show(self, text: str) -> None:
        if self.later_tags is not None:
            self._track_lines(text)
        self._put(ContentText, text, len(text.rstrip() if self.holds_spaces else text), self._spaces)

    def _put(self, kind: type[ContentText | Reasoning], text: str, n_sure: int, spaces: list[str]) -> None:
        """Emit the first `n_sure` characters, after the buffered white space, and buffer the others."""
        if n_sure:
            self._emit(kind("".join(spaces) + text[:n_sure]))
            spaces.clear()
        if n_sure < len(text):
            spaces.append(text[n_sure:])

    def _track_lines(self, text: str) -> None:
        """Track the last line of the content, and whether it is in a code block."""
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
        if self.options.reasoning_in_content:
            self._show(text)
        if not self.options.separate_reasoning:
            return
        if not self._in_reasoning:
            text = text.lstrip()
        n_sure = len(text.rstrip())
        if n_sure:
            self._in_reasoning = self._has_reasoning = True
        self._put(Reasoning, text, n_sure, self._reasoning_spaces)

    def reasoning_tag(self, text: str) -> None:
        """Handle a reasoning tag: it separates parts of reasoning, and is content if reasoning stays in the content."""
        self.raw.clear()
        self._in_reasoning = False
        self._reasoning_spaces.clear()
        if self._has_reasoning:
            self._reasoning_spaces.append("\n")
        if self.options.reasoning_in_content:
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

        Calls inside reasoning count if the text ends after them. If reasoning continues or ends, they are reasoning.
        """
        while True:
            found = yield from self._reasoning_until(*ends, *self.options.openings)
            if found not in ends:
                found = yield from self._possible_calls(found, ends)
            if found:
                return found

    def _possible_calls(self, opening: str, ends: tuple[str, ...]) -> Steps[str]:
        """Parse possible calls from `opening` up to one of `ends` and return the end; "" if other text follows."""
        nested = StreamParser(self._parse, replace(self.options, tags=None, primer=""), n_calls=self.n_calls)
        calls: list[Piece] = []

        def take(pieces: list[Piece]) -> None:
            calls.extend(pieces)
            if not all(isinstance(piece, ToolCallBegin | ToolCallArguments) for piece in pieces):
                raise NotMarkup

        try:
            take(nested.feed(opening))
            found = yield from self.until(ends, lambda text: take(nested.feed(text)))
        except NotMarkup:
            last = self.raw.pop() if self.raw else ""
            self.reasoning(opening + self.settle())
            self.back(last)  # it may open another call
            return ""
        except EndOfText:
            self.consume(len(self.text))
            text = opening + self.settle()
            try:
                take(nested.finish(cut=self.cut))
            except NotMarkup:
                calls.clear()
            for piece in calls:
                self._emit(piece)
            if calls:
                self.n_calls = nested.n_calls
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
        options, tag = self.options, opening
        expects_more = options.opened or options.closed
        if not options.opened:
            yield from self.spaces()
            tag = (yield from self.take(opening)) and self.settle()
        if tag:
            if options.separate_reasoning or not options.opened:  # unseparated text does not repeat the prompt's tag
                self.reasoning_tag(tag)
            self.reasoning_tag((yield from self.read_reasoning(closing)))
            yield from self.spaces()
            space, expects_more = self.settle(), True
            if options.reasoning_in_content:
                self.content(space)
        if expects_more and options.separate_reasoning and not options.reasoning_in_content:
            self.later_tags = options.tags
        self.text = options.primer + self.settle() + self.text
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
        return bool(name) and (name in self.options.functions or not self.options.functions)

    def name(self) -> Steps[str]:
        """Return a function's name in markup without quotes. Only known names may contain spaces."""
        name = yield from self.match(TOOL_NAME)
        while any(known.startswith(f"{name} ") for known in self.options.functions) and (yield from self.take(" ")):
            word = yield from self.match(TOOL_NAME)
            longer = f"{name} {word}"
            if not any(f"{known} ".startswith(f"{longer} ") for known in self.options.functions):
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

        Models restart their numbering in each turn, but clients identify calls by id: Claude Code 2.1 treats a repeated
        id as an interrupted call and removes it from its history.
        """
        if not written or written in self.options.taken or written in self._ids:
            written = "".join(secrets.choice(_ALPHABET) for _ in range(self.options.id_length))
        self._ids.add(written)
        return written

    def _write(self, piece: Piece) -> None:
        if self.options.parallel or self.n_calls == 1:
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
    while turn.later_tags is not None:
        yield from turn.content_until()


def plain_parser() -> StreamParser:
    """Return a parser for which all text is content."""
    return StreamParser(plain, ParserOptions())
