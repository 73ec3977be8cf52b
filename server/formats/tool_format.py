"""The description of a model family's format: data, from which its parser, its markup and its recognition derive.

Each file in `families` defines formats as constants. `grammar` creates grammars from the syntax, `written` examples.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from functools import cached_property

from server.formats.calls import python_calls
from server.formats.calls.json_calls import calls_by_opening
from server.formats.calls.parameters import parameter_calls
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import Parse, StreamParser
from server.formats.tool_call_syntax import Keywords, Parameters, ToolCallSyntax

_TAG = re.compile(r"</?[^<>\s]+>|\[/?[A-Za-z_]+\d*\]")


@dataclass(frozen=True, slots=True)
class FirstCall:
    """Calls without an opening at the start of a message."""

    starts: str  # the possible first characters
    parse: Parse
    openings: tuple[str, ...] = ()  # optional markup before the calls
    closings: tuple[str, ...] = ()  # optional markup after the calls


@dataclass(frozen=True, eq=False)
class ToolFormat:
    """One family's format of tool calls, reasoning and replies."""

    name: str
    syntax: ToolCallSyntax
    variants: tuple[tuple[str, ToolCallSyntax], ...] = ()  # each with a text in templates that use it
    recognised_by: tuple[tuple[str, ...], ...] = ()
    """Groups of texts: a template that has all of a group uses this format. By default: the markup around calls."""
    calls: Mapping[str, Parse] = field(default_factory=dict)  # parser for each opening; default: from the syntaxes
    first_call: FirstCall | None = None  # calls that start a message
    dropped: tuple[str, ...] = ()  # markup that is removed from the output
    parser: Parse | None = None  # replaces `parse` if the output has another structure
    tags: tuple[str, ...] = ()  # further markup that the parser needs even if it is a control token
    inline_reasoning: tuple[str, str] | None = None  # the tags of reasoning that may be anywhere in the output
    breaks: tuple[str, ...] = ()  # further texts that end such reasoning
    answer_tags: tuple[str, str] | None = None  # optional tags around a reply
    leads: tuple[str, ...] = ()  # markup before a reply: the first one that the template has, otherwise the first
    again: str = ""  # markup that reopens the turn after reasoning
    preamble: str = ""  # replaces the lead of a reply before text that precedes a call
    turn_start: str = ""  # markup whose last occurrence in the prompt starts the turn
    id_length: int = 32  # characters of generated call ids

    @property
    def framed(self) -> bool:
        """Return whether content and reasoning have their own markup, so that outputs without tools are parsed, too."""
        return bool(self.turn_start or self.answer_tags)

    @property
    def syntaxes(self) -> tuple[ToolCallSyntax, ...]:
        """Return the syntax of calls, and its variants."""
        return self.syntax, *(variant for _, variant in self.variants)

    @cached_property
    def openings(self) -> tuple[str, ...]:
        """Return the markup that opens calls at any position."""
        found = (text for syntax in self.syntaxes for text in syntax.openings)
        return tuple(dict.fromkeys((*found, *self.calls)))

    @cached_property
    def markup(self) -> tuple[str, ...]:
        """Return the tags in all markup, any of which may be a control token of a vocabulary."""
        own = (*self.calls, self.dropped, self.inline_reasoning, self.breaks, self.answer_tags, self.leads)
        texts = _texts((*map(astuple, self.syntaxes), *own))
        return tuple(dict.fromkeys((*(tag for text in texts for tag in _TAG.findall(text)), *self.tags)))

    @property
    def signs(self) -> tuple[tuple[str, ...], ...]:
        """Return the groups of texts by which a template is recognised; () for none."""
        markup = tuple(filter(None, (*self.syntax.openings, self.syntax.closing)))
        return self.recognised_by or ((markup,) if self.syntax.openings else ())

    def matches(self, source: str) -> bool:
        """Return whether a template with that source uses this format."""
        return any(all(sign in source for sign in group) for group in self.signs)

    def parse(self, turn: StreamParser) -> Steps[None]:
        """Parse an output after the reasoning at its start."""
        if self.parser is not None:
            yield from self.parser(turn)
            return
        calls = self._parsers if turn.options.callable else {}
        opening, closing = self.inline_reasoning or ("", "")
        markers = (*(self.inline_reasoning or ()), *self.dropped, *calls)
        if self.first_call is not None and turn.options.callable:
            yield from _first_call(turn, self.first_call)
        if self.answer_tags is not None and (yield from turn.skip(self.answer_tags[0])):
            yield from turn.spaces()
            turn.settle()
            markers = (*markers, self.answer_tags[1])
        turn.give_back()
        while markers or turn.later_tags:
            found = yield from turn.content_until(*markers)
            if found in calls:
                yield from turn.attempt(found, calls[found](turn))
            elif found == opening:
                turn.reasoning_tag(found)
                if (yield from turn.read_reasoning(closing, *self.breaks)) == closing:
                    turn.reasoning_tag(closing)
            elif self.answer_tags is not None and found == self.answer_tags[1]:
                turn.drop_spaces()
                yield from turn.spaces()
                turn.settle()

    @cached_property
    def _parsers(self) -> Mapping[str, Parse]:
        """Return the parser of calls for each opening."""
        if self.calls:
            return self.calls
        return {opening: parse for syntax in self.syntaxes for opening, parse in parsers_of(syntax).items()}


def parsers_of(syntax: ToolCallSyntax) -> Mapping[str, Parse]:
    """Return the parser of a syntax's calls for each opening. Arguments may also be a JSON object."""
    if isinstance(syntax.arguments, Keywords):
        return dict.fromkeys(syntax.openings, python_calls.calls)
    other = parameter_calls(syntax) if isinstance(syntax.arguments, Parameters) else None
    separator = syntax.separator.strip() or ","
    return calls_by_opening(*syntax.openings, close=syntax.closing, separator=separator, other=other)


def _first_call(turn: StreamParser, first: FirstCall) -> Steps[None]:
    def calls() -> Steps[None]:
        yield from first.parse(turn)
        if first.closings:
            yield from turn.skip(*first.closings)

    yield from turn.spaces()
    yield from turn.take(*first.openings)
    yield from turn.spaces()
    if (char := (yield from turn.peek())) and char in first.starts:
        yield from turn.attempt(turn.settle(), calls(), doubtful=True)


def _texts(described: object) -> Iterator[str]:
    """Yield the texts in nested tuples."""
    if isinstance(described, str):
        yield described
    elif isinstance(described, tuple):
        for part in described:
            yield from _texts(part)
