"""The description of a model family's format: data, from which its parser, its markup and its recognition derive.

Each file in `families` defines formats as constants. `grammar` creates grammars from the syntax, `written` examples.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from functools import cached_property

from server.formats.calls import python_calls
from server.formats.calls.json_calls import JsonCalls, json_or
from server.formats.calls.parameters import parameter_calls
from server.formats.parsing.frame import answer_tags, call_first, frame
from server.formats.parsing.reasoning import open_reasoning, reasoning_first
from server.formats.parsing.stream_parser import Parse, Parser, Reading, anywhere, plain
from server.formats.tool_call_syntax import Keywords, Parameters, ToolCallSyntax

_TAG = re.compile(r"</?[^<>\s]+>|\[/?[A-Za-z_]+\d*\]")


@dataclass(frozen=True, eq=False)
class ToolFormat:
    """``syntax``: the syntax of calls. ``variants``: other syntaxes, each after a text that only templates of its
    models have. ``recognised_by``: groups of texts; a template that has all of a group uses this format. By default:
    the markup before and after calls.

    Parsing. ``calls``: the parsers of calls by their openings, by default those of the syntaxes. ``call_first``: a
    character, and the parser of calls that start a message with it. ``silent``: markup without meaning. ``parser``:
    parses the output if its structure is another. ``tags``: markup besides all that, which the parser needs even if it
    is a control token.

    Reasoning and replies. ``inline_reasoning``: the tags around reasoning, if it may be anywhere; one of ``breaks``
    also ends it. ``answer_tags`` may be around a reply. ``leads``: markup before a reply: the first one that the
    template has, otherwise the first of all. ``again``: markup that reopens the turn after reasoning. ``preamble``
    replaces the lead of a reply before text that precedes a call. ``turn_start``: the last one in the prompt begins the
    turn. ``id_length``: characters of generated call ids.
    """

    name: str
    syntax: ToolCallSyntax
    variants: tuple[tuple[str, ToolCallSyntax], ...] = ()
    recognised_by: tuple[tuple[str, ...], ...] = ()
    calls: Mapping[str, Parse] = field(default_factory=dict)
    call_first: tuple[str, Parse] | None = None
    silent: tuple[str, ...] = ()
    parser: Parse | None = None
    tags: tuple[str, ...] = ()
    inline_reasoning: tuple[str, str] | None = None
    breaks: tuple[str, ...] = ()
    answer_tags: tuple[str, str] | None = None
    leads: tuple[str, ...] = ()
    again: str = ""
    preamble: str = ""
    turn_start: str = ""
    id_length: int = 32

    @property
    def framed(self) -> bool:
        """Return whether content and reasoning have their own markup, so that outputs without tools are parsed, too."""
        return bool(self.turn_start or self.answer_tags)

    @property
    def call_forms(self) -> tuple[ToolCallSyntax, ...]:
        """Return the syntax of calls and its variants."""
        return self.syntax, *(form for _, form in self.variants)

    @cached_property
    def openings(self) -> tuple[str, ...]:
        """Return the markup that opens calls at any position."""
        found = (text for form in self.call_forms for text in form.openings)
        return tuple(dict.fromkeys((*found, *self.calls)))

    @cached_property
    def markup(self) -> tuple[str, ...]:
        """Return the tags in all markup, any of which may be a control token of a vocabulary."""
        own = (*self.calls, self.silent, self.inline_reasoning, self.breaks, self.answer_tags, self.leads)
        texts = _texts((*map(astuple, self.call_forms), *own))
        return tuple(dict.fromkeys((*(tag for text in texts for tag in _TAG.findall(text)), *self.tags)))

    @cached_property
    def parse(self) -> Parse:
        """Return the parser of outputs."""
        if self.parser is not None:
            return self.parser
        calls = self.calls or {text: _parser(form) for form in self.call_forms for text in form.openings}
        if self.inline_reasoning is not None:
            return frame(self.inline_reasoning, self.silent, calls, breaks=self.breaks, openings=self.openings)
        if self.answer_tags is not None:
            return answer_tags(*self.answer_tags, calls)
        parse = anywhere(calls, *self.silent)
        return parse if self.call_first is None else call_first(*self.call_first, parse)

    @property
    def signs(self) -> tuple[tuple[str, ...], ...]:
        """Return the groups of texts by which a template is recognised; () for none."""
        markup = (*self.syntax.openings, *filter(None, [self.syntax.closing]))
        return self.recognised_by or ((markup,) if self.syntax.openings else ())

    def matches(self, source: str) -> bool:
        """Return whether a template with that source uses this format."""
        return any(all(sign in source for sign in group) for group in self.signs)

    def tool_call_syntax(self, source: str) -> ToolCallSyntax:
        """Return the syntax of calls for a template with that source."""
        return next((form for sign, form in self.variants if sign in source), self.syntax)

    def lead(self, source: str) -> str:
        """Return the markup before a reply for a template with that source."""
        return next((lead for lead in self.leads if lead in source), self.leads[0] if self.leads else "")

    def reader(
        self, how: Reading, tags: tuple[str, str], generation_prompt: str, *, opened: bool | None = None
    ) -> Parser:
        """Return the parser of an output: reasoning, content and calls. `generation_prompt` is its start.

        ``tags``: the reasoning tags. ``opened``: whether `generation_prompt` ends inside of reasoning; None: unknown.
        """
        has_markup = how.callable or self.framed
        parse, primer = (self.parse, self._primer(generation_prompt)) if has_markup else (plain, "")
        if self.inline_reasoning is not None or not (how.separate_reasoning or how.callable):
            return Parser(parse, how, primer=primer)
        openings = self.openings if how.callable else ()
        if opened is None:
            opened = open_reasoning(generation_prompt, tags) is not None
        closed = tags[1] in generation_prompt
        return Parser(reasoning_first(parse, tags, opened=opened, closed=closed, openings=openings, primer=primer), how)

    def _primer(self, generation_prompt: str) -> str:
        """Return the start of the assistant's turn in the prompt."""
        if not self.turn_start:
            begun = (generation_prompt.rfind(lead.strip()) for lead in self.leads)
            return generation_prompt[at:] if (at := max(begun, default=-1)) >= 0 else ""
        return generation_prompt.rpartition(self.turn_start)[2]  # some templates write the start into every prompt


def _parser(form: ToolCallSyntax) -> Parse:
    """Return the parser of calls after an opening. Instead of another notation, JSON objects are parsed, too."""
    match form.arguments:
        case Keywords():
            return python_calls.calls
        case Parameters():
            return json_or(JsonCalls.of(form), parameter_calls(form))
    return JsonCalls.of(form).calls


def _texts(described: object) -> Iterator[str]:
    """Yield the texts in nested tuples."""
    if isinstance(described, str):
        yield described
    elif isinstance(described, tuple):
        for part in described:
            yield from _texts(part)
