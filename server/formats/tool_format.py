"""The description of a call format; each file in `families` defines one as ``FORMAT``."""

from collections.abc import Callable
from dataclasses import dataclass

from server.formats.parsing.reader import Steps
from server.formats.parsing.reasoning import open_reasoning, reasoning_first
from server.formats.parsing.stream_parser import Parser, Reading, StreamParser, plain
from server.formats.tool_call_syntax import ToolCallSyntax


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """``parse`` parses the output. ``recognised_by``: groups of texts; a template that has all of a group uses this
    format.

    ``reasoning_tags``: the tags around reasoning, if the template's source doesn't show them. ``leads``: markup before
    an answer: the first one that the template has, otherwise the first of all. ``again``: markup that reopens the turn
    after reasoning. ``preamble`` replaces the lead of a reply before text that precedes a call.

    ``tags``: markup that the parser needs even if it is a control token. ``framed``: content and reasoning have their
    own markup, so outputs without tools are parsed as well, after the part of the prompt from the last ``turn_start``.
    ``reads_reasoning``: the format parses reasoning itself; it may be anywhere, and one of ``breaks`` also ends it.
    ``also_opened_by``: other texts that open a call for the parser, because models omit markup. ``forced``: the syntax
    of calls in grammars. ``variants``: other syntaxes, each after a text that only templates of its models have.
    """

    name: str
    parse: Callable[[StreamParser], Steps[None]]
    recognised_by: tuple[tuple[str, ...], ...]
    forced: ToolCallSyntax
    tags: tuple[str, ...] = ()
    framed: bool = False
    reads_reasoning: bool = False
    turn_start: str = ""
    reasoning_tags: tuple[str, str] | None = None
    leads: tuple[str, ...] = ()
    preamble: str = ""
    again: str = ""
    breaks: tuple[str, ...] = ()
    also_opened_by: tuple[str, ...] = ()
    id_length: int = 32
    variants: tuple[tuple[str, ToolCallSyntax], ...] = ()

    def matches(self, source: str) -> bool:
        """Return whether a template with that source uses this format."""
        return any(all(sign in source for sign in group) for group in self.recognised_by)

    @property
    def call_forms(self) -> tuple[ToolCallSyntax, ...]:
        """Return the syntax of calls and its variants."""
        return self.forced, *(form for _, form in self.variants)

    @property
    def openings(self) -> tuple[str, ...]:
        """Return the markup that opens calls at any position."""
        found = (text for form in self.call_forms for text, at_start in form.all_triggers if text and not at_start)
        return tuple(dict.fromkeys((*found, *self.also_opened_by)))

    def tool_call_syntax(self, source: str) -> ToolCallSyntax:
        """Return the syntax of calls for a template with that source."""
        return next((form for sign, form in self.variants if sign in source), self.forced)

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
        if self.reads_reasoning or not (how.separate_reasoning or how.callable):
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
