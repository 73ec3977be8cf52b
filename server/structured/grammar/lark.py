"""Checks a client's grammar in llguidance's dialect of Lark, and extracts embedded texts from Llamapool's own."""

import json
import re
from collections.abc import Iterable
from typing import Any

from server.errors import InvalidRequest
from server.structured.grammar.json_schema import normalized_schema
from server.structured.grammar.limits import MAX_TEXT_CHARS
from server.structured.grammar.schema.document import unenforceable

_KEYWORDS = re.compile(
    r"""
    //[^\n]* | \#[^\n]* | "(?:\\.|[^"\\\n])*" | /(?!/)(?:\\.|[^/\\\n])+/  # comments, strings and regexes are skipped
  | (?P<keyword>%(?:json|text|lark)\b)\s*
    """,
    re.VERBOSE | re.DOTALL,
)
_JSON = json.JSONDecoder()


def without_anchors(regex: str) -> str:
    """Return the regex without leading ``^`` and trailing ``$``, because it always matches a whole text."""
    regex = regex.removeprefix("^")
    ends = regex.endswith("$") and (len(regex) - len(regex[:-1].rstrip("\\"))) % 2 == 1
    return regex[:-1] if ends else regex


def checked_lark(text: str) -> str:
    """Check the size and every ``%json`` of a client's Lark grammar. Raises `InvalidRequest`.

    llguidance reports other errors.
    """
    grammar, texts, _ = lark_with_texts(text, MAX_TEXT_CHARS, ())
    if texts:
        raise InvalidRequest("%text can't be inside the grammar of a text")
    return grammar


def lark_with_texts(text: str, max_chars: int, special: Iterable[int]) -> tuple[str, list[dict[str, Any]], int]:
    """Check a Lark grammar like `checked_lark`, and replace every ``%text`` (`TextGrammar`) by a hole.

    ``special``: the control tokens, which text does not match. Returns the grammar, the texts, and the control token
    that marks their positions: n + 1 times for number n.
    """
    if len(text) > max_chars:
        raise InvalidRequest(f"the grammar has {len(text)} characters, {max_chars} are allowed")
    out: list[str] = []
    texts: list[dict[str, Any]] = []
    hole = next((token for token in special if f"<[{token}]>" not in text), -1)
    n_copied = pos = 0
    while match := _KEYWORDS.search(text, pos):
        pos, keyword = match.end(), match["keyword"]
        if keyword is None:
            continue
        if keyword == "%lark":
            raise InvalidRequest("%lark inside a Lark grammar is not supported: write its rules into the grammar")
        out.append(text[n_copied : match.start()])
        found, pos = _inline_json(text, pos, keyword)
        n_copied = pos
        if keyword == "%json":
            schema, unique, _ = normalized_schema(found, "%json")
            if unique is not None:
                raise unenforceable("uniqueItems", unique[1])
            out.append(f"%json {schema}")
            continue
        if found not in texts:
            texts.append(found)
        out.append(f"<[{hole}]> " * (texts.index(found) + 1))
    out.append(text[n_copied:])
    if texts and hole < 0:
        raise InvalidRequest("no grammar of a tool's input can be enforced: the vocabulary has no control token for it")
    return "".join(out), texts, hole


def _inline_json(text: str, pos: int, keyword: str) -> tuple[Any, int]:
    try:
        return _JSON.raw_decode(text, pos)
    except (ValueError, RecursionError) as error:
        line, kind = text.count("\n", 0, pos) + 1, "Schema" if keyword == "%json" else "object"
        raise InvalidRequest(f"{keyword} on line {line} is not followed by a JSON {kind}: {error}") from None
