"""Builds a grammar for llguidance from a client's request, both in the server and in its sandbox."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import llguidance

from server.errors import InvalidRequest
from server.structured.grammar.gbnf import to_lark
from server.structured.grammar.json_schema import grammar_text, normalized_schema, unsupported
from server.structured.grammar.lark import checked_lark, lark_with_texts, without_anchors
from server.structured.grammar.limits import PARSER_LIMITS
from server.structured.grammar.matcher import NO_OUTPUT, contained, first_line
from server.structured.grammar.tokenizer import Tokenizer, TokenTable
from server.structured.text_grammar import LIMITED

PARSE_FAILED = "Failed to initialize samplers: failed to parse grammar"  # llama-server's words
SCHEMA = "json_schema"
"""The field that errors of a schema name."""
MAX_LIMITED = 100  # texts that are checked, each in about 2 ms of the sandbox's CPU time
_LIMITED = re.compile(rf"^{LIMITED}\d+: (.*)$", re.MULTILINE)
Kind: TypeAlias = Literal["schema", "gbnf", "lark", "grammar"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar for llguidance with the parts that it can't express, as plain values for another process."""

    text: str
    param: str = "grammar"  # the field that errors name
    prefix: str = PARSE_FAILED  # of error messages
    texts: tuple[tuple["Grammar", dict[str, Any]], ...] = ()  # the grammars of embedded inputs, with their positions
    hole: int = -1  # the control token that marks these positions
    unique: dict[str, Any] | None = None  # the schema, if items must be unique
    narrowed: str = ""  # a keyword whose rewritten form may reject some valid values; "" for none

    @classmethod
    def from_json(cls, fields: Any) -> "Grammar":
        """Create a grammar from its fields after a conversion to JSON."""
        texts = tuple((cls.from_json(grammar), position) for grammar, position in fields["texts"])
        return cls(**{**fields, "texts": texts})

    @contained
    def matcher(self, tokenizer: Tokenizer, request: Any) -> llguidance.LLMatcher:
        """Compile the grammar. Raises `InvalidRequest` if it is invalid, or if no output matches.

        ``request``: the client's request, to name the position in a schema.
        """
        matcher = llguidance.LLMatcher(tokenizer.native, self.text, log_level=0, limits=PARSER_LIMITS)
        # Computing the first mask detects grammars that match nothing or cost too much, before a slot is taken.
        if not matcher.is_error() and any(matcher.compute_bitmask()) and not matcher.is_error():
            return matcher
        error = first_line(re.sub(r"^at 1\(\d+\): ", "", matcher.get_error()))  # the position of a generated text
        if self.param == SCHEMA:
            raise unsupported(error, request, self.narrowed)
        raise InvalidRequest(f"{self.prefix}: {error}", self.param)


def build(kind: Kind, request: Any, table: Callable[[], TokenTable]) -> Grammar:
    """Build a grammar from a JSON Schema, GBNF, ``[lark, max_chars]`` or ``[grammar, param, prefix]``.

    ``table``: returns the vocabulary, for grammars that name tokens. Raises `InvalidRequest`.
    """
    match kind:
        case "schema":
            text, unique, narrowed = normalized_schema(request, SCHEMA)
            return Grammar(grammar_text(text), SCHEMA, SCHEMA, unique=unique and unique[0], narrowed=narrowed)
        case "gbnf":
            try:
                return Grammar(to_lark(request, table()))
            except InvalidRequest as error:
                raise InvalidRequest(f"{PARSE_FAILED}: {error.message}", "grammar") from None
        case "lark":
            text, max_chars = request
            outer, texts, hole = lark_with_texts(text, max_chars, table().special)
            _check_limited(outer)
            inner = tuple((_text_grammar(each["syntax"], each["definition"]), each) for each in texts)
            return Grammar(llguidance.LLMatcher.grammar_from_lark(outer), texts=inner, hole=hole)
        case "grammar":
            return Grammar(*request)


def _check_limited(lark: str) -> None:
    """Raise `InvalidRequest` if the limits of some text in a grammar of calls exclude each other."""
    for terminal in _LIMITED.findall(lark)[:MAX_LIMITED]:
        grammar = llguidance.LLMatcher.grammar_from_lark(f"start: T\nT: {terminal}")
        matcher = llguidance.LLMatcher(_bytes(), grammar, log_level=0, limits=PARSER_LIMITS)
        matcher.compute_bitmask()
        if matcher.is_error() and first_line(matcher.get_error()) == NO_OUTPUT:
            raise InvalidRequest("tools: no text matches all limits of a parameter", "tools")


@cache
def _bytes() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer("byte", slices=[])


def _text_grammar(syntax: str, definition: str) -> Grammar:
    if syntax == "regex":
        return Grammar(llguidance.LLMatcher.grammar_from_regex(without_anchors(definition)))
    return Grammar(llguidance.LLMatcher.grammar_from_lark(checked_lark(definition)))
