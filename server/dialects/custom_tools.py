"""OpenAI's custom tools, in chat and Responses: one text instead of JSON arguments, which a grammar may constrain.

The model sees a function with one string parameter. The grammar (Lark or a regex) is in its description and is
always enforced or rejected: no call that violates it reaches a client, except one that a token limit cut off. The
text is decoded from the function's arguments, ``{"input": "..."}``, as they are generated.
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
    """Return the function of a custom tool whose ``format`` is `given`, at `path`. Raises `InvalidRequest`."""
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
            inner = given.get("grammar", given)  # a chat's form has one more level
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
_WHOLE = re.compile(
    r'(?:[^\\"]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB]..\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL
)
"""Characters and whole escapes, pairs of surrogates together, up to the closing quote."""


class _InputParser:
    """An `OutputParser` in which the arguments of custom tools' calls are their input, decoded as it is generated."""

    def __init__(self, parser: OutputParser, names: Container[str]) -> None:
        self._parser, self._names = parser, names
        self._index = -1  # of the last call of a custom tool, which may have ended
        self._held = ""  # its arguments that are not decoded so far
        self._begun = self._closed = False  # its input

    def feed(self, text: str) -> list[Piece]:
        return self._decoded(self._parser.feed(text))

    def finish(self, *, cut: bool = False) -> list[Piece]:
        return [*self._decoded(self._parser.finish(cut=cut)), *self._ended()]

    def _decoded(self, pieces: list[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, ToolCallArguments) and piece.index == self._index:
                if text := self._more(piece.text):
                    found.append(ToolCallArguments(piece.index, text))
                continue
            found += self._ended()
            found.append(piece)
            if isinstance(piece, ToolCallBegin) and piece.name in self._names:
                self._index, self._held, self._begun, self._closed = piece.index, "", False, False
        return found

    def _more(self, arguments: str) -> str:
        """Return the part of the input in more of its call's arguments."""
        if self._closed:
            return ""
        self._held += arguments
        if not self._begun:
            opened = _OPENING.match(self._held)
            if opened is None:
                return ""
            self._begun, self._held = True, self._held[opened.end() :]
        found = _WHOLE.match(self._held)
        end = 0 if found is None else found.end()
        written, self._held = self._held[:end], self._held[end:]
        self._closed = self._held.startswith('"')
        try:
            return str(json.loads(f'"{written}"', strict=False)).encode(errors="replace").decode()
        except ValueError:
            return written  # an escape that JSON does not have

    def _ended(self) -> list[Piece]:
        """Return the input of a custom tool's call that has ended, if its arguments have another syntax."""
        index, self._index = self._index, -1
        if index < 0 or self._begun:
            return []
        try:
            given = pydantic_core.from_json(self._held, allow_partial="trailing-strings")
        except ValueError:
            given = None
        value = given.get(INPUT) if isinstance(given, dict) else None
        text = value if isinstance(value, str) else self._held
        return [ToolCallArguments(index, text)] if text else []


def input_parser(parser: NewParser, names: Container[str]) -> NewParser:
    """Return a parser in which the calls of the custom tools `names` have their input as text, not JSON arguments."""
    return (lambda: _InputParser(parser(), names)) if names else parser


def input_arguments(text: str) -> str:
    """Return the arguments of a call with that input, as the model has written them."""
    return json.dumps({INPUT: text}, ensure_ascii=False)
