"""Lark text in llguidance's dialect: how deep a client's grammar nests, and how to write literals into our own."""

import json
import re

from server.errors import InvalidRequest
from server.structured.grammar.json_schema import schema_text
from server.structured.grammar.limits import MAX_RULE_CHAIN, Node, check_chain

_TOKENS = re.compile(
    r"""
    (?P<skip>[ \t\r\n]+ | //[^\n]* | \#[^\n]*)
  | (?P<json>%json\b)
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


def checked_lark(text: str, max_chars: int) -> str:
    """Check a client's Lark grammar for size, depth and every ``%json``. Raises InvalidRequest. llguidance reports
    other errors.
    """
    if len(text) > max_chars:
        raise InvalidRequest(f"the grammar has {len(text)} characters, {max_chars} are allowed")
    weights: dict[str, int] = {}
    uses: dict[str, list[str]] = {}
    out: list[str] = []
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
        out.append(match.group())
        if kind == "json":
            schema, pos = _inline_schema(text, pos)
            out.append(" " + schema)
    nodes = {name: Node(weight, tuple(uses.get(name, ()))) for name, weight in weights.items()}
    check_chain(nodes, nodes, MAX_RULE_CHAIN, "the grammar")
    return "".join(out)


def _inline_schema(text: str, pos: int) -> tuple[str, int]:
    start = pos + len(text[pos:]) - len(text[pos:].lstrip())
    try:
        schema, end = _JSON.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        line = text.count("\n", 0, pos) + 1
        raise InvalidRequest(f"%json on line {line} is not followed by a JSON Schema: {error}") from None
    return schema_text(schema), end
