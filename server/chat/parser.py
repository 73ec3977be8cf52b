"""What the generated text means: content, reasoning, tool calls. Incremental: `feed` as text comes, then `finish`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from server.chat import hermes, llama3, mistral
from server.chat.calls import CallFormat, CallParser
from server.chat.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from server.chat.reasoning import ReasoningParser, thinking_tags
from server.chat.template import ChatTemplate
from server.chat.tool_choice import Control, calls_lark
from server.errors import InvalidRequest

__all__ = [
    "Content",
    "OutputParser",
    "Piece",
    "Reasoning",
    "ToolCallArguments",
    "ToolCallBegin",
    "call_format",
    "call_tags",
    "forced_call_grammar",
    "output_parser",
]


class OutputParser(Protocol):
    """Reads one choice's text."""

    def feed(self, text: str) -> list[Piece]:
        """What is certain now."""

    def finish(self) -> list[Piece]:
        """What was held back; the text is complete."""


@dataclass(slots=True)
class PlainParser:
    """Everything is content."""

    def feed(self, text: str) -> list[Piece]:
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


def output_parser(
    template: ChatTemplate,
    *,
    tools: bool,
    parse_tools: bool,
    reasoning_format: str,
    generation_prompt: str,
    parallel_tool_calls: bool,
) -> OutputParser:
    """A new parser for one choice.

    Tool calls are read in the form that the template shows (`call_format`); those of unknown forms stay content.
    ``reasoning_format`` is llama-server's: none, deepseek, deepseek-legacy, auto (= deepseek).
    """
    source = template.tool_source if tools else template.source
    inner: OutputParser = PlainParser()
    form = call_format(source) if parse_tools else None
    if form is not None:
        inner = CallParser(form, parallel=parallel_tool_calls)
    if reasoning_format == "none":
        return inner
    return ReasoningParser(
        inner, thinking_tags(source), generation_prompt, keep_in_content=reasoning_format == "deepseek-legacy"
    )


def forced_call_grammar(
    template: ChatTemplate,
    tools: Sequence[Mapping[str, Any]],
    *,
    name: str,
    parallel: bool,
    control: Control | None = None,
) -> str:
    """Lark (llguidance's dialect) for ``tool_choice`` required, or the one function `name`: nothing but calls.

    ``control``: `GrammarCompiler.control_token` of the model, for vocabularies whose tags are control tokens.
    Raises `InvalidRequest` when the template's form of a call is not known here.
    """
    form = call_format(template.tool_source)
    if form is None:
        raise InvalidRequest(
            "tool_choice: forcing a call needs a chat template whose form of a tool call is known (<tool_call> tags, "
            "Llama 3, Mistral's list); this model's is not",
            "tool_choice",
        )
    wanted = [tool["function"] for tool in tools if not name or tool["function"]["name"] == name]
    return calls_lark(form, wanted, parallel=parallel and not name, control=control)


def call_format(source: str) -> CallFormat | None:
    """How a template with that source has calls written; None when that is not known here."""
    return next((module.FORMAT for module in (hermes, llama3, mistral) if module.speaks(source)), None)


def call_tags(template: ChatTemplate) -> tuple[str, ...]:
    """The tags around calls, which the parser must see even where they are control tokens."""
    form = call_format(template.tool_source)
    return () if form is None else tuple(tag for tag in (form.open, form.close) if tag)
