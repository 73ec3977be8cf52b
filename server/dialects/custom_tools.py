"""OpenAI's custom tools, in Chat Completions and Responses: a text input instead of JSON arguments.

The model sees a function with one string parameter. A grammar (Lark or a regex) for the input is part of the
description, and is enforced or rejected: except for a truncated call, no call that violates it reaches the client. The
input is decoded from the function's arguments, ``{"input": "..."}``, as they are generated.
"""

import json
import re
from collections.abc import Container, Mapping
from typing import Any

import pydantic_core

from server.chat.assembler import NewParser
from server.chat.conversation import Tool
from server.dialects.fields import as_object, wrong_type
from server.errors import invalid
from server.formats.grammar.argument_rules import INPUT
from server.formats.parsing.pieces import Piece, ToolCallArguments, ToolCallBegin
from server.formats.parsing.reasoning import OutputParser
from server.structured.text_grammar import TextGrammar

_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
_NAMES = {"lark": "Lark grammar", "regex": "regular expression"}


MAX_GRAMMAR_CHARS = 32_768
"""Characters of all grammars of one request's custom tools. Codex's grammar has 1,100."""


def custom_tool(name: str, description: str, given: object, path: str) -> Tool:
    """Return the function for a custom tool. `given`: its ``format``, at `path`. Raises `InvalidRequest`."""
    grammar = _grammar(given, path)
    if grammar is None:
        return Tool(name, description, _PARAMETERS, at=path)
    format_text = f"The {INPUT} matches this {_NAMES[grammar.syntax]}:\n{grammar.definition}"
    return Tool(name, f"{description}\n\n{format_text}".strip(), _PARAMETERS, at=path, text=grammar)


def _grammar(given: object, path: str) -> TextGrammar | None:
    if given is None:
        return None
    given = as_object(given, path)
    match given.get("type"):
        case "text":
            return None
        case "grammar":
            inner = given.get("grammar", given)  # Chat Completions has one more level
            inner, path = (inner, f"{path}.grammar") if inner is not given else (given, path)
        case _:
            raise invalid(f"{path}.type", 'must be "text" or "grammar"')
    inner = as_object(inner, path)
    syntax, definition = inner.get("syntax"), inner.get("definition")
    if syntax not in ("lark", "regex"):
        raise invalid(f"{path}.syntax", 'must be "lark" or "regex"')
    if not isinstance(definition, str) or not definition:
        raise wrong_type(f"{path}.definition", "a grammar", definition)
    return TextGrammar(syntax, definition)


_OPENING = re.compile(r'\s*\{\s*"' + INPUT + r'"\s*:\s*"')
_COMPLETE = re.compile(
    r'(?:[^\\"]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB]..\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL
)
"""Characters, complete escapes and complete surrogate pairs, up to the closing quote."""


class _InputParser:
    """An `OutputParser` that replaces the arguments of custom tool calls by their input."""

    def __init__(self, parser: OutputParser, names: Container[str]) -> None:
        self._parser, self._names = parser, names
        self._index = -1  # of the current custom tool call
        self._pending = ""  # its arguments that are not decoded yet
        self._has_started = self._has_ended = False  # its input

    def feed(self, text: str) -> list[Piece]:
        return self._decoded(self._parser.feed(text))

    def finish(self, *, cut: bool = False) -> list[Piece]:
        return [*self._decoded(self._parser.finish(cut=cut)), *self._ended(cut=cut)]

    def _decoded(self, pieces: list[Piece]) -> list[Piece]:
        decoded: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, ToolCallArguments) and piece.index == self._index:
                if text := self._input_in(piece.text):
                    decoded.append(ToolCallArguments(piece.index, text))
                continue
            decoded += self._ended()
            decoded.append(piece)
            if isinstance(piece, ToolCallBegin) and piece.name in self._names:
                self._index, self._pending, self._has_started, self._has_ended = piece.index, "", False, False
        return decoded

    def _input_in(self, arguments: str) -> str:
        """Return the part of the input that can be decoded after the next `arguments`."""
        if self._has_ended:
            return ""
        self._pending += arguments
        if not self._has_started:
            opened = _OPENING.match(self._pending)
            if opened is None:
                return ""
            self._has_started, self._pending = True, self._pending[opened.end() :]
        found = _COMPLETE.match(self._pending)
        end = 0 if found is None else found.end()
        written, self._pending = self._pending[:end], self._pending[end:]
        self._has_ended = self._pending.startswith('"')
        try:
            return str(json.loads(f'"{written}"', strict=False)).encode(errors="replace").decode()
        except ValueError:
            return written  # an invalid escape

    def _ended(self, *, cut: bool = False) -> list[Piece]:
        """End the current call, which a limit `cut`. Return its input if the arguments lacked the expected syntax."""
        index, self._index = self._index, -1
        if index < 0 or self._has_started:
            return []
        try:
            given = pydantic_core.from_json(self._pending, allow_partial="trailing-strings")
        except ValueError:
            given = None
        value = given.get(INPUT) if isinstance(given, dict) else None
        text = value if isinstance(value, str) else "" if cut and isinstance(given, dict) else self._pending
        return [ToolCallArguments(index, text)] if text else []


def input_parser(parser: NewParser, names: Container[str]) -> NewParser:
    """Return a parser that replaces the arguments of calls of the custom tools `names` by their input."""
    return (lambda: _InputParser(parser(), names)) if names else parser


def input_arguments(text: str) -> str:
    """Return the arguments, as the model generates them, of a call with the input `text`."""
    return json.dumps({INPUT: text}, ensure_ascii=False)
