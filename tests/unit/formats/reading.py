"""Feeds parsers and sums up what came."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from server.formats import BY_NAME
from server.formats.parsing.pieces import ContentText, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from server.formats.parsing.reasoning import OutputParser
from server.templates.template import ChatTemplate
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


def forced_call_grammar(template: ChatTemplate, tools: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """The grammar of forced calls in the template's format."""
    return template.chat_format().forced_calls(functions_of(tools), **options)


def output_parser(
    template: ChatTemplate,
    *,
    tools: Sequence[Mapping[str, Any]],
    parse_tools: bool,
    reasoning_format: str,
    generation_prompt: str,
    parallel_tool_calls: bool,
) -> OutputParser:
    """A parser of what a model with that template writes."""
    return template.chat_format(tools=bool(tools)).parser(
        functions_of(tools),
        generation_prompt=generation_prompt,
        reasoning_format=reasoning_format,
        parse_calls=parse_tools,
        parallel=parallel_tool_calls,
    )


@cache
def template(form: str = "auto", sign: str = "") -> ChatTemplate:
    """A template that says nothing but `sign`; compiling and probing one takes 20 ms."""
    source = "{{ messages[0].content }}{{ tools | tojson if tools }}{# " + sign + " #}"
    return ChatTemplate(source, bos_token="", eos_token="", tool_format=form)


def prompt_of(form: str) -> str:
    """How the prompt begins the assistant's turn in that format."""
    return BY_NAME[form].turn_start + (">>>" if form == "functionary-v3.2" else "")


def parser(form: str, *, sign: str = "", prompt: str = "", **options: Any) -> OutputParser:
    """For turns of that format, with the recorded tools."""
    given: dict[str, Any] = {
        "tools": TOOLS,
        "parse_tools": True,
        "reasoning_format": "auto",
        "parallel_tool_calls": True,
        **options,
    }
    return output_parser(template(form, sign), generation_prompt=prompt, **given)


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
