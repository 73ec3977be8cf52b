"""What reads a turn of a format: thoughts, content and calls."""

from dataclasses import dataclass

from server.formats.form import ToolFormat
from server.formats.parsing.pieces import ContentText, Piece
from server.formats.parsing.reasoning import OutputParser, ReasoningParser
from server.formats.parsing.turn import Parser, Reading


@dataclass(slots=True)
class PlainParser:
    """Everything is content."""

    def feed(self, text: str) -> list[Piece]:
        return [ContentText(text)] if text else []

    def finish(self, *, cut: bool = False) -> list[Piece]:
        return []


def reader_of(form: ToolFormat, how: Reading, tags: tuple[str, str], generation_prompt: str) -> OutputParser:
    """Reads turns of that format, which `generation_prompt` has begun; ``tags`` stand around thoughts."""
    inner: OutputParser = PlainParser()
    if how.callable or form.framed:
        inner = Parser(form.parse, how, primer=_primer(form, generation_prompt))
    if form.thinks or not (how.thoughts_apart or how.callable):
        return inner
    openings = form.openings if how.callable else ()
    return ReasoningParser(inner, tags, generation_prompt, how=how, openings=openings, parse=form.parse)


def _primer(form: ToolFormat, generation_prompt: str) -> str:
    """The part of the assistant's turn that the prompt has begun."""
    if not form.turn_start:
        begun = (generation_prompt.rfind(lead.strip()) for lead in form.leads)
        return generation_prompt[at:] if (at := max(begun, default=-1)) >= 0 else ""
    return generation_prompt.rpartition(form.turn_start)[2]  # some templates write the start into every prompt
