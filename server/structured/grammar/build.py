"""A client's schema or Lark to llguidance's grammar, and that to a matcher; the server and its sandbox do the same."""

import re
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import llguidance

from server.errors import InvalidRequest
from server.structured.grammar.gbnf import to_lark
from server.structured.grammar.json_schema import grammar_text, unsupported, written
from server.structured.grammar.lark import checked_lark, lark_with_texts, without_anchors
from server.structured.grammar.limits import MAX_TEXT_CHARS, PARSER_LIMITS
from server.structured.grammar.matcher import first_line
from server.structured.grammar.panics import contained
from server.structured.grammar.tokenizer import byte_tokenizer
from server.structured.grammar.unique.places import UniquePlaces

PARSE_FAILED = "Failed to initialize samplers: failed to parse grammar"  # llama-server's words


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """A schema for llguidance, with the positions of unique items, which it can't express; None for none.

    ``narrowed``: a keyword whose rewritten form may reject some valid values, "" for none.
    """

    schema: Any
    text: str
    narrowed: str
    unique: UniquePlaces | None

    def as_json(self) -> Any:
        """Plain values for another process, without the schema."""
        unique = None if self.unique is None else [self.unique.document, self.unique.first]
        return [self.text, self.narrowed, unique]

    @classmethod
    def from_json(cls, schema: Any, found: Any) -> "SchemaGrammar":
        """Read `as_json` of `schema`."""
        text, narrowed, unique = found
        return cls(schema, text, narrowed, None if unique is None else UniquePlaces(*unique))

    def matcher_of_bytes(self) -> llguidance.LLMatcher:
        """Compile it for tokens that are single bytes. Raises `InvalidRequest`."""
        return self.matcher(byte_tokenizer())

    def matcher(self, tokenizer: llguidance.LLTokenizer) -> llguidance.LLMatcher:
        """Compile it. Raises `InvalidRequest` that names the place in the schema."""
        try:
            return matcher_of(tokenizer, grammar_text(self.text), "json_schema", "json_schema")
        except InvalidRequest as error:
            raise unsupported(error.message.removeprefix("json_schema: "), self.schema, self.narrowed) from None


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    """A checked Lark grammar. ``texts``: the grammars of inputs in it, with their places; ``hole``: the control token
    that marks their places.
    """

    text: str
    param: str = "grammar"
    prefix: str = PARSE_FAILED
    texts: tuple[tuple["LarkGrammar", dict[str, Any]], ...] = ()
    hole: int = -1

    def as_json(self) -> Any:
        """Return plain values for another process."""
        return [self.text, [[grammar.text, place] for grammar, place in self.texts], self.hole]

    @classmethod
    def from_json(cls, found: Any) -> "LarkGrammar":
        """Read `as_json`."""
        text, texts, hole = found
        return cls(text, texts=tuple((cls(inner), place) for inner, place in texts), hole=hole)

    def matcher(self, tokenizer: llguidance.LLTokenizer) -> llguidance.LLMatcher:
        """Compile it. Raises `InvalidRequest`."""
        return matcher_of(tokenizer, self.text, self.param, self.prefix)


def schema_grammar(schema: object) -> SchemaGrammar:
    """Rewrite a JSON Schema. Raises `InvalidRequest` that names the place."""
    text, unique, narrowed = written(schema, "json_schema")
    return SchemaGrammar(schema, text, narrowed, unique)


def gbnf_grammar(text: str, token_id: Callable[[str], int | None], ends: AbstractSet[int]) -> LarkGrammar:
    """Convert GBNF. Raises `InvalidRequest`. ``token_id``: finds a token by its text. ``ends``: the end tokens."""
    try:
        return LarkGrammar(to_lark(text, token_id, ends))
    except InvalidRequest as error:
        raise InvalidRequest(f"{PARSE_FAILED}: {error.message}", "grammar") from None


def lark_grammar(text: str, max_chars: int, special: Iterable[int]) -> LarkGrammar:
    """Check a Lark grammar of at most `max_chars`. Raises `InvalidRequest`.

    ``special``: the control tokens.
    """
    outer, texts, hole = lark_with_texts(text, max_chars, special)
    inner = tuple((_text_grammar(each["syntax"], each["definition"]), each) for each in texts)
    return LarkGrammar(llguidance.LLMatcher.grammar_from_lark(outer), texts=inner, hole=hole)


def _text_grammar(syntax: str, definition: str) -> LarkGrammar:
    if syntax == "regex":
        return LarkGrammar(llguidance.LLMatcher.grammar_from_regex(without_anchors(definition)))
    return LarkGrammar(llguidance.LLMatcher.grammar_from_lark(checked_lark(definition, MAX_TEXT_CHARS)))


@contained
def matcher_of(tokenizer: llguidance.LLTokenizer, grammar: str, param: str, prefix: str) -> llguidance.LLMatcher:
    """Compile llguidance's `grammar`. Raises `InvalidRequest` for one that is wrong, or that no output matches."""
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=PARSER_LIMITS)
    # The first mask finds grammars that match nothing, or cost too much, before a slot is taken.
    allowed = b"" if matcher.is_error() else matcher.compute_bitmask()
    if matcher.is_error() or not any(allowed):
        raise InvalidRequest(f"{prefix}: {first_line(_without_place(matcher.get_error()))}", param)
    return matcher


def _without_place(error: str) -> str:
    """Drop the position of a generated text, keep that of a client's own lines."""
    return re.sub(r"^at 1\(\d+\): ", "", error)
