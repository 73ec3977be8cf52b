"""Builders for parsers of a format, and the message that a parser returns for a text."""

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
class ParsedMessage:
    """The message that a parser's pieces add up to. Messages with different call ids are equal."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list, compare=False)

    def add(self, pieces: Iterable[Piece]) -> None:
        """Append pieces. Asserts that none is empty and that call indexes are consecutive."""
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
    """Return the functions of OpenAI's tools."""
    return [tool["function"] for tool in tools]


@cache
def chat_format(name: str, template: str = "") -> ChatFormat:
    """Return the named format for a template with that source."""
    return ChatFormat.of(BY_NAME[name], template)


def forced_calls(format_name: str, template: str, tools: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """Return the Lark grammar of forced calls."""
    return chat_format(format_name, template).forced_calls(functions_of(tools), **options)


def generation_prompt_of(name: str) -> str:
    """Return the start of the assistant's turn in the prompt."""
    return BY_NAME[name].turn_start + (">>>" if name == "functionary-v3.2" else "")


def make_parser(
    name: str, *, template: str = "", prompt: str = "", tools: Sequence[Mapping[str, Any]] = TOOLS, **options: Any
) -> StreamParser:
    """Create a parser of the named format, by default with the recorded tools."""
    return chat_format(name, template).parser(functions_of(tools), generation_prompt=prompt, **options)


def parse_text(parser: OutputParser, text: str, splits: Sequence[int] = ()) -> ParsedMessage:
    """Feed a text in chunks, split at these positions, and return the message."""
    message = ParsedMessage()
    for start, end in zip([0, *splits], [*splits, len(text)], strict=True):
        message.add(parser.feed(text[start:end]))
    message.add(parser.finish())
    return message


def every_character(text: str) -> list[int]:
    """Return the splits that feed a text character by character."""
    return list(range(1, len(text)))
