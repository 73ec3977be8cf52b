"""Lark text in llguidance's dialect: checks of a client's grammar, and literals and texts in our own."""

import json
import re
from collections.abc import Iterable
from typing import Any

from server.errors import InvalidRequest
from server.structured.grammar.json_schema import schema_text
from server.structured.grammar.limits import MAX_RULE_CHAIN, Node, check_chain

_TOKENS = re.compile(
    r"""
    (?P<skip>[ \t\r\n]+ | //[^\n]* | \#[^\n]*)
  | (?P<json>%json\b)
  | (?P<text>%text\b)
  | (?P<directive>%[a-z_]+)
  | (?P<string>"(?:\\.|[^"\\\n])*"i?)
  | (?P<regex>/(?!/)(?:\\.|[^/\\\n])+/[imslux]*)
  | (?P<special><[^>\n]+>)
  | (?P<head>(?P<name>[A-Za-z_][A-Za-z0-9_-]*)(?:::_)?(?:\.-?\d+)?(?:\[[^\]\n]*\])?[ \t]*:(?!:))
  | (?P<use>[A-Za-z_][A-Za-z0-9_-]*)
  | (?P<open>[(\[{]) | (?P<close>[)\]}])
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_JSON = json.JSONDecoder()


def literal(text: str) -> str:
    """`text` as a Lark string."""
    return json.dumps(text)


def without_anchors(regex: str) -> str:
    """Return the regex without leading ``^`` and trailing ``$``, since it always matches a whole text."""
    regex = regex.removeprefix("^")
    ends = regex.endswith("$") and (len(regex) - len(regex[:-1].rstrip("\\"))) % 2 == 1
    return regex[:-1] if ends else regex


def checked_lark(text: str, max_chars: int) -> str:
    """Check a client's Lark grammar for size, depth and every ``%json``. Raises InvalidRequest. llguidance reports
    other errors.
    """
    grammar, texts, _ = lark_with_texts(text, max_chars, ())
    if texts:
        raise InvalidRequest("%text can't be inside the grammar of a text")
    return grammar


def lark_with_texts(text: str, max_chars: int, special: Iterable[int]) -> tuple[str, list[dict[str, Any]], int]:
    """Check a Lark grammar like `checked_lark`, and take every ``%text`` (`TextGrammar`) out of it.

    ``special``: the control tokens that no text matches. Returns the grammar, the texts, and the control token that
    marks their places: n + 1 times for number n.
    """
    if len(text) > max_chars:
        raise InvalidRequest(f"the grammar has {len(text)} characters, {max_chars} are allowed")
    weights: dict[str, int] = {}
    uses: dict[str, list[str]] = {}
    out: list[str] = []
    texts: list[dict[str, Any]] = []
    hole = next((token for token in special if f"<[{token}]>" not in text), -1)
    rule, level, pos = "", 0, 0
    while match := _TOKENS.match(text, pos):
        pos = match.end()
        kind = match.lastgroup
        if kind == "directive" and match.group() == "%lark":
            raise InvalidRequest("%lark inside a Lark grammar is not supported: write its rules into the grammar")
        if kind in ("head", "name"):
            rule, level = match.group("name"), 0
            weights.setdefault(rule, 1)
        elif kind == "use":
            uses.setdefault(rule, []).append(match.group())
        elif kind == "open":
            level += 1
            weights[rule] = max(weights.get(rule, 1), level + 1)
        elif kind == "close":
            level -= 1
        if kind == "text":
            found, pos = _inline_json(text, pos, "%text")
            if found not in texts:
                texts.append(found)
            out.append(f"<[{hole}]> " * (texts.index(found) + 1))
            continue
        out.append(match.group())
        if kind == "json":
            schema, pos = _inline_json(text, pos, "%json")
            out.append(" " + schema_text(schema))
    nodes = {name: Node(weight, tuple(uses.get(name, ()))) for name, weight in weights.items()}
    check_chain(nodes, nodes, MAX_RULE_CHAIN, "the grammar")
    if texts and hole < 0:
        raise InvalidRequest("no grammar of a tool's input can be enforced: the vocabulary has no control token for it")
    return "".join(out), texts, hole


def _inline_json(text: str, pos: int, keyword: str) -> tuple[Any, int]:
    start = pos + len(text[pos:]) - len(text[pos:].lstrip())
    try:
        return _JSON.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        line, kind = text.count("\n", 0, pos) + 1, "Schema" if keyword == "%json" else "object"
        raise InvalidRequest(f"{keyword} on line {line} is not followed by a JSON {kind}: {error}") from None
