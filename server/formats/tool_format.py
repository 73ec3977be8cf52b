"""The description of a call format; each file in `families` defines one as ``FORMAT``."""

from collections.abc import Callable
from dataclasses import dataclass

from server.formats.parsing.reader import Steps
from server.formats.parsing.reasoning import OutputParser, PlainParser, ReasoningParser
from server.formats.parsing.stream_parser import Parser, Reading, StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """``parse`` reads a turn. ``recognised_by``: groups of texts; a template that has all of a group uses this format.

    ``thoughts``: what stands around thoughts, where the template's source doesn't show it. ``leads``: markup in front
    of an answer, the first of it that a template has (else the first of all), and ``again``: what opens the turn anew
    behind thoughts.

    ``preamble`` replaces the lead of a reply before text that precedes a call.

    ``tags``: markup that the parser must see even where it is a control token. ``framed``: content and thoughts have
    markup of their own, so that it reads turns without tools, too; a part of the prompt from the last ``turn_start`` on
    is read first. ``thinks``: it reads thoughts itself, which may stand anywhere, and end with one of ``breaks``, too.
    ``also_opened_by``: what else opens a call that the parser reads, where models leave out markup.
    ``forced``: how a call is enforced by a grammar. ``variants``: other ways to write it, each
    behind a text in the template by which its models are known.
    """

    name: str
    parse: Callable[[StreamParser], Steps[None]]
    recognised_by: tuple[tuple[str, ...], ...]
    forced: ToolCallSyntax
    tags: tuple[str, ...] = ()
    framed: bool = False
    thinks: bool = False
    turn_start: str = ""
    thoughts: tuple[str, str] | None = None
    leads: tuple[str, ...] = ()
    preamble: str = ""
    again: str = ""
    breaks: tuple[str, ...] = ()
    also_opened_by: tuple[str, ...] = ()
    id_length: int = 32
    variants: tuple[tuple[str, ToolCallSyntax], ...] = ()

    def speaks(self, source: str) -> bool:
        """Whether a template with that source uses this format."""
        return any(all(sign in source for sign in group) for group in self.recognised_by)

    @property
    def call_forms(self) -> tuple[ToolCallSyntax, ...]:
        """All ways to write calls."""
        return self.forced, *(form for _, form in self.variants)

    @property
    def openings(self) -> tuple[str, ...]:
        """Markup that opens calls anywhere in a text."""
        found = (text for form in self.call_forms for text, at_start in form.beginnings if text and not at_start)
        return tuple(dict.fromkeys((*found, *self.also_opened_by)))

    def tool_call_syntax(self, source: str) -> ToolCallSyntax:
        """How a model with a template of that source writes its calls."""
        return next((form for sign, form in self.variants if sign in source), self.forced)

    def lead(self, source: str) -> str:
        """Return the markup before a reply for a template with that source."""
        return next((lead for lead in self.leads if lead in source), self.leads[0] if self.leads else "")

    def reader(self, how: Reading, thought_tags: tuple[str, str], generation_prompt: str) -> OutputParser:
        """Return the parser of a turn: reasoning, content and calls. `generation_prompt` is its start;
        ``thought_tags``: the reasoning tags.
        """
        inner: OutputParser = PlainParser()
        if how.callable or self.framed:
            inner = Parser(self.parse, how, primer=self._primer(generation_prompt))
        if self.thinks or not (how.thoughts_apart or how.callable):
            return inner
        openings = self.openings if how.callable else ()
        return ReasoningParser(inner, thought_tags, generation_prompt, how=how, openings=openings, parse=self.parse)

    def _primer(self, generation_prompt: str) -> str:
        """The part of the assistant's turn that the prompt has begun."""
        if not self.turn_start:
            begun = (generation_prompt.rfind(lead.strip()) for lead in self.leads)
            return generation_prompt[at:] if (at := max(begun, default=-1)) >= 0 else ""
        return generation_prompt.rpartition(self.turn_start)[2]  # some templates write the start into every prompt
