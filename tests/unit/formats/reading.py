"""Feeds parsers and sums up what came."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from server.formats import BY_NAME
from server.formats.chat_format import ChatFormat
from server.formats.parsing.pieces import ContentText, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from server.formats.parsing.reasoning import OutputParser
from server.formats.parsing.stream_parser import StreamParser
from tests.unit.formats.recorded import TOOLS


@dataclass
class Read:
    """A message."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list, compare=False)

    def take(self, pieces: Iterable[Piece]) -> None:
        """Add pieces; checks their order."""
        for piece in pieces:
            match piece:
                case ContentText(text):
                    assert text
                    self.content += text
                case Reasoning(text):
                    assert text
                    self.reasoning += text
                case ToolCallBegin(index, id, name):
                    assert index == len(self.calls)
                    assert id
                    assert name
                    self.calls.append((name, ""))
                    self.ids.append(id)
                case ToolCallArguments(index, text):
                    assert index == len(self.calls) - 1
                    assert text
                    self.calls[index] = (self.calls[index][0], self.calls[index][1] + text)


def functions_of(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """OpenAI's tools as functions."""
    return [tool["function"] for tool in tools]


@cache
def chat_format(form: str, sign: str = "") -> ChatFormat:
    """The format with that name, for a template whose source is `sign`."""
    return ChatFormat.of(BY_NAME[form], sign)


def forced_calls(form: str, sign: str, tools: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """The grammar of forced calls in that format."""
    return chat_format(form, sign).forced_calls(functions_of(tools), **options)


def prompt_of(form: str) -> str:
    """How the prompt begins the assistant's turn in that format."""
    return BY_NAME[form].turn_start + (">>>" if form == "functionary-v3.2" else "")


def parser(
    form: str, *, sign: str = "", prompt: str = "", tools: Sequence[Mapping[str, Any]] = TOOLS, **options: Any
) -> StreamParser:
    """For turns of that format, by default with the recorded tools."""
    return chat_format(form, sign).parser(functions_of(tools), generation_prompt=prompt, **options)


def read(made: OutputParser, text: str, cuts: Sequence[int] = ()) -> Read:
    """The message of a text that comes in pieces."""
    found = Read()
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found.take(made.feed(text[start:end]))
    found.take(made.finish())
    return found


def every_character(text: str) -> list[int]:
    """The cuts that feed a text character by character."""
    return list(range(1, len(text)))
