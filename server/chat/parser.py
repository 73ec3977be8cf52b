"""What the generated text means: content, reasoning, tool calls. Incremental: `feed` as text comes, then `finish`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from server.chat import hermes
from server.chat.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from server.chat.reasoning import ReasoningParser, thinking_tags
from server.chat.template import ChatTemplate
from server.errors import InvalidRequest

__all__ = [
    "Content",
    "OutputParser",
    "Piece",
    "Reasoning",
    "ToolCallArguments",
    "ToolCallBegin",
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

    Tool calls are read in the Hermes form where the template speaks it; other templates' calls stay content.
    ``reasoning_format`` is llama-server's: none, deepseek, deepseek-legacy, auto (= deepseek).
    """
    source = template.tool_source if tools else template.source
    inner: OutputParser = PlainParser()
    if parse_tools and hermes.OPEN in source:
        inner = hermes.HermesParser(parallel=parallel_tool_calls)
    if reasoning_format == "none":
        return inner
    return ReasoningParser(
        inner, thinking_tags(source), generation_prompt, keep_in_content=reasoning_format == "deepseek-legacy"
    )


def forced_call_grammar(
    template: ChatTemplate, tools: Sequence[Mapping[str, Any]], *, name: str, parallel: bool
) -> str:
    """Lark (llguidance's dialect) for ``tool_choice`` required, or the one function `name`: nothing but calls.

    Raises `InvalidRequest` when the template's form of a call is not known here.
    """
    if hermes.OPEN not in template.tool_source:
        raise InvalidRequest(
            "tool_choice: forcing a call needs a chat template with <tool_call> tags; this model's has none",
            "tool_choice",
        )
    wanted = [t["function"] for t in tools if not name or t["function"]["name"] == name]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": f["name"]}, "arguments": f.get("parameters") or {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for f in wanted
    ]
    more = ' ("\\n" call)*' if parallel and not name else ""
    schema = json.dumps({"anyOf": calls} if len(calls) > 1 else calls[0])
    return f'start: call{more}\ncall: "{hermes.OPEN}\\n" body "\\n{hermes.CLOSE}"\nbody: %json {schema}\n'
